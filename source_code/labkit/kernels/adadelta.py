"""How does an optimizer step read each number once? Adadelta for all parameters, in one kernel.

Zeiler, "ADADELTA: An Adaptive Learning Rate Method", arXiv:1212.5701, with the constants of torch.optim.Adadelta.
PyTorch's own takes about ten passes over parameters, gradients and state; this one takes one, and in passing writes
the BF16 copies for the next step and empties the gradients that kernels add to.
"""

import torch

from labkit.kernels.triton_or_not import runs_triton, tl, triton
from labkit.kernels.weights import Weights

RHO, EPS = 0.9, 1e-6


def adadelta_reference(
    value: torch.Tensor, gradient: torch.Tensor, square: torch.Tensor, delta: torch.Tensor, rate: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch: the new value, mean square of gradients, and mean square of changes."""
    square = RHO * square + (1 - RHO) * gradient**2
    change = (delta + EPS).sqrt() / (square + EPS).sqrt() * gradient
    delta = RHO * delta + (1 - RHO) * change**2
    return value - rate * change, square, delta


@triton.jit
def _adadelta(
    values, copies, gradients, squares, deltas, rate, begin, end, added, RHO: tl.constexpr, EPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = begin + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < end
    gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
    square = RHO * tl.load(squares + at, mask=inside, other=0.0) + (1 - RHO) * gradient * gradient
    delta = tl.load(deltas + at, mask=inside, other=0.0)
    change = tl.sqrt(delta + EPS) / tl.sqrt(square + EPS) * gradient
    value = tl.load(values + at, mask=inside, other=0.0) - tl.load(rate) * change
    tl.store(values + at, value, mask=inside)
    tl.store(copies + at, value.to(copies.dtype.element_ty), mask=inside)
    tl.store(squares + at, square, mask=inside)
    tl.store(deltas + at, RHO * delta + (1 - RHO) * change * change, mask=inside)
    tl.store(gradients + at, tl.zeros_like(gradient), mask=at < added)


def adadelta(weights: Weights, rate: torch.Tensor, part: slice = slice(None)) -> None:
    """One step with learning rate ``rate`` (float32, on the device); empties the gradients that kernels add to.

    For all parameters, or for a ``part`` of them: ``weights.added`` or ``weights.overwritten``.
    """
    values, gradients = weights.flat_values, weights.flat_gradients
    squares, deltas = weights.square_average, weights.delta_average
    begin, end, _ = part.indices(len(values))
    added = min(end, weights.added.stop)
    if not runs_triton(values):
        old = [flat[begin:end] for flat in (values, squares, deltas)]
        new = adadelta_reference(old[0], gradients[begin:end], *old[1:], rate)
        for own, fresh in zip(old, new, strict=True):
            own.copy_(fresh)
        gradients[begin:added].zero_()
        return
    block = 1024
    _adadelta[(triton.cdiv(end - begin, block),)](
        values, weights.flat_copies, gradients, squares, deltas, rate, begin, end, added, RHO=RHO, EPS=EPS, BLOCK=block
    )
