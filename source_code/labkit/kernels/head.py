"""How does the small end of the network cost one launch? All behind the first linear layer, forward and backward.

Sixteen samples a program: 128 hidden values and ten classes each stay in registers from the bias to the gradient.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.conv2 import _drawn
from labkit.kernels.triton_or_not import runs_triton, starts_early, tl, triton
from labkit.kernels.weights import Weights

OFFSET = tl.constexpr(1 << 30)  # dropout2's random numbers begin where dropout1's never come
KEPT = 0.5  # of dropout2


def head_reference(
    linear: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    labels: torch.Tensor,
    keep: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The same in plain PyTorch: the loss, and the gradients of all arguments up to ``bias2``.

    ``keep``, bool ``(N, 128)``, is dropout's choice (None: no dropout).
    """
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (linear, bias1, weight2, bias2)]
    with torch.enable_grad():
        hidden = F.relu(leaves[0] + leaves[1])
        if keep is not None:
            hidden = hidden * keep / KEPT
        loss = F.nll_loss(F.log_softmax(F.linear(hidden, leaves[2], leaves[3]), dim=1), labels)
        return loss.detach(), *torch.autograd.grad(loss, leaves)


@triton.jit(do_not_specialize=["step"])
def _head(
    linear, bias1, weight2, bias2, labels, order, seeds, losses, back, bias1_gradient, weight2_gradient,
    bias2_gradient, samples, step, DROPOUT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < samples
    unit, digit = tl.arange(0, 128)[None, :], tl.arange(0, 16)[None, :]  # ten digits, and six that never are
    at = sample[:, None] * 128 + unit
    bias = tl.load(bias1 + unit)
    label = tl.load(labels + tl.load(order + sample, mask=inside, other=0), mask=inside, other=0)
    real = digit < 10
    weight_at = tl.arange(0, 16)[:, None] * 128 + unit
    weight = tl.load(weight2 + weight_at, mask=tl.arange(0, 16)[:, None] < 10, other=0.0).to(back.dtype.element_ty)
    chosen, slope = unit >= 0, 1.0  # all
    if DROPOUT:
        a, b, c, d = tl.randint4x(tl.load(seeds + step), sample + OFFSET)  # 128 bits: one for each unit
        first = tl.where(unit < 32, a[:, None], b[:, None])
        second = tl.where(unit < 96, c[:, None], d[:, None])
        word = tl.where(unit < 64, first, second)
        chosen, slope = ((word >> (unit % 32)) & 1) != 0, 2.0
    if EARLY:
        tl.extra.cuda.gdc_wait()  # for the kernel before: so far nothing of its has been read, and nothing written
    part = tl.arange(0, PARTS)[:, None, None] * samples * 128
    parts = tl.load(linear + part + at[None, :, :], mask=inside[None, :, None], other=0.0)  # all on their way at once
    hidden = tl.sum(parts.to(tl.float32), axis=0) + bias
    alive = (hidden > 0) & chosen
    hidden = tl.where(alive & inside[:, None], hidden * slope, 0.0).to(back.dtype.element_ty)
    logits = tl.dot(hidden, tl.trans(weight)) + tl.load(bias2 + digit, mask=real, other=0.0)
    logits = tl.where(real, logits, -1e30)
    shifted = logits - tl.max(logits, axis=1)[:, None]
    powers = tl.exp(shifted)
    total = tl.sum(powers, axis=1)[:, None]
    true = (digit == label[:, None]) & inside[:, None]
    loss = tl.sum(tl.sum(tl.where(true, tl.log(total) - shifted, 0.0), axis=1), axis=0)
    tl.atomic_add(losses + step, loss / samples, sem="relaxed")

    # Backward: the gradient of log-softmax and loss together is the probabilities, less one for the true digit.
    gradient = tl.where(inside[:, None], powers / total - tl.where(true, 1.0, 0.0), 0.0) / samples
    tl.atomic_add(
        bias2_gradient + tl.arange(0, 16), tl.sum(gradient, axis=0), mask=tl.arange(0, 16) < 10, sem="relaxed"
    )
    gradient = gradient.to(back.dtype.element_ty)
    tl.atomic_add(
        weight2_gradient + weight_at,
        tl.dot(tl.trans(gradient), hidden),
        mask=tl.arange(0, 16)[:, None] < 10,
        sem="relaxed",
    )
    below = tl.where(alive, tl.dot(gradient, weight) * slope, 0.0)
    tl.atomic_add(bias1_gradient + tl.arange(0, 128), tl.sum(below, axis=0), sem="relaxed")
    tl.store(back + at, below.to(back.dtype.element_ty), mask=inside[:, None])


def head(
    linear: torch.Tensor,
    labels: torch.Tensor,
    order: torch.Tensor,
    weights: Weights,
    losses: torch.Tensor,
    seeds: torch.Tensor | None = None,
    step: int = 0,
) -> torch.Tensor:
    """From the first linear layer's product ``linear`` ``(N, 128)`` to the loss, and back to the gradient of it.

    Or from ``(parts, N, 128)``, as ``product_in_parts`` leaves it. Adds the mean loss over ``labels[order]`` to
    ``losses[step]`` and the gradients of both biases and of fc2's weight to ``weights.gradients``; returns the gradient
    of the product. Dropout follows from ``seeds[step]``, none if None.
    """
    parameter, gradient = weights.values, weights.gradients
    arguments = (parameter["fc1.bias"], parameter["fc2.weight"], parameter["fc2.bias"])
    parts = linear if linear.dim() == 3 else linear[None]
    if not runs_triton(linear):
        linear = parts.sum(0)
        keep = None if seeds is None else _drawn(seeds[step] + 1, linear.shape, KEPT)
        loss, back, bias1, weight2, bias2 = head_reference(linear, *arguments, labels[order], keep)
        losses[step] += loss
        gradient["fc1.bias"] += bias1
        gradient["fc2.weight"] += weight2
        gradient["fc2.bias"] += bias2
        return back
    back = torch.empty_like(parts[0], dtype=weights.flat_copies.dtype)
    samples, block = len(back), 16
    random = order if seeds is None else seeds
    early = linear.dim() == 3 and starts_early(linear)  # while the parts are still multiplied
    _head[(triton.cdiv(samples, block),)](
        linear, *arguments, labels, order, random, losses, back, gradient["fc1.bias"], gradient["fc2.weight"],
        gradient["fc2.bias"], samples, step, DROPOUT=seeds is not None, PARTS=len(parts), BLOCK=block,
        EARLY=early, num_warps=8, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return back
