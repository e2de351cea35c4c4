"""How is a whole epoch of digits drawn, shifted and put in order in one launch? One pass over 47 MB of bytes."""

import torch

from labkit.kernels.triton_or_not import runs_triton, tl, triton


def shifted_reference(images: torch.Tensor, order: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    place = torch.arange(28, device=images.device)
    rows, columns = (place[None, :] - by[:, axis : axis + 1] for axis in (0, 1))  # (N, 28): where a pixel comes from
    inside = ((rows >= 0) & (rows < 28))[:, :, None] & ((columns >= 0) & (columns < 28))[:, None, :]
    rows, columns = rows.clamp(0, 27)[:, :, None], columns.clamp(0, 27)[:, None, :]
    return torch.where(inside, images[order[:, None, None], rows, columns], 0)


@triton.jit
def _shifted(images, order, by, out, pixels, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < pixels
    sample, pixel = at // 784, at % 784
    image = tl.load(order + sample, mask=inside, other=0)
    row = pixel // 28 - tl.load(by + 2 * sample, mask=inside, other=0)
    column = pixel % 28 - tl.load(by + 2 * sample + 1, mask=inside, other=0)
    there = inside & (row >= 0) & (row < 28) & (column >= 0) & (column < 28)
    byte = tl.load(images + image * 784 + row * 28 + column, mask=there, other=0)
    tl.store(out + at, byte, mask=inside)


def shifted(images: torch.Tensor, order: torch.Tensor, by: torch.Tensor, out: torch.Tensor) -> None:
    """``images[order]``, each moved ``by`` so many pixels down and right, into ``out``; what moves in is black.

    ``images`` uint8 ``(M, 28, 28)``, ``order`` int64 ``(N,)``, ``by`` int64 ``(N, 2)``, ``out`` uint8 ``(N, 28, 28)``.
    """
    if not runs_triton(images):
        out.copy_(shifted_reference(images, order, by))
        return
    pixels, block = out.numel(), 1024
    _shifted[(triton.cdiv(pixels, block),)](images, order, by, out, pixels, BLOCK=block)
