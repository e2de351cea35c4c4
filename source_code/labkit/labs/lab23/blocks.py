"""What do block formats lose? Numbers rounded to them and back, in plain PyTorch, on any device: no Blackwell needed.

Rules: for the MX formats the OCP Microscaling Formats Specification 1.0 (2023): 32 numbers share a power of two, kept
in a byte (E8M0), and what is too large after that is clipped. For NVFP4 NVIDIA's description: 16 numbers share a scale
in E4M3, and the whole tensor one in FP32. E2M1, the four bits of both, holds 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
negatives.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch

from labkit.kernels.float8 import E4M3, quantised
from stepbudget.show.table import Table, table

E4M3_MAX, E2M1_MAX = 448.0, 6.0
_STEPS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_BETWEEN = (_STEPS[1:] + _STEPS[:-1]) / 2
_EVEN = torch.tensor([False, True, False, True, False, True, False])  # exactly between two: is the upper one even?


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """The nearest E4M3 numbers, at most 448 in size."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3).float()


def to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest E2M1 numbers, at most 6 in size; ties to the even one."""
    size = x.abs().contiguous()
    lower = torch.bucketize(size, _BETWEEN.to(x.device))  # a tie counts as below
    tie = lower.clamp(max=len(_BETWEEN) - 1)
    up = (size == _BETWEEN.to(x.device)[tie]) & _EVEN.to(x.device)[tie]
    return _STEPS.to(x.device)[lower + up.long()].copysign(x)


def mx(x: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor], top: int, block: int = 32) -> torch.Tensor:
    """``x`` as an MX format has it: blocks along the last dimension; ``top``: exponent of the format's largest number.

    ValueError where the last dimension is no multiple of ``block``.
    """
    parts = blocks_of(x, block)
    largest = parts.abs().amax(dim=-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1 - top
    scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(-127, 127))
    return torch.where(largest > 0, rounded(parts / scale) * scale, 0.0).view_as(x)


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """MXFP8 with E4M3 numbers: 8.25 bits a number."""
    return mx(x, to_e4m3, top=8)


def mxfp4(x: torch.Tensor) -> torch.Tensor:
    """MXFP4: 4.25 bits a number."""
    return mx(x, to_e2m1, top=2)


def nvfp4(x: torch.Tensor, block: int = 16) -> torch.Tensor:
    """NVFP4: 4.5 bits a number; blocks along the last dimension, ValueError where it is no multiple of ``block``."""
    parts = blocks_of(x, block)
    largest = parts.abs().amax(dim=-1, keepdim=True)
    whole = largest.max().clamp(min=1e-30) / (E2M1_MAX * E4M3_MAX)
    scale = to_e4m3(largest / E2M1_MAX / whole) * whole
    return torch.where(scale > 0, to_e2m1(parts / scale.clamp(min=1e-38)) * scale, 0.0).view_as(x)


def blocks_of(x: torch.Tensor, block: int) -> torch.Tensor:
    if x.shape[-1] % block:
        raise ValueError(f"the last dimension is {x.shape[-1]}, no multiple of {block}")
    return x.float().unflatten(-1, (-1, block))


def per_tensor(x: torch.Tensor, by_row: bool = False) -> torch.Tensor:
    """E4M3 with one scale for all of it, or for each row, as ``float8`` has it."""
    small, scale = quantised(x, E4M3, by_row)
    return small.float() * scale


FORMATS: dict[str, tuple[float, Callable[[torch.Tensor], torch.Tensor]]] = {  # name → bits a number, there and back
    "BF16": (16.0, lambda x: x.bfloat16().float()),
    "FP8 E4M3, one scale": (8.0, per_tensor),
    "FP8 E4M3, a scale a row": (8.0, lambda x: per_tensor(x, by_row=True)),
    "MXFP8": (8.25, mxfp8),
    "MXFP4": (4.25, mxfp4),
    "NVFP4": (4.5, nvfp4),
}


def samples(rows: int = 256, columns: int = 512) -> dict[str, torch.Tensor]:
    """Matrices as they occur: like weights, with a column in a hundred that is large, and gradients of many sizes."""
    torch.manual_seed(1)
    normal, columns_size = torch.randn(rows, columns), torch.ones(columns)
    columns_size[::100] = 100.0
    wide = torch.randn(rows, columns) * torch.exp(4 * torch.randn(rows, columns))
    return {"normal": normal, "outlier columns": torch.randn(rows, columns) * columns_size, "many sizes": wide}


def errors(given: dict[str, torch.Tensor], own_mxfp8: Callable[[torch.Tensor], torch.Tensor] = mxfp8) -> Table:
    """A row a format, of ``samples``: bits, and shares in per cent; MXFP8 as the reader's own function has it.

    ``error``: how far the median number is off, of its own size; ``zero``: how many numbers of each became zero.
    """
    rows, x = [], given["normal"]
    for name, (bits, usual) in FORMATS.items():
        there_and_back = own_mxfp8 if name == "MXFP8" else usual
        row = {"format": name, "bits a number": bits}
        row["normal: error %"] = 100 * float(((there_and_back(x) - x).abs() / x.abs()).median())
        for what, one in given.items():
            row[f"{what}: zero %"] = 100 * float(((there_and_back(one) == 0) & (one != 0)).float().mean())
        rows.append(row)
    frame = pd.DataFrame(rows)
    formats = {"bits a number": "{:g}"} | dict.fromkeys(frame.columns[2:], "{:.1f}")
    return table(frame, "Rounded and back: the median of the relative errors, and what became zero", formats)


def zeros(found: Table) -> tuple[dict[str, float], dict[str, float]]:
    """Of ``errors``, by format: % that became zero among numbers of many sizes, and beside large columns."""
    frame = found.frame.set_index("format")
    return frame["many sizes: zero %"].to_dict(), frame["outlier columns: zero %"].to_dict()
