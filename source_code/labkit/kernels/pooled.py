"""How does a convolution with a pooling behind it become one kernel, forward and backward, for a small network?

As in ``conv1`` and ``conv2``, with other sizes and a pooling behind both: a program computes the four outputs of a
window side by side, writes the largest and one byte, the *winner* (0 to 3, or 4 where ReLU put it out). The first
layer takes bytes: they are exact in BF16, and what normalising them adds is put in afterwards, since all is linear.
The gradient of the first layer's output is used in registers and never written.

Images 28 x 28; first layer ``(C, k, k, 1)``, second ``(D, 3, 3, C)``, channels-last as the activations; C and D are
powers of two from 16 on, and k is 5, so that both poolings come out even.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.triton_or_not import NARROW, programs, runs_triton, tl, triton
from labkit.training.data import MEAN, STD, normalise

OUT = 4  # a winner that is no winner
TAPS = 32  # places for the 25 taps of the first layer, and zeros
BLOCK = 64


def pooled_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Convolve ``(N, height, width, C)``, pool, bias, ReLU, in plain PyTorch; the pooled values and the winners."""
    output = F.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2))
    side = output.shape[2] // 2
    windows = output.unflatten(3, (side, 2)).unflatten(2, (side, 2)).permute(0, 2, 4, 1, 3, 5).flatten(4)
    best, winner = windows.max(dim=4)
    value = best + bias
    return value.clamp(min=0), torch.where(value > 0, winner, OUT).to(torch.uint8)


def spread_reference(upstream: torch.Tensor, winner: torch.Tensor) -> torch.Tensor:
    """The gradient of a convolution's output ``(N, 2s, 2s, C)``, from that of the pooled one ``(N, s, s, C)``."""
    places = torch.arange(4, device=winner.device)
    windows = torch.where(winner[..., None] == places, upstream[..., None], 0.0).unflatten(-1, (2, 2))
    count, side, _, channels = upstream.shape
    return windows.permute(0, 1, 4, 2, 5, 3).reshape(count, 2 * side, 2 * side, channels)


def weight_gradient_reference(
    x: torch.Tensor, upstream: torch.Tensor, winner: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a layer's weight ``(D, size, size, C)`` and bias, from that of its pooled values."""
    output = spread_reference(upstream, winner)
    side = output.shape[1]
    rows = [x[:, y : y + side, z : z + side] for y in range(size) for z in range(size)]
    taps = torch.stack([torch.einsum("nyxo,nyxi->oi", output, row) for row in rows], dim=1)
    return taps.unflatten(1, (size, size)), output.sum((0, 1, 2))


def data_gradient_reference(upstream: torch.Tensor, winner: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of a layer's input, from that of its pooled values."""
    output = spread_reference(upstream, winner).permute(0, 3, 1, 2)
    return F.conv_transpose2d(output, weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


# The first layer


@triton.jit
def _bytes(corner, inside, SIZE: tl.constexpr, TAPS: tl.constexpr):
    """The bytes under the taps of an output whose upper left one is at ``corner``: ``(BLOCK, TAPS)``."""
    tap = tl.arange(0, TAPS)[None, :]
    there = inside[:, None] & (tap < SIZE * SIZE)
    return tl.load(corner[:, None] + tap // SIZE * 28 + tap % SIZE, mask=there, other=0).to(tl.float32)


@triton.jit
def _first(
    images, weight, bias, out, winner, positions, SCALE: tl.constexpr, SHIFT: tl.constexpr, SIZE: tl.constexpr,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    side: tl.constexpr = (29 - SIZE) // 2
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < positions
    row, column = position // side % side, position % side
    corner = images + position // (side * side) * 784 + 2 * row * 28 + 2 * column
    channel, tap = tl.arange(0, CHANNELS)[None, :], tl.arange(0, TAPS)[:, None]
    narrow = out.dtype.element_ty
    taps = tl.load(weight + channel * (SIZE * SIZE) + tap, mask=tap < SIZE * SIZE, other=0.0)
    best = tl.dot(_bytes(corner, inside, SIZE, TAPS).to(narrow), taps)
    which = tl.zeros((BLOCK, CHANNELS), tl.int32)
    for window in tl.static_range(1, 4):
        at = corner + window // 2 * 28 + window % 2
        other = tl.dot(_bytes(at, inside, SIZE, TAPS).to(narrow), taps)
        which = tl.where(other > best, window, which)
        best = tl.maximum(best, other)
    shift = SHIFT * tl.sum(taps.to(tl.float32), axis=0)[None, :] + tl.load(bias + channel)
    value = SCALE * best + shift
    at = position[:, None] * CHANNELS + channel
    tl.store(out + at, tl.maximum(value, 0.0).to(narrow), mask=inside[:, None])
    tl.store(winner + at, tl.where(value > 0, which, 4).to(tl.uint8), mask=inside[:, None])


def first_pooled(images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``relu(max_pool2d(conv(normalise(images)), 2))`` and the winners, ``(N, s, s, C)`` both.

    ``images`` uint8 ``(N, 28, 28)``, ``weight`` BF16 ``(C, k, k, 1)``, ``bias`` float32 ``(C,)``.
    """
    if not runs_triton(images):
        return pooled_reference(normalise(images).permute(0, 2, 3, 1).to(weight.dtype), weight, bias)
    count, channels, size = len(images), len(weight), weight.shape[1]
    side = (29 - size) // 2
    out = torch.empty(count, side, side, channels, dtype=NARROW, device=images.device)
    winner = torch.empty(count, side, side, channels, dtype=torch.uint8, device=images.device)
    positions = count * side * side
    _first[(triton.cdiv(positions, BLOCK),)](
        images, weight, bias, out, winner, positions,
        SCALE=1 / (255 * STD), SHIFT=-MEAN / STD, SIZE=size, CHANNELS=channels, TAPS=TAPS, BLOCK=BLOCK,
    )  # fmt: skip
    return out, winner


# The second layer


@triton.jit
def _tap(weight, number, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr):
    """One tap of nine as the right side of a product: ``(CHANNELS, OUTPUTS)``."""
    channel, output = tl.arange(0, CHANNELS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    return tl.load(weight + output * (9 * CHANNELS) + number * CHANNELS + channel)


@triton.jit
def _second(
    x, weight, bias, out, winner, positions, SIDE: tl.constexpr, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    side: tl.constexpr = (SIDE - 2) // 2
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (position < positions)[:, None]
    row, column = position // side % side, position % side
    corner = position // (side * side) * (SIDE * SIDE) + 2 * row * SIDE + 2 * column
    channel, output = tl.arange(0, CHANNELS)[None, :], tl.arange(0, OUTPUTS)[None, :]
    output0 = tl.zeros((BLOCK, OUTPUTS), tl.float32)  # the window's four outputs
    output1 = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    output2 = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    output3 = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for y in tl.static_range(4):  # they look at 4 x 4 pixels
        for z in tl.static_range(4):
            pixels = tl.load(x + (corner + y * SIDE + z)[:, None] * CHANNELS + channel, mask=inside, other=0.0)
            if y < 3:
                if z < 3:
                    output0 = tl.dot(pixels, _tap(weight, y * 3 + z, CHANNELS, OUTPUTS), output0)
                if z > 0:
                    output1 = tl.dot(pixels, _tap(weight, y * 3 + z - 1, CHANNELS, OUTPUTS), output1)
            if y > 0:
                if z < 3:
                    output2 = tl.dot(pixels, _tap(weight, y * 3 - 3 + z, CHANNELS, OUTPUTS), output2)
                if z > 0:
                    output3 = tl.dot(pixels, _tap(weight, y * 3 - 3 + z - 1, CHANNELS, OUTPUTS), output3)
    best = tl.maximum(tl.maximum(output0, output1), tl.maximum(output2, output3))
    which = tl.where(output0 == best, 0, tl.where(output1 == best, 1, tl.where(output2 == best, 2, 3)))
    value = best + tl.load(bias + output)
    at = position[:, None] * OUTPUTS + output
    tl.store(out + at, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=inside)
    tl.store(winner + at, tl.where(value > 0, which, 4).to(tl.uint8), mask=inside)


def second_pooled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``relu(max_pool2d(conv(x), 2))`` and the winners, ``(N, s, s, D)`` both, in ``x``'s type and uint8.

    ``x`` ``(N, side, side, C)``, side even, ``weight`` ``(D, 3, 3, C)``, both BF16; ``bias`` float32 ``(D,)``.
    """
    if not runs_triton(x):
        return pooled_reference(x, weight, bias)
    count, side, _, channels = x.shape
    outputs, half = len(weight), (side - 2) // 2
    out = torch.empty(count, half, half, outputs, dtype=x.dtype, device=x.device)
    winner = torch.empty(count, half, half, outputs, dtype=torch.uint8, device=x.device)
    positions = count * half * half
    _second[(triton.cdiv(positions, BLOCK),)](
        x, weight, bias, out, winner, positions, SIDE=side, CHANNELS=channels, OUTPUTS=outputs, BLOCK=BLOCK,
    )  # fmt: skip
    return out, winner


@triton.jit
def _second_weight(
    x, upstream, winner, weight_gradient, bias_gradient, positions, chunk, SIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    side: tl.constexpr = (SIDE - 2) // 2
    tap, first = tl.program_id(1), tl.program_id(0) * chunk
    channel, output = tl.arange(0, CHANNELS), tl.arange(0, OUTPUTS)
    total = tl.zeros((CHANNELS, OUTPUTS), tl.float32)
    bias = tl.zeros((OUTPUTS,), tl.float32)
    for start in range(first, tl.minimum(first + chunk, positions), BLOCK):
        position = start + tl.arange(0, BLOCK)
        inside = (position < positions)[:, None]
        row, column = position // side % side, position % side
        corner = position // (side * side) * (SIDE * SIDE) + 2 * row * SIDE + 2 * column
        corner += tap // 3 * SIDE + tap % 3
        at = position[:, None] * OUTPUTS + output[None, :]
        gradient = tl.load(upstream + at, mask=inside, other=0.0)
        which = tl.load(winner + at, mask=inside, other=4)
        for window in tl.static_range(4):
            pixel = corner + window // 2 * SIDE + window % 2
            pixels = tl.load(x + pixel[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0)
            own = tl.where(which == window, gradient, tl.zeros_like(gradient))
            total = tl.dot(tl.trans(pixels), own, total)
        if tap == 0:
            bias += tl.sum(tl.where(which < 4, gradient, tl.zeros_like(gradient)).to(tl.float32), axis=0)
    at = weight_gradient + output[None, :] * (9 * CHANNELS) + tap * CHANNELS + channel[:, None]
    tl.atomic_add(at, total, sem="relaxed")
    if tap == 0:
        tl.atomic_add(bias_gradient + output, bias, sem="relaxed")


def second_weight_gradient(
    x: torch.Tensor,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    weight_gradient: torch.Tensor,
    bias_gradient: torch.Tensor,
) -> None:
    """Add the second layer's gradients to ``weight_gradient`` ``(D, 3, 3, C)`` and ``bias_gradient``, float32.

    ``upstream`` is the gradient of ``second_pooled``'s first result, ``winner`` its second.
    """
    if not runs_triton(x):
        weight, bias = weight_gradient_reference(x, upstream, winner, 3)
        weight_gradient += weight
        bias_gradient += bias
        return
    side, channels = x.shape[2:]
    positions = upstream.shape[:3].numel()
    workers = max(1, programs(x, 2) // 9)  # each takes its share of the positions, for one tap of nine
    chunk = triton.cdiv(triton.cdiv(positions, workers), BLOCK) * BLOCK
    _second_weight[(triton.cdiv(positions, chunk), 9)](
        x, upstream, winner, weight_gradient, bias_gradient, positions, chunk,
        SIDE=side, CHANNELS=channels, OUTPUTS=upstream.shape[3], BLOCK=BLOCK,
    )  # fmt: skip


# Back to the first layer


@triton.jit
def _tap_back(weight, number, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr):
    """One tap of nine as the right side of a product that goes back: ``(OUTPUTS, CHANNELS)``."""
    channel, output = tl.arange(0, CHANNELS)[None, :], tl.arange(0, OUTPUTS)[:, None]
    return tl.load(weight + output * (9 * CHANNELS) + number * CHANNELS + channel)


@triton.jit
def _first_gradient(
    images, first_winner, upstream, winner, weight, weight_gradient, bias_gradient, positions,
    MEAN: tl.constexpr, STD: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    side: tl.constexpr = (29 - SIZE) // 2
    half: tl.constexpr = (side - 2) // 2
    channel, output = tl.arange(0, CHANNELS)[None, :], tl.arange(0, OUTPUTS)[None, :]
    total = tl.zeros((TAPS, CHANNELS), tl.float32)
    bias = tl.zeros((CHANNELS,), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, BLOCK), tl.num_programs(0)):
        position = tile * BLOCK + tl.arange(0, BLOCK)  # of a pooled value of the first layer
        inside = position < positions
        sample, row, column = position // (side * side), position // side % side, position % side
        below = tl.zeros((BLOCK, CHANNELS), tl.float32)  # its gradient: it went into nine outputs of the second layer
        for tap in tl.static_range(9):
            y, z = row - tap // 3, column - tap % 3
            there = inside & (y >= 0) & (y < 2 * half) & (z >= 0) & (z < 2 * half)
            at = (((sample * half + y // 2) * half + z // 2) * OUTPUTS)[:, None] + output
            gradient = tl.load(upstream + at, mask=there[:, None], other=0.0)
            which = tl.load(winner + at, mask=there[:, None], other=4)
            own = tl.where(which == (y % 2 * 2 + z % 2)[:, None], gradient, tl.zeros_like(gradient))
            below = tl.dot(own, _tap_back(weight, tap, CHANNELS, OUTPUTS), below)
        which = tl.load(first_winner + position[:, None] * CHANNELS + channel, mask=inside[:, None], other=4)
        bias += tl.sum(tl.where(which < 4, below, 0.0), axis=0)
        corner = images + sample * 784 + 2 * row * 28 + 2 * column
        for window in tl.static_range(4):
            narrow = upstream.dtype.element_ty
            seen = _bytes(corner + window // 2 * 28 + window % 2, inside, SIZE, TAPS).to(narrow)
            total = tl.dot(tl.trans(seen), tl.where(which == window, below, 0.0).to(narrow), total)
    pixels = (total / 255 - MEAN * bias[None, :]) / STD  # normalised only now: the sum is linear in the bytes
    tap = tl.arange(0, TAPS)[:, None]
    at = weight_gradient + channel * (SIZE * SIZE) + tap
    tl.atomic_add(at, pixels, mask=tap < SIZE * SIZE, sem="relaxed")
    tl.atomic_add(bias_gradient + tl.arange(0, CHANNELS), bias, sem="relaxed")


def first_gradient(
    images: torch.Tensor,
    first_winner: torch.Tensor,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    weight: torch.Tensor,
    weight_gradient: torch.Tensor,
    bias_gradient: torch.Tensor,
) -> None:
    """Add the first layer's gradients to ``weight_gradient`` ``(C, k, k, 1)`` and ``bias_gradient``, float32.

    ``first_winner`` is ``first_pooled``'s second result; the next three are the second layer's: the gradient of its
    pooled values, its winners, its weight.
    """
    if not runs_triton(images):
        below = data_gradient_reference(upstream, winner, weight)
        pixels = normalise(images).permute(0, 2, 3, 1).to(below.dtype)
        found = weight_gradient_reference(pixels, below, first_winner, weight_gradient.shape[1])
        weight_gradient += found[0]
        bias_gradient += found[1]
        return
    positions = first_winner.shape[:3].numel()
    grid = (min(triton.cdiv(positions, BLOCK), programs(images, 4)),)
    _first_gradient[grid](
        images, first_winner, upstream, winner, weight, weight_gradient, bias_gradient, positions,
        MEAN=MEAN, STD=STD, SIZE=weight_gradient.shape[1], CHANNELS=len(weight_gradient), OUTPUTS=upstream.shape[3],
        TAPS=TAPS, BLOCK=BLOCK, num_stages=1,
    )  # fmt: skip
