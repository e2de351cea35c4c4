"""When does the GPU do nothing, and what is the program doing meanwhile?

Idle is the window less the union of kernels, CUDA graphs, copies and memory fills: work that overlaps counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.missing import missing
from stepbudget.ask.phases import OUTSIDE, phase_ranges
from stepbudget.ask.threads import about, main_thread
from stepbudget.ask.work import device_of, work_of
from stepbudget.report import Report
from stepbudget.window import Window


@dataclass(frozen=True)
class Idle:
    """How a window of the report divides into GPU work and none."""

    window: Window
    busy_ms: float
    idle_ms: float
    gaps: int
    longest_gap_ms: float

    @property
    def idle_share(self) -> float:
        """Between 0 (always busy) and 1 (never)."""
        return self.idle_ms / self.window.duration_ms if self.window.duration_ms else 0.0


def gpu_busy(report: Report, window: Window, device: int | None = None) -> np.ndarray:
    """Intervals, within the window, in which the GPU runs a kernel, a CUDA graph, a copy or a memory fill.

    With several GPUs, ``device`` chooses the card; by default it is the one with the work (``threads.about``).
    """
    device = device_of(report, window) if device is None else device
    tables = [report.kernels, report.graphs, report.copies, report.memsets]
    own = [work_of(table, device) for table in tables]
    return intervals.clip(intervals.union(*own), window.start, window.end)


def idle(report: Report, window: Window | None = None) -> Idle:
    """How long the GPU had nothing to do within the window (default: the training range); NaN where nobody knows."""
    window = window or report.window()
    if missing(report, about(report, window)).kinds:
        return Idle(window, *[float("nan")] * 2, 0, float("nan"))
    gaps = intervals.complement(gpu_busy(report, window), window.start, window.end)
    idle_ms = intervals.total(gaps) / 1e6
    longest_ms = float((gaps[:, 1] - gaps[:, 0]).max()) / 1e6 if len(gaps) else 0.0
    return Idle(window, window.duration_ms - idle_ms, idle_ms, len(gaps), longest_ms)


def idle_by_phase(report: Report, window: Window | None = None) -> pd.DataFrame:
    """The GPU's idle time, divided by the NVTX phase that the program was in meanwhile.

    Columns: ``phase``, ``idle_ms``, ``share`` of the window's idle time. The rows add up to all of it.
    """
    window = window or report.window()
    gaps = intervals.complement(gpu_busy(report, window), window.start, window.end)
    ranges = phase_ranges(report, window)
    # What the thread in charge is doing; other ranks and helpers have clocks of their own.
    ranges = ranges[ranges["thread"] == main_thread(report, window)]
    edges, names = intervals.innermost(*(ranges[column] for column in ("start", "end", "name")))
    edges = np.concatenate([[window.start], edges, [window.end]])
    phases = [OUTSIDE, *(OUTSIDE if name is None else name for name in names)]
    ns = pd.Series(intervals.covered(gaps, edges[:-1], edges[1:])).groupby(phases, sort=False).sum()
    share = ns / (ns.sum() or 1)
    table = pd.DataFrame({"phase": ns.index, "idle_ms": ns.to_numpy() / 1e6, "share": share.to_numpy()})
    return table.sort_values("idle_ms", ascending=False, ignore_index=True)
