"""Do products run in slow kernels because their sizes do not fit? Told by the names of Tensor Core kernels.

The kernels that a GPU multiplies fastest with fetch 16 bytes at once, and on Hopper whole blocks of a matrix. They take
matrices whose lines begin at multiples of 16 bytes: 8 numbers in FP16 and BF16, 4 in TF32. For others the libraries
keep kernels that fetch fewer numbers at once, and say so in the name (kernel_names.ALIGNED). The Tensor Cores work
there too, and mostly wait.

What mending the sizes gains at most is the time of these kernels in which nothing else ran. The products themselves
remain, and their names do not tell how long they must take: on an H200 (cuBLAS of CUDA 13.0) products in 16 bits whose
sizes were next to 4096 took 2.8 to 6.2 times as long as one of 4096, and each of them ran in such a kernel.

Sources: CUTLASS, names of the library's operations; kernel names of cuBLAS, cuDNN and TensorRT in profiles; NVIDIA,
Matrix Multiplication Background User's Guide, "Tensor Core Requirements"; this repository's own measurement
(source_code/benchmarks/bench_shapes.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stepbudget import intervals, kernel_names
from stepbudget.ask import tensor_cores, threads
from stepbudget.ask.phases import named
from stepbudget.ask.work import work_of
from stepbudget.report import Report
from stepbudget.window import Window


@dataclass(frozen=True)
class Misaligned:
    """The Tensor Core kernels of a window whose names say that they fetch less than 16 bytes at once."""

    count: int
    gpu_ms: float  # on the GPU, in sum
    alone_ms: float  # of it with no other work beside: what mending the sizes gains at most
    least: int  # numbers that the most restricted of them fetches at once
    older_ms: float  # of gpu_ms in kernels that are written for an older generation of GPUs than this one
    older: tuple[int, int] | None  # the compute capability that most of these are written for
    capability: tuple[int, int] | None  # this GPU's; None: the report does not tell


def misaligned(report: Report, window: Window) -> Misaligned | None:
    """What of a window ran in kernels for sizes that do not fit; None where nothing did."""
    window = threads.about(report, window)
    work = threads.within(work_of(report.kernels, window.gpu), window)
    chosen = named(work["name"], kernel_names.is_misaligned)
    if not chosen.any():
        return None
    slow = work[chosen]
    others = [work[~chosen], *(work_of(table, window.gpu) for table in (report.graphs, report.copies, report.memsets))]
    alone = intervals.subtract(intervals.union(slow), intervals.union(*others))
    ms = (slow["end"].clip(upper=window.end) - slow["start"].clip(lower=window.start)) / 1e6
    own = tensor_cores.capability(report)
    kinds = pd.DataFrame({"ms": ms, "for": slow["name"].map(kernel_names.written_for)})
    older = kinds[[bool(own and made and made[0] < own[0]) for made in kinds["for"]]]
    return Misaligned(
        count=len(slow),
        gpu_ms=float(ms.sum()),
        alone_ms=intervals.total(intervals.clip(alone, window.start, window.end)) / 1e6,
        least=min(kernel_names.alignment(name) for name in slow["name"].unique()),
        older_ms=float(older["ms"].sum()),
        older=older.groupby("for")["ms"].sum().idxmax() if len(older) else None,
        capability=own,
    )
