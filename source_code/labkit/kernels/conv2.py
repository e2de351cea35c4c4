"""Where do 21 of 24 million operations a sample go, and how is their result never written? The second convolution.

Its output, 75 MB a step, is only ever pooled. So forward, a program computes the four outputs of a pooling window
side by side and writes the largest; with each it writes one byte, the *winner*: which of the four it was (0 to 3), or
4 where ReLU or dropout put it out. Backward, that byte is enough to know the gradient of all four.

Pooling first, then bias and ReLU, is the same function: both are monotonic. It is a quarter of the work.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.triton_or_not import programs, runs_triton, shared_memory, tl, triton
from labkit.training.data import MEAN, STD, normalise

OUT = 4  # a winner that is no winner
KEPT = 0.75  # of dropout1
HOLDING = 114_696  # bytes of shared memory in which a program keeps all taps beside 64 positions' pixels


def _tile(tensor: torch.Tensor) -> dict:
    """How a program's share of the work is laid out on this tensor's GPU.

    Compute capability 8.6, 8.9 and 12.0 (GeForce, RTX, L4) has too little shared memory to keep the taps there. They
    are then read at each use, from L2, and fewer positions among more warps leave registers for them.
    """
    held = shared_memory(tensor) >= HOLDING
    return {"HELD": held, "BLOCK": 64, "num_warps": 4} if held else {"HELD": held, "BLOCK": 32, "num_warps": 8}


# Forward


def conv2_pool_reference(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch; ``keep``, bool ``(N, 12, 12, 64)``, is dropout's choice (None: no dropout)."""
    output = F.conv2d(hidden.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2))
    windows = output.unflatten(3, (12, 2)).unflatten(2, (12, 2)).permute(0, 2, 4, 1, 3, 5).flatten(4)
    best, winner = windows.max(dim=4)
    value = best + bias
    alive = value > 0
    if keep is not None:
        alive = alive & keep
        value = value / KEPT
    return value * alive, torch.where(alive, winner, OUT).to(torch.uint8)


@triton.jit
def _row_of_taps(weight, row: tl.constexpr, held: tl.constexpr):
    """Three taps as the right side of a product: ``(4 pixels x 32 channels in, 64 channels out x 2 outputs)``.

    The left output sees pixels 0 to 2, the right one pixels 1 to 3; the weight of the fourth is zero. ``held``: read
    once and kept in shared memory; a volatile load is made anew at each use.
    """
    inputs, outputs = tl.arange(0, 128)[:, None], tl.arange(0, 128)[None, :]
    tap = inputs // 32 - outputs % 2
    at = outputs // 2 * 288 + (row * 3 + tap) * 32 + inputs % 32
    return tl.load(weight + at, mask=(tap >= 0) & (tap < 3), other=0.0, volatile=not held)


@triton.jit
def _kept(seed, position, channel):
    """Dropout's choice for 64 channels of a position: two of Philox's 128 random bits each, out if both are 0."""
    a, b, c, d = tl.randint4x(seed, position)
    first = tl.where(channel < 16, a[:, None], b[:, None])
    second = tl.where(channel < 48, c[:, None], d[:, None])
    word = tl.where(channel < 32, first, second)
    return ((word >> (channel % 16 * 2)) & 3) != 0


@triton.jit(do_not_specialize=["step"])
def _conv2_pool(
    hidden, weight, bias, seeds, pooled, winner, positions, step,
    DROPOUT: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    four_pixels, channel = tl.arange(0, 128)[None, :], tl.arange(0, 64)[None, :]
    bias = tl.load(bias + channel)
    if HELD:
        taps0 = _row_of_taps(weight, 0, True)
        taps1 = _row_of_taps(weight, 1, True)
        taps2 = _row_of_taps(weight, 2, True)
    for tile in range(tl.program_id(0), tl.cdiv(positions, BLOCK), tl.num_programs(0)):
        position = tile * BLOCK + tl.arange(0, BLOCK)
        inside = (position < positions)[:, None]
        sample, row, column = position // 144, position % 144 // 12, position % 12
        corner = hidden + (((sample * 26 + 2 * row) * 26 + 2 * column) * 32)[:, None]
        upper = tl.zeros((BLOCK, 128), tl.float32)  # the window's upper two outputs, side by side in each channel
        lower = tl.zeros((BLOCK, 128), tl.float32)
        pixels = tl.load(corner + four_pixels, mask=inside, other=0.0)
        upper = tl.dot(pixels, taps0 if HELD else _row_of_taps(weight, 0, False), upper)
        pixels = tl.load(corner + 832 + four_pixels, mask=inside, other=0.0)  # 26 x 32 elements on: the row below
        upper = tl.dot(pixels, taps1 if HELD else _row_of_taps(weight, 1, False), upper)
        lower = tl.dot(pixels, taps0 if HELD else _row_of_taps(weight, 0, False), lower)
        pixels = tl.load(corner + 1664 + four_pixels, mask=inside, other=0.0)
        upper = tl.dot(pixels, taps2 if HELD else _row_of_taps(weight, 2, False), upper)
        lower = tl.dot(pixels, taps1 if HELD else _row_of_taps(weight, 1, False), lower)
        pixels = tl.load(corner + 2496 + four_pixels, mask=inside, other=0.0)
        lower = tl.dot(pixels, taps2 if HELD else _row_of_taps(weight, 2, False), lower)
        output0, output1 = tl.split(tl.reshape(upper, (BLOCK, 64, 2)))
        output2, output3 = tl.split(tl.reshape(lower, (BLOCK, 64, 2)))
        best = tl.maximum(tl.maximum(output0, output1), tl.maximum(output2, output3))
        which = tl.where(output0 == best, 0, tl.where(output1 == best, 1, tl.where(output2 == best, 2, 3)))
        value = best + bias
        alive = value > 0
        if DROPOUT:
            alive = alive & _kept(tl.load(seeds + step), position, channel)
            value = value / 0.75
        at = position[:, None] * 64 + channel
        tl.store(pooled + at, tl.where(alive, value, 0.0).to(pooled.dtype.element_ty), mask=inside)
        tl.store(winner + at, tl.where(alive, which, 4).to(tl.uint8), mask=inside)


def conv2_pool(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, seeds: torch.Tensor | None = None, step: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """``dropout1(relu(max_pool2d(conv2(hidden), 2)))`` and the winners.

    ``hidden`` ``(N, 26, 26, 32)``, ``weight`` ``(64, 3, 3, 32)``, BF16 both, ``bias`` float32 ``(64,)``. Dropout with
    the random numbers that follow from ``seeds[step]`` (int64), or none where ``seeds`` is None. Returns the pooled
    values, in ``hidden``'s type, and the winners, uint8, ``(N, 12, 12, 64)`` both.
    """
    count = len(hidden)
    if not runs_triton(hidden):
        keep = None if seeds is None else _drawn(seeds[step], (count, 12, 12, 64), KEPT)
        return conv2_pool_reference(hidden, weight, bias, keep)
    pooled = torch.empty(count, 12, 12, 64, dtype=hidden.dtype, device=hidden.device)
    winner = torch.empty(count, 12, 12, 64, dtype=torch.uint8, device=hidden.device)
    positions, tile = count * 144, _tile(hidden)
    random = hidden if seeds is None else seeds
    grid = (min(triton.cdiv(positions, tile["BLOCK"]), programs(hidden, 2)),)
    _conv2_pool[grid](
        hidden, weight, bias, random, pooled, winner, positions, step, DROPOUT=seeds is not None,
        num_stages=1, **tile,
    )  # fmt: skip
    return pooled, winner


def _drawn(seed: torch.Tensor, shape: tuple[int, ...], kept: float) -> torch.Tensor:
    """Dropout's choice on the CPU: True with probability ``kept``."""
    generator = torch.Generator().manual_seed(int(seed))
    return torch.rand(shape, generator=generator) < kept


# Backward


def spread_reference(upstream: torch.Tensor, winner: torch.Tensor, kept: float = KEPT) -> torch.Tensor:
    """The gradient of the convolution's output ``(N, 24, 24, 64)``, from that of the pooled one ``(N, 12, 12, 64)``."""
    places = torch.arange(4, device=winner.device)
    windows = torch.where(winner[..., None] == places, upstream[..., None] / kept, 0.0)  # (N, 12, 12, 64, 4)
    count = len(upstream)
    return windows.view(count, 12, 12, 64, 2, 2).permute(0, 1, 4, 2, 5, 3).reshape(count, 24, 24, 64)


def conv2_weight_gradient_reference(
    hidden: torch.Tensor, upstream: torch.Tensor, winner: torch.Tensor, kept: float = KEPT
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch: gradients of weight ``(64, 3, 3, 32)`` and bias ``(64,)``."""
    output = spread_reference(upstream, winner, kept)
    rows = [hidden[:, y : y + 24, x : x + 24] for y in range(3) for x in range(3)]
    taps = [torch.einsum("nyxo,nyxi->oi", output, row) for row in rows]
    return torch.stack(taps, dim=1).view(64, 3, 3, 32), output.sum((0, 1, 2))


@triton.jit
def _conv2_weight_gradient(
    hidden, upstream, winner, weight_gradient, bias_gradient, positions, chunk, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    tap_row = tl.program_id(1)
    first = tl.program_id(0) * chunk
    channel = tl.arange(0, 64)
    four_pixels = tl.arange(0, 128)  # neighbours in a row, 32 channels each: contiguous in memory
    left = tl.zeros((128, 64), tl.float32)  # for the outputs in the window's left column, and in its right one
    right = tl.zeros((128, 64), tl.float32)
    bias = tl.zeros((64,), tl.float32)
    for start in range(first, tl.minimum(first + chunk, positions), BLOCK):
        position = start + tl.arange(0, BLOCK)
        inside = (position < positions)[:, None]
        sample, row, column = position // 144, position % 144 // 12, position % 12
        at = position[:, None] * 64 + channel[None, :]
        gradient = tl.load(upstream + at, mask=inside, other=0.0)
        which = tl.load(winner + at, mask=inside, other=4)
        for y in tl.static_range(2):
            corner = hidden + (((sample * 26 + 2 * row + y + tap_row) * 26 + 2 * column) * 32)[:, None]
            pixels = tl.trans(tl.load(corner + four_pixels[None, :], mask=inside, other=0.0))
            zero = tl.zeros_like(gradient)
            left = tl.dot(pixels, tl.where(which == 2 * y, gradient, zero), left)
            right = tl.dot(pixels, tl.where(which == 2 * y + 1, gradient, zero), right)
        if tap_row == 0:
            bias += tl.sum(tl.where(which < 4, gradient, 0.0).to(tl.float32), axis=0)
    # A left output sees pixels 0 to 2 through taps 0 to 2; a right one sees pixels 1 to 3 through them.
    at = weight_gradient + channel[:, None] * 288 + tap_row * 96 + four_pixels[None, :]
    tl.atomic_add(at, tl.trans(left) * SCALE, mask=four_pixels[None, :] < 96, sem="relaxed")
    tl.atomic_add(at - 32, tl.trans(right) * SCALE, mask=four_pixels[None, :] >= 32, sem="relaxed")
    if tap_row == 0:
        tl.atomic_add(bias_gradient + channel, bias * SCALE, sem="relaxed")


def conv2_weight_gradient(
    hidden: torch.Tensor,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    weight_gradient: torch.Tensor,
    bias_gradient: torch.Tensor,
    kept: float = KEPT,
) -> None:
    """Add the gradients of conv2's weight and bias to ``weight_gradient`` and ``bias_gradient``, float32.

    ``upstream`` is the gradient of ``conv2_pool``'s first result, ``winner`` its second; ``kept`` is 1 where that was
    without dropout. Programs add their shares
    with atomics, so the order of the additions, and with it the last digits, changes from run to run.
    """
    if not runs_triton(hidden):
        weight, bias = conv2_weight_gradient_reference(hidden, upstream, winner, kept)
        weight_gradient += weight
        bias_gradient += bias
        return
    positions, block = len(hidden) * 144, 64
    workers = programs(hidden, 2) // 3  # each takes its share of the positions, for one row of taps of three
    chunk = triton.cdiv(triton.cdiv(positions, workers), block) * block
    grid = (triton.cdiv(positions, chunk), 3)
    _conv2_weight_gradient[grid](
        hidden, upstream, winner, weight_gradient, bias_gradient, positions, chunk, SCALE=1 / kept, BLOCK=block,
        num_stages=2,
    )  # fmt: skip


def conv1_gradient_reference(
    images: torch.Tensor,
    order: torch.Tensor,
    hidden: torch.Tensor,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    weight: torch.Tensor,
    kept: float = KEPT,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch: gradients of conv1's weight ``(32, 1, 3, 3)`` and bias ``(32,)``."""
    output = spread_reference(upstream, winner, kept).permute(0, 3, 1, 2)
    below = F.conv_transpose2d(output, weight.permute(0, 3, 1, 2))
    below = below * (hidden.permute(0, 3, 1, 2) > 0)
    pixels = normalise(images[order]).to(below.dtype)
    taps = [(below * pixels[..., y : y + 26, x : x + 26]).sum((0, 2, 3)) for y in range(3) for x in range(3)]
    return torch.stack(taps, dim=1).view(32, 1, 3, 3), below.sum((0, 2, 3))


@triton.jit
def _taps_back(weight, row: tl.constexpr, x: tl.constexpr, held: tl.constexpr):
    """From the output in column ``x`` of four back to two pixels: ``(64 channels out, 2 pixels x 32 channels in)``.

    Where a pixel was not seen, the weight is zero. ``held``: as in ``_row_of_taps``.
    """
    outputs, inputs = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    tap = 2 - x + inputs // 32
    at = outputs * 288 + (row * 3 + tap) * 32 + inputs % 32
    return tl.load(weight + at, mask=(tap >= 0) & (tap < 3), other=0.0, volatile=not held)


@triton.jit
def _conv1_share(total, below, hidden, corner, position, inside):
    """Add two neighbouring pixels' share to conv1's gradients: ``(16, BLOCK)`` by ``(BLOCK, 64)``.

    Of the 16 rows, twelve are the bytes under the taps of either pixel, 3 x 4 (whole numbers up to 255 are exact in
    BF16), and one is 1, for the bias.
    """
    byte_of, channel = tl.arange(0, 16)[None, :], tl.arange(0, 64)[None, :]
    alive = tl.load(hidden + position[:, None] * 32 + channel, mask=inside, other=0.0) > 0
    byte = tl.load(corner[:, None] + byte_of // 4 * 28 + byte_of % 4, mask=inside & (byte_of < 12), other=0)
    byte = tl.where(byte_of == 12, 1, byte.to(tl.int32))
    below = tl.where(alive, below, 0.0).to(hidden.dtype.element_ty)
    return tl.dot(tl.trans(byte.to(hidden.dtype.element_ty)), below, total)


@triton.jit
def _conv1_gradient(
    images, order, hidden, upstream, winner, weight, weight_gradient, bias_gradient, squares,
    MEAN: tl.constexpr, STD: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((16, 64), tl.float32)
    channel_out = tl.arange(0, 64)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(squares, BLOCK), tl.num_programs(0)):
        square = tile * BLOCK + tl.arange(0, BLOCK)  # 2 x 2 pixels of the hidden layer, 13 x 13 a sample
        inside = square < squares
        sample, row, column = square // 169, square % 169 // 13, square % 13
        upper = tl.zeros((BLOCK, 64), tl.float32)  # the square's upper two pixels, 32 channels each
        lower = tl.zeros((BLOCK, 64), tl.float32)
        # The square's pixels went into 4 x 4 outputs, those of 2 x 2 pooling windows.
        for y in tl.static_range(4):
            for x in tl.static_range(4):
                window_row, window_column = row - 1 + y // 2, column - 1 + x // 2
                there = (window_row >= 0) & (window_row < 12) & (window_column >= 0) & (window_column < 12) & inside
                at = (((sample * 12 + window_row) * 12 + window_column) * 64)[:, None] + channel_out
                gradient = tl.load(upstream + at, mask=there[:, None], other=0.0)
                which = tl.load(winner + at, mask=there[:, None], other=4)
                output = tl.where(which == y % 2 * 2 + x % 2, gradient, tl.zeros_like(gradient))
                if y < 3:
                    upper = tl.dot(output, _taps_back(weight, 2 - y, x, HELD), upper)
                if y > 0:
                    lower = tl.dot(output, _taps_back(weight, 3 - y, x, HELD), lower)
        position = (sample * 26 + 2 * row) * 26 + 2 * column
        image = tl.load(order + sample, mask=inside, other=0)
        corner = images + image * 784 + 2 * row * 28 + 2 * column
        total = _conv1_share(total, upper, hidden, corner, position, inside[:, None])
        total = _conv1_share(total, lower, hidden, corner + 28, position + 26, inside[:, None])
    total = total / KEPT
    byte_of, channel = tl.arange(0, 16)[:, None], tl.arange(0, 64)
    bias = tl.sum(tl.where(byte_of == 12, total, 0.0), axis=0)
    pixels = (total / 255 - MEAN * bias[None, :]) / STD  # normalised only now: the sum is linear in the bytes
    tap = byte_of % 4 - channel[None, :] // 32
    at = weight_gradient + channel[None, :] % 32 * 9 + byte_of // 4 * 3 + tap
    tl.atomic_add(at, pixels, mask=(byte_of < 12) & (tap >= 0) & (tap < 3), sem="relaxed")
    tl.atomic_add(bias_gradient + channel % 32, bias, sem="relaxed")


def conv1_gradient(
    images: torch.Tensor,
    order: torch.Tensor,
    hidden: torch.Tensor,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    weight: torch.Tensor,
    weight_gradient: torch.Tensor,
    bias_gradient: torch.Tensor,
    kept: float = KEPT,
) -> None:
    """Add the gradients of conv1's weight and bias to ``weight_gradient`` and ``bias_gradient``, float32.

    The gradient of the hidden layer, which is conv2's data gradient, is needed for nothing else (images have no
    gradient), so it is used in registers and never written. ``weight`` is conv2's.
    """
    if not runs_triton(hidden):
        found = conv1_gradient_reference(images, order, hidden, upstream, winner, weight, kept)
        weight_gradient += found[0]
        bias_gradient += found[1]
        return
    squares, tile = len(hidden) * 169, _tile(hidden)
    grid = (min(triton.cdiv(squares, tile["BLOCK"]), programs(hidden, 2)),)
    _conv1_gradient[grid](
        images, order, hidden, upstream, winner, weight, weight_gradient, bias_gradient, squares,
        MEAN=MEAN, STD=STD, KEPT=kept, num_stages=1, **tile,
    )  # fmt: skip
