"""Which phase of the training step does what? NVTX ranges, with the GPU work that each of them launched.

A kernel belongs to the phase in which its *launch call* was made, in whatever thread of the process: PyTorch's autograd
launches the backward pass from a thread of its own, while the main thread waits inside its ``backward`` range.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.threads import begins_in
from stepbudget.report import Report
from stepbudget.window import Window

OUTSIDE = "(outside any phase)"


def phases(report: Report, window: Window | None = None, by: str = "process") -> pd.DataFrame:
    """One row a phase within the window (default: the training range), in order of first appearance.

    Columns: ``phase``, ``count`` of ranges, ``cpu_ms`` between their starts and ends, ``kernels`` launched from inside,
    and those kernels' ``gpu_ms``. The last row holds what was launched outside any phase. Of nested ranges, a kernel
    belongs to the innermost; ranges of single operators (PyTorch's emit_nvtx) are no phases where there are others.

    ``by="thread"`` counts only kernels launched by the thread that opened the range: the answer that misses autograd.
    """
    window = window or report.window()
    ranges = phase_ranges(report, window)
    kernels = report.kernels
    kernels = kernels[(kernels["api_start"] >= window.start) & (kernels["api_start"] < window.end)]
    if window.process is not None:
        kernels = kernels[kernels["process"] == window.process]
    launched_at = kernels["api_start"].to_numpy(dtype=np.int64)
    names = np.full(len(kernels), OUTSIDE, dtype=object)
    for process, own_ranges in ranges.groupby("process"):
        own = (kernels["process"] == process).to_numpy()
        names[own] = phase_at(own_ranges, launched_at[own])
    if by == "thread":
        threads = kernels["api_thread"].to_numpy()
        names = np.full(len(kernels), OUTSIDE, dtype=object)
        for thread, own_ranges in ranges.groupby("thread"):
            own = threads == thread
            names[own] = phase_at(own_ranges, launched_at[own])
    work = pd.DataFrame({"phase": names, "ns": (kernels["end"] - kernels["start"]).to_numpy()})
    launched = work.groupby("phase")["ns"].agg(["count", "sum"])
    rows = []
    for name, group in ranges.groupby("name", sort=False):
        cpu_ns = int((group["end"] - group["start"]).sum())
        count, ns = launched.loc[name] if name in launched.index else (0, 0)
        rows.append((name, len(group), cpu_ns / 1e6, int(count), ns / 1e6))
    if OUTSIDE in launched.index:
        count, ns = launched.loc[OUTSIDE]
        rows.append((OUTSIDE, 0, np.nan, int(count), ns / 1e6))
    return pd.DataFrame(rows, columns=["phase", "count", "cpu_ms", "kernels", "gpu_ms"])


def ranges_inside(report: Report, window: Window) -> pd.DataFrame:
    """The NVTX ranges that begin within the window, cut at its end, without the range that is the window itself.

    For a window that is a range itself: those of its process.
    """
    ranges = report.ranges
    itself = (ranges["start"] == window.start) & (ranges["end"] == window.end)
    ranges = ranges[begins_in(ranges, window) & ~itself].copy()
    ranges["end"] = ranges["end"].clip(upper=window.end)
    return ranges


def phase_ranges(report: Report, window: Window) -> pd.DataFrame:
    """The ranges inside the window that name phases: all but those of single operators, unless there are no others."""
    ranges = ranges_inside(report, window)
    operators = ranges["name"] != ranges["raw_name"]  # emit_nvtx adds to the names that it makes
    return ranges if operators.all() else ranges[~operators]


def phase_at(ranges: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """The innermost range at each time (nanoseconds), ``"(outside any phase)"`` where none runs."""
    found = intervals.innermost_at(ranges[["start", "end", "name"]].itertuples(index=False, name=None), times)
    return np.array([OUTSIDE if name is None else name for name in found], dtype=object)
