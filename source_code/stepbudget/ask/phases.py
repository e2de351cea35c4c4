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
from stepbudget.ask.missing import missing
from stepbudget.coded import coded
from stepbudget.errors import ReportError
from stepbudget.report import Report, remembered, rows_where
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
    and the ``gpu_ms`` of these and of CUDA graphs traced as a whole, whose kernels nobody counted (then ``kernels`` is
    NaN). Where what a phase launched left no rows, both are NaN. The last row holds what was launched outside any
    phase. Of nested ranges, a kernel belongs to the innermost; ranges of single operators (PyTorch's emit_nvtx) are no
    phases where there are others, and numbered steps ("step 1", "step 2") are one phase, "step #".

    A kernel belongs to a range of the thread that launched it; where that has none, to one of the main thread; else to
    one of another thread that launches. A thread that launches nothing (a reader of data) gets no kernels for it.

    ``by="thread"`` counts only kernels launched by the thread that opened the range: the answer that misses autograd.
    """
    if by not in BY:
        raise ReportError(f"phases are told by {' or by '.join(BY)}, not by {by}.")
    window = window or report.window()
    ranges = phase_ranges(report, window)
    # Rows of each part: their phases, then for each row ns on the CPU, ranges, kernels, and ns on the GPU.
    parts = [(ranges["name"], ranges["end"] - ranges["start"], 1, 0, 0)]
    for table, kernels in ((report.kernels, 1), (report.graphs, np.nan)):  # nobody counts a whole graph's kernels
        launched = (table["api_start"] >= window.start) & (table["api_start"] < window.end)
        table = rows_where(table, launched & threads.of(table, window))
        names = launched_in(report, window, ranges, table, by)
        parts.append((names, 0, 0, kernels, table["end"] - table["start"]))
    lost = missing(report, threads.about(report, window)).calls
    lost = lost[threads.begins_in(lost, window) & (lost["kind"] != "copies")]
    lost = lost.assign(api_start=lost["start"], api_thread=lost["thread"])
    parts.append((launched_in(report, window, ranges, lost, by), 0, 0, np.nan, np.nan))
    number, different = coded(np.concatenate([np.asarray(names, dtype=object) for names, *_ in parts]))
    columns = zip(*([np.broadcast_to(one, len(names)) for one in values] for names, *values in parts), strict=True)
    rows = (np.concatenate(column).astype(float) for column in columns)
    cpu_ns, count, kernels, gpu_ns = (np.bincount(number, column, minlength=len(different)) for column in rows)
    found = pd.DataFrame({"phase": pd.Series(different, dtype=object), "count": count.astype(np.int64)})
    found["cpu_ms"] = np.where(count > 0, cpu_ns / 1e6, np.nan)
    found["kernels"] = kernels if np.isnan(kernels).any() else kernels.astype(np.int64)
    return found.assign(gpu_ms=gpu_ns / 1e6)


def ranges_inside(report: Report, window: Window) -> pd.DataFrame:
    """The NVTX ranges that begin within the window, cut at its end, without the range that is the window itself.

    For a window that is a range itself: those of its process.
    """
    return _cut(report.ranges, _inside(report.ranges, window), window)


def _inside(ranges: pd.DataFrame, window: Window) -> np.ndarray:
    itself = (ranges["start"] == window.start) & (ranges["end"] == window.end)
    return (threads.begins_in(ranges, window) & ~itself).to_numpy()


def _cut(ranges: pd.DataFrame, chosen: np.ndarray, window: Window) -> pd.DataFrame:
    ranges = ranges[chosen]
    return ranges.assign(end=ranges["end"].clip(upper=window.end))


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


@remembered
def phase_ranges(report: Report, window: Window) -> pd.DataFrame:
    """The ranges inside the window that name phases: all but those of single operators, unless there are no others."""
    inside, operator = _inside(report.ranges, window), report.ranges["operator"].to_numpy(dtype=bool)
    own = inside & ~operator
    ranges = _cut(report.ranges, own if own.any() else inside, window)
    codes, names = coded(ranges["name"])
    shown = [re.sub(r"#?\d+", "#", name) if NUMBERED.fullmatch(name[:LONGEST_NAME]) else name for name in names]
    steps = sum(map(str.__ne__, names, shown))
    return ranges.assign(name=np.array([*shown, None], dtype=object)[codes]) if steps > 1 else ranges


def named(names: pd.Series, question: Callable[[str], object]) -> pd.Series:
    """For each name: does it answer the question? Asked once for each different name."""
    codes, different = coded(names)
    answers = np.array([*(question(str(name)) for name in different), None], dtype=object).astype(bool)
    return pd.Series(answers[codes], index=names.index)


def phase_at(ranges: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """The innermost range at each time (nanoseconds), ``"(outside any phase)"`` where none runs."""
    places = intervals.place_at(ranges["start"], ranges["end"], times)
    return np.append(ranges["name"].to_numpy(dtype=object), OUTSIDE)[places]
