"""Does a step keep the accuracy? Ten or more seeds of it, held against the baseline's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy import stats

from labkit.source import recorded

FLOOR_PCT = 98.70  # mean test accuracy that a step has to keep
SIGNIFICANCE = 0.05  # of the one-sided Welch test against the baseline


def seeds(step: str) -> list[float]:
    """Test accuracy (per cent) of a step with each seed."""
    return [record["test_accuracy_pct"] for record in recorded.accuracy(step)]


def gate(baseline: str, step: str) -> tuple[float, float]:
    """Mean test accuracy (per cent) of a step over its recorded seeds, and the p-value of being below the baseline.

    The test is Welch's, one-sided: ``p < 0.05`` would mean significantly below.
    """
    first, second = (seeds(name) for name in (baseline, step))
    return statistics.mean(second), below(first, second)


def below(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of the second sample's mean being below the first's: Welch's test, one-sided."""
    return float(stats.ttest_ind(second, first, equal_var=False, alternative="less").pvalue)


def largest_loss(baseline: str, step: str) -> float:
    """How many points of accuracy the step loses at most, with 95 % confidence (Welch's one-sided bound)."""
    test = stats.ttest_ind(seeds(baseline), seeds(step), equal_var=False, alternative="less")
    return float(test.confidence_interval(0.95).high)
