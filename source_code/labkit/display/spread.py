"""How are repeated measurements shown and compared? Median and range, and speedups.

The middle is the median, the spread is the range. Steps that are compared ran alternately (A B A B …), so that a
machine that warms up or is busy for a while slowed both.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing: median, smallest, largest, how many, and each, in order."""

    median: float
    low: float
    high: float
    n: int
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("no measurements")
        return cls(statistics.median(values), min(values), max(values), len(values), tuple(values))

    def text(self, unit: str = "s", digits: int = 1) -> str:
        """``13.4 s (13.1–13.9)``"""
        return f"{self.median:.{digits}f} {unit} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def spread(records: Sequence[dict], field: str = "process_s") -> Spread:
    """Median and range of one field over the records of a step."""
    return Spread.of([record[field] for record in records])


def speedup(slow: Sequence[dict], fast: Sequence[dict], field: str = "process_s") -> float:
    """How many times faster: median over median."""
    return spread(slow, field).median / spread(fast, field).median


def paired(slow: Sequence[dict], fast: Sequence[dict], field: str = "process_s") -> Spread:
    """How many times faster, round by round: the spread of the ratios of runs that were made one after the other.

    What slows the machine for a while slows both runs of a round, so a ratio varies less than the times do.
    """
    return Spread.of([one[field] / other[field] for one, other in zip(slow, fast, strict=False)])
