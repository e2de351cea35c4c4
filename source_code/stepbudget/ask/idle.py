"""When does the GPU do nothing?

Idle is the window less the union of kernels, CUDA graphs, copies and memory fills: work that overlaps counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepbudget import intervals
from stepbudget.ask.missing import missing
from stepbudget.ask.threads import about
from stepbudget.ask.work import work_of
from stepbudget.report import Report
from stepbudget.window import Window


@dataclass(frozen=True)
class Idle:
    """How a window of the report divides into GPU work and none."""

    window: Window
    busy_ms: float
    idle_ms: float
    gaps: int

    @property
    def idle_share(self) -> float:
        """Between 0 (always busy) and 1 (never)."""
        return self.idle_ms / self.window.duration_ms if self.window.duration_ms else 0.0


def idle(report: Report, window: Window | None = None) -> Idle:
    """How long the GPU had nothing to do within the window (default: the training range); NaN where nobody knows."""
    window = window or report.window()
    asked = about(report, window)
    if missing(report, asked).kinds:
        return Idle(window, *[float("nan")] * 2, 0)
    tables = [report.kernels, report.graphs, report.copies, report.memsets]
    own = [work_of(table, asked.gpu) for table in tables]
    gaps = intervals.complement(intervals.union(*own), window.start, window.end)
    idle_ms = intervals.total(gaps) / 1e6
    return Idle(window, window.duration_ms - idle_ms, idle_ms, len(gaps))
