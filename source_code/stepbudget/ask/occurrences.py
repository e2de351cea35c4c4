"""Which of the ranges of one name is this, and how do the others vary? A step asked for by name comes many times."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from stepbudget import intervals
from stepbudget.ask.threads import about
from stepbudget.ask.work import gpu_work, work_of
from stepbudget.report import Report
from stepbudget.window import Window


@dataclass(frozen=True)
class Occurrences:
    """The ranges of one name in one process: the one that is looked at among the others. Numbers begin at 1."""

    number: int  # of the one that is looked at, in order of their starts
    count: int
    median_ms: float
    shortest_ms: float
    longest_ms: float
    longest: int  # its number
    usual: int  # the number of the one whose length is nearest to the median
    gpu_busy_fraction: float  # the median: in half of them the GPU is busier

    def __str__(self) -> str:
        return (
            f"number {self.number} of {self.count} is answered (--occurrence chooses another); they last "
            f"{self.shortest_ms:,.2f} to {self.longest_ms:,.2f} ms (number {self.longest}), "
            f"median {self.median_ms:,.2f} (nearest: number {self.usual}), "
            f"the GPU busy for {100 * self.gpu_busy_fraction:.0f} % of it in the median"
        )


def occurrences(report: Report, window: Window) -> Occurrences | None:
    """How a window that is an NVTX range compares with the others of its name in its process; None without others."""
    alike = [] if window.thread is None else [w for w in report.windows(window.name) if w.process == window.process]
    place = next((place for place, one in enumerate(alike) if one == window and one.thread == window.thread), None)
    if len(alike) < 2 or place is None:
        return None
    lasted = [one.duration_ms for one in alike]
    middle = median(lasted)
    starts, ends = ([getattr(one, edge) for one in alike] for edge in ("start", "end"))
    work = intervals.union(work_of(gpu_work(report), about(report, window).gpu))
    busy = [ns / 1e6 / ms if ms else 0.0 for ns, ms in zip(intervals.covered(work, starts, ends), lasted, strict=True)]
    return Occurrences(
        number=place + 1,
        count=len(alike),
        median_ms=middle,
        shortest_ms=min(lasted),
        longest_ms=max(lasted),
        longest=lasted.index(max(lasted)) + 1,
        usual=min(range(len(alike)), key=lambda number: abs(lasted[number] - middle)) + 1,
        gpu_busy_fraction=float(median(busy)),
    )
