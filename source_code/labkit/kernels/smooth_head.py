"""How does label smoothing cost no launch? The small end of a network, forward and backward, as in ``head``.

Two differences: no dropout, and the target of the loss is not the true digit alone. Szegedy et al., arXiv:1512.00567:
a share ``smoothing`` of it is spread evenly over all ten digits. Any power of two of hidden units from 16 on.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.triton_or_not import runs_triton, tl, triton

SAMPLES = 16  # a program's


def smooth_head_reference(
    linear: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float,
) -> tuple[torch.Tensor, ...]:
    """The same in plain PyTorch: the loss, and the gradients of all arguments up to ``bias2``."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (linear, bias1, weight2, bias2)]
    with torch.enable_grad():
        logits = F.linear(F.relu(leaves[0] + leaves[1]), leaves[2], leaves[3])
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        return loss.detach(), *torch.autograd.grad(loss, leaves)


@triton.jit
def _smooth_head(
    linear, bias1, weight2, bias2, labels, order, loss_sum, back, bias1_gradient, weight2_gradient, bias2_gradient,
    samples, SMOOTHING: tl.constexpr, UNITS: tl.constexpr, SAMPLES: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    inside = sample < samples
    unit, digit = tl.arange(0, UNITS)[None, :], tl.arange(0, 16)[None, :]  # ten digits, and six that never are
    at = sample[:, None] * UNITS + unit
    hidden = tl.load(linear + at, mask=inside[:, None], other=0.0).to(tl.float32) + tl.load(bias1 + unit)
    alive = (hidden > 0) & inside[:, None]
    hidden = tl.where(alive, hidden, 0.0).to(linear.dtype.element_ty)
    real = digit < 10
    weight_at = tl.arange(0, 16)[:, None] * UNITS + unit
    weight_there = tl.arange(0, 16)[:, None] < 10
    weight = tl.load(weight2 + weight_at, mask=weight_there, other=0.0).to(linear.dtype.element_ty)
    logits = tl.dot(hidden, tl.trans(weight)) + tl.load(bias2 + digit, mask=real, other=0.0)
    logits = tl.where(real, logits, -1e30)
    shifted = logits - tl.max(logits, axis=1)[:, None]
    powers = tl.exp(shifted)
    total = tl.sum(powers, axis=1)[:, None]
    label = tl.load(labels + tl.load(order + sample, mask=inside, other=0), mask=inside, other=0)
    target = tl.where(digit == label[:, None], 1.0 - SMOOTHING, 0.0) + SMOOTHING / 10
    target = tl.where(real & inside[:, None], target, 0.0)
    loss = tl.sum(tl.sum(tl.where(real, target * (tl.log(total) - shifted), 0.0), axis=1), axis=0)
    tl.atomic_add(loss_sum, loss / samples, sem="relaxed")

    # Backward: the gradient of log-softmax and loss together is the probabilities, less the target.
    gradient = tl.where(inside[:, None], powers / total - target, 0.0) / samples
    digits = tl.arange(0, 16)
    tl.atomic_add(bias2_gradient + digits, tl.sum(gradient, axis=0), mask=digits < 10, sem="relaxed")
    gradient = gradient.to(linear.dtype.element_ty)
    tl.atomic_add(weight2_gradient + weight_at, tl.dot(tl.trans(gradient), hidden), mask=weight_there, sem="relaxed")
    below = tl.where(alive, tl.dot(gradient, weight), 0.0)
    tl.atomic_add(bias1_gradient + tl.arange(0, UNITS), tl.sum(below, axis=0), sem="relaxed")
    tl.store(back + at, below.to(back.dtype.element_ty), mask=inside[:, None])


def smooth_head(
    linear: torch.Tensor,
    parameters: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    labels: torch.Tensor,
    order: torch.Tensor,
    loss_sum: torch.Tensor,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """From the first linear layer's product ``linear`` ``(N, units)`` to the loss, and back to the gradient of it.

    ``parameters``: that layer's bias ``(units,)``, the last one's weight ``(10, units)`` and bias ``(10,)``, float32.
    Adds the mean loss over ``labels[order]`` to ``loss_sum`` and theirs to ``gradients``; returns ``linear``'s.
    """
    if not runs_triton(linear):
        loss, back, *found = smooth_head_reference(linear, *parameters, labels[order], smoothing)
        loss_sum += loss
        for gradient, more in zip(gradients, found, strict=True):
            gradient += more
        return back
    back = torch.empty_like(linear)
    samples, units = linear.shape
    _smooth_head[(triton.cdiv(samples, SAMPLES),)](
        linear, *parameters, labels, order, loss_sum, back, *gradients, samples,
        SMOOTHING=smoothing, UNITS=units, SAMPLES=SAMPLES,
    )  # fmt: skip
    return back
