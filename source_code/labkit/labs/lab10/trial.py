"""Does the matrix product run here, in Triton itself? On a GPU compiled, elsewhere in Triton's interpreter.

Triton reads ``TRITON_INTERPRET`` when it is imported and when it runs a kernel. So it is imported here, and the
variable is set only while that lasts: scripts that are started later are not to be interpreted.
"""

import os
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch

from labkit.training import machine


def _on_gpu() -> bool:
    return machine.gpu_name() is not None and torch.cuda.is_available()


def _interpreting() -> AbstractContextManager:
    """Where there is no GPU, with Triton's interpreter switched on."""
    return patch.dict(os.environ, {} if _on_gpu() else {"TRITON_INTERPRET": "1"})


with _interpreting():
    from labkit.kernels.matmul import error_bound, matmul
    from labkit.kernels.triton_or_not import INTERPRETED, triton

SIZES = [(70, 45, 33), (1, 1, 1), (96, 64, 32)]  # rows, inner, columns


def trial() -> str:
    """One line: where it ran, and its largest error as a share of the bound. ValueError where it exceeds that."""
    if not hasattr(triton, "autotune"):
        return "Triton is not installed here: it comes with PyTorch's CUDA builds for Linux. The pretend GPU has to do."
    device = "cuda" if _on_gpu() else "cpu"
    if device == "cpu" and not INTERPRETED:
        return (
            "Triton was imported before, to compile, and there is no GPU: restart the kernel, and run this cell first."
        )
    where = "compiled for this GPU" if device == "cuda" else "in Triton's interpreter, on the CPU"
    torch.manual_seed(0)
    worst = 0.0
    for rows, inner, columns in SIZES:
        a = torch.randn(rows, inner, device=device, dtype=torch.float16)
        b = torch.randn(inner, columns, device=device, dtype=torch.float16)
        with _interpreting():
            found = matmul(a, b)
        error = (found.double() - a.double() @ b.double()).abs()
        worst = max(worst, float((error / error_bound(a, b)).max()))
    if worst > 1:
        raise ValueError(f"{where}, the product is {worst:.3g} times as far off as its bound")
    return f"{where}: {len(SIZES)} products, the largest error is {worst:.2f} of its bound"
