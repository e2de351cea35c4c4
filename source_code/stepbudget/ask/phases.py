"""Which phase of the training step does what? NVTX ranges, with the GPU work that each of them launched.

A kernel belongs to the phase in which its *launch call* was made, in whatever thread of the process: PyTorch's autograd
launches the backward pass from a thread of its own, while the main thread waits inside its ``backward`` range.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask import threads
from stepbudget.errors import ReportError
from stepbudget.report import Report
from stepbudget.window import Window

OUTSIDE = "(outside any phase)"
BY = ("process", "thread")  # whose ranges a kernel may belong to
LONGEST_NAME = 200  # letters of a range's name that are looked at

# Ranges that are a step and say which: "ProfilerStep#12", "step 12", "Epoch 1 step 3/59", "train_iteration_7".
STEP = r"(?:profiler[\W_]?)?(?:step|iteration|iter|batch)"
NUMBERED = re.compile(rf"(?:.*(?<![A-Za-z]))?{STEP}[\W_]*\d+(?:\s*(?:/|of)\s*\d+)?\W?", re.IGNORECASE)


def phases(report: Report, window: Window | None = None, by: str = "process") -> pd.DataFrame:
    """One row a phase within the window (default: the training range), in order of first appearance.

    Columns: ``phase``, ``count`` of ranges, ``cpu_ms`` between their starts and ends, ``kernels`` launched from inside,
    and those kernels' ``gpu_ms``. The last row holds what was launched outside any phase. Of nested ranges, a kernel
    belongs to the innermost; ranges of single operators (PyTorch's emit_nvtx) are no phases where there are others, and
    numbered steps ("step 1", "step 2") are one phase, "step #".

    A kernel belongs to a range of the thread that launched it; where that has none, to one of the main thread; else to
    one of another thread that launches. A thread that launches nothing (a reader of data) gets no kernels for it.

    ``by="thread"`` counts only kernels launched by the thread that opened the range: the answer that misses autograd.
    """
    if by not in BY:
        raise ReportError(f"phases are told by {' or by '.join(BY)}, not by {by}.")
    window = window or report.window()
    ranges = phase_ranges(report, window)
    kernels = report.kernels
    launched = (kernels["api_start"] >= window.start) & (kernels["api_start"] < window.end)
    kernels = kernels[launched & threads.of(kernels, window)]
    names = launched_in(report, window, ranges, kernels, by)
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
    ranges = ranges[threads.begins_in(ranges, window) & ~itself].copy()
    ranges["end"] = ranges["end"].clip(upper=window.end)
    return ranges


def launched_in(
    report: Report, window: Window, ranges: pd.DataFrame, kernels: pd.DataFrame, by: str = "process"
) -> np.ndarray:
    """For each kernel the name of the phase in which it was launched; ``kernels`` are those whose call is known."""
    names = np.full(len(kernels), OUTSIDE, dtype=object)
    at = kernels["api_start"].to_numpy(dtype=np.int64)
    process, thread = (kernels[column].to_numpy(dtype=np.int64) for column in ("process", "api_thread"))
    asked = [(thread == one, ranges["thread"] == one) for one in np.unique(thread)]  # kernels, and ranges for them
    for one in np.unique(process) if by == "process" else ():
        own, launching = process == one, ranges["thread"].isin(thread[process == one])
        main = threads.main_thread(
            report, window if window.process == one else replace(window, thread=None, only_process=one)
        )
        asked += [(own, ranges["thread"] == main), (own, launching & (ranges["process"] == one))]
    for own, chosen in asked:
        own = own & (names == OUTSIDE)
        if own.any() and chosen.any():
            names[own] = phase_at(ranges[chosen], at[own])
    return names


def phase_ranges(report: Report, window: Window) -> pd.DataFrame:
    """The ranges inside the window that name phases: all but those of single operators, unless there are no others."""
    ranges = ranges_inside(report, window)
    ranges = ranges if ranges["operator"].all() else ranges[~ranges["operator"]]
    steps = {
        name: re.sub(r"#?\d+", "#", name) for name in ranges["name"].unique() if NUMBERED.fullmatch(name[:LONGEST_NAME])
    }
    return ranges.assign(name=ranges["name"].replace(steps)) if len(steps) > 1 else ranges


def named(names: pd.Series, question: Callable[[str], object]) -> pd.Series:
    """For each name: does it answer the question? Asked once for each different name."""
    codes, different = pd.factorize(names)
    answers = np.array([*(question(str(name)) for name in different), None], dtype=object).astype(bool)
    return pd.Series(answers[codes], index=names.index)


def phase_at(ranges: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """The innermost range at each time (nanoseconds), ``"(outside any phase)"`` where none runs."""
    places = intervals.place_at(ranges["start"], ranges["end"], times)
    return np.append(ranges["name"].to_numpy(dtype=object), OUTSIDE)[places]
