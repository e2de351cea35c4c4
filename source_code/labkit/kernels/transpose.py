"""What do a shared memory's banks cost? A matrix transposed in CUDA C++, five ways, of which one is only a copy.

A warp's 32 threads read or write memory well if they touch neighbouring numbers. A transpose reads along rows and
writes along columns, so one side is scattered, unless a tile is turned in shared memory on the way. Shared memory has
32 *banks*, each of which answers one word of 4 bytes a clock: word ``w`` lies in bank ``w % 32``. Of a tile 32 wide, a
column lies in one bank, and its 32 reads queue. One column more, or another place for each word, and they do not.
"""

from pathlib import Path

import torch

from labkit.kernels import nvrtc

SIDE = 32  # of a tile: rows, columns, and threads of a warp
ROWS_AT_ONCE = 8  # a block is 32 x 8 threads: each moves four numbers
FORMS = ("copy", "direct", "tile", "padded", "swizzled")

FILE = Path(__file__).parent / "transpose.cu"
SOURCE = nvrtc.source(FILE)


def transpose(x: torch.Tensor, form: str = "padded") -> torch.Tensor:
    """``x.t()``, moved in memory, of an FP32 matrix ``(rows, columns)`` on a GPU; ``copy`` leaves it as it is.

    ``form``: one of FORMS. Raises ValueError for other matrices and forms.
    """
    if x.dim() != 2 or x.dtype != torch.float32 or not x.is_contiguous() or not x.is_cuda or x.numel() >= 2**31:
        raise ValueError("a contiguous FP32 matrix of under 2^31 numbers on a GPU is wanted")
    if form not in FORMS:
        raise ValueError(f"{form} is none of {', '.join(FORMS)}")
    rows, columns = x.shape
    out = torch.empty((rows, columns) if form == "copy" else (columns, rows), device=x.device)
    launch(x, out, form)
    return out


def flags(form: str) -> tuple[str, ...]:
    """The compiler's."""
    return f"-DFORM={form.upper()}", f"-DSIDE={SIDE}"


def launch(x: torch.Tensor, out: torch.Tensor, form: str) -> nvrtc.Kernel:
    """Start a block a tile; the compiled kernel."""
    rows, columns = x.shape
    with torch.cuda.device(x.device):
        kernel = nvrtc.compiled(SOURCE, "transpose", flags(form))
        kernel((-(-columns // SIDE), -(-rows // SIDE)), (SIDE, ROWS_AT_ONCE), x, out, rows, columns)
    return kernel
