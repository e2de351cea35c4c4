"""How does AdamW step all parameters but some in one launch? Each group of 64 numbers says whether it is taken along.

Kingma and Ba, "Adam", arXiv:1412.6980, with the decoupled decay of Loshchilov and Hutter, arXiv:1711.05101, as
torch.optim.AdamW computes it. Rate and bias corrections are numbers: a graph of a whole training holds each step's own.
"""

import torch

from labkit.kernels.triton_or_not import runs_triton, tl, triton
from labkit.kernels.weights import Weights

EPS = 1e-8
GROUP = 64  # every parameter of Weights begins at a multiple of it


def adam_reference(
    value: torch.Tensor,
    gradient: torch.Tensor,
    square: torch.Tensor,
    mean: torch.Tensor,
    number: int,
    rate: float,
    betas: tuple[float, float],
    decay: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch: new value, mean square of gradients, mean of gradients; ``number`` counts from 0."""
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient**2
    value = value * (1 - rate * decay)
    scale = (square / (1 - betas[1] ** (number + 1))).sqrt() + EPS
    return value - rate / (1 - betas[0] ** (number + 1)) * mean / scale, square, mean


@triton.jit
def _adam(
    values, copies, gradients, squares, means, taken, count, rate, beta1, beta2, shrink1, shrink2, kept,
    EPS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    inside = inside & (tl.load(taken + at // GROUP, mask=inside, other=0) != 0)
    gradient = tl.load(gradients + at, mask=inside, other=0.0)
    mean = beta1 * tl.load(means + at, mask=inside, other=0.0) + (1 - beta1) * gradient
    square = beta2 * tl.load(squares + at, mask=inside, other=0.0) + (1 - beta2) * gradient * gradient
    value = tl.load(values + at, mask=inside, other=0.0) * kept
    value -= rate / shrink1 * mean / (tl.sqrt(square / shrink2) + EPS)
    tl.store(values + at, value, mask=inside)
    tl.store(copies + at, value.to(copies.dtype.element_ty), mask=inside)
    tl.store(squares + at, square, mask=inside)
    tl.store(means + at, mean, mask=inside)
    tl.store(gradients + at, tl.zeros_like(gradient), mask=inside)


class Adam:
    """AdamW for the parameters of ``weights`` except those named in ``but``."""

    def __init__(self, weights: Weights, but: tuple[str, ...] = ()) -> None:
        self.weights = weights
        taken = torch.ones_like(weights.flat_values, dtype=torch.uint8)
        for name in but:
            view = weights.values[name]
            at = view.storage_offset() - weights.flat_values.storage_offset()
            taken[at : at + -(-view.numel() // GROUP) * GROUP] = 0
        self.taken = taken[::GROUP].contiguous()
        self.everywhere = taken.bool()  # the same for each number, for the CPU
        self.length = int(taken.nonzero().max()) + 1  # of the flat arrays, up to the last that is taken along

    def step(self, number: int, rate: float, betas: tuple[float, float], decay: float = 0.0) -> None:
        """Step ``number`` (0, 1, 2 …); empties the gradients of what it steps."""
        weights = self.weights
        values, gradients = weights.flat_values, weights.flat_gradients
        state = weights.square_average, weights.delta_average
        if not runs_triton(values):
            taken = self.everywhere
            new = adam_reference(values, gradients, *state, number, rate, betas, decay)
            for old, fresh in zip((values, *state), new, strict=True):
                old.copy_(torch.where(taken, fresh, old))
            gradients.masked_fill_(taken, 0.0)
            return
        count, block = self.length, 1024
        shrinks = (1 - beta ** (number + 1) for beta in betas)
        _adam[(triton.cdiv(count, block),)](
            values, weights.flat_copies, gradients, *state, self.taken, count, rate, *betas, *shrinks,
            1 - rate * decay, EPS=EPS, GROUP=GROUP, BLOCK=block,
        )  # fmt: skip
