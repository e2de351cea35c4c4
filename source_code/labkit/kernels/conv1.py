"""How does the first convolution avoid every pass over memory but one? It reads bytes and writes its ReLU.

With one input channel there is little work, 9 multiplications an output, and 44 MB to write: memory's roof is the
nearer one. (``hopper`` writes nothing, and so gives these products to Tensor Cores.) So one
kernel does all that stands between the bytes of the images and the second convolution, and keeps the rest in registers.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.triton_or_not import NARROW, runs_triton, tl, triton
from labkit.training.data import MEAN, STD, normalise

# A byte becomes a pixel by one multiplication and one addition: (byte / 255 - MEAN) / STD.
SCALE = tl.constexpr(1 / (255 * STD))
SHIFT = tl.constexpr(-MEAN / STD)


def conv1_relu_reference(
    images: torch.Tensor, order: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The same in plain PyTorch."""
    pixels = normalise(images[order]).to(weight.dtype)
    return F.relu(F.conv2d(pixels, weight, bias)).permute(0, 2, 3, 1).contiguous()


@triton.jit
def _conv1_relu(images, order, weight, bias, out, positions, BLOCK: tl.constexpr):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < positions
    row, column = position % 676 // 26, position % 26
    image = tl.load(order + position // 676, mask=inside, other=0)
    corner = images + image * 784 + row * 28 + column
    channel = tl.arange(0, 32)
    total = tl.zeros((BLOCK, 32), tl.float32) + tl.load(bias + channel)[None, :]
    for tap in tl.static_range(9):
        byte = tl.load(corner + tap // 3 * 28 + tap % 3, mask=inside, other=0)
        pixel = byte.to(tl.float32) * SCALE + SHIFT
        total += pixel[:, None] * tl.load(weight + channel * 9 + tap)[None, :]
    at = position[:, None] * 32 + channel[None, :]
    tl.store(out + at, tl.maximum(total, 0.0).to(out.dtype.element_ty), mask=inside[:, None])


def conv1_relu(images: torch.Tensor, order: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``relu(conv1(normalise(images[order])))``.

    ``images`` uint8 ``(M, 28, 28)``, ``order`` int64 ``(N,)``, ``weight`` ``(32, 1, 3, 3)`` and ``bias`` ``(32,)``
    float32; returns BF16 ``(N, 26, 26, 32)`` (in the weights' type on the CPU).
    """
    if not runs_triton(images):
        return conv1_relu_reference(images, order, weight, bias)
    out = torch.empty(len(order), 26, 26, 32, dtype=NARROW, device=images.device)
    positions, block = len(order) * 26 * 26, 128
    _conv1_relu[(triton.cdiv(positions, block),)](images, order, weight, bias, out, positions, BLOCK=block)
    return out
