"""Does a step keep the accuracy? Ten or more seeds of it, held against the baseline's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.source import recorded
from stepbudget.show.table import Table, table

FLOOR_PCT = 98.70  # mean test accuracy that a step has to keep
SIGNIFICANCE = 0.05  # of the one-sided Welch test against the baseline


def seeds(step: str) -> list[float]:
    """Test accuracy (per cent) of a step with each seed."""
    return [record["test_accuracy_pct"] for record in recorded.accuracy(step)]


def mean_and_p(baseline: str, step: str) -> tuple[float, float]:
    """Mean test accuracy (per cent) of a step over its recorded seeds, and the p-value of being below the baseline.

    The test is Welch's, one-sided: ``p < 0.05`` would mean significantly below.
    """
    first, second = (seeds(name) for name in (baseline, step))
    return statistics.mean(second), below(first, second)


def gate(baseline: str, steps: Sequence[str]) -> Table:
    """The accuracy gate: ten or more seeds a step, mean and range, and Welch's test against the baseline."""
    rows = []
    for step in steps:
        values = seeds(step)
        mean, p = mean_and_p(baseline, step)
        passed = mean >= FLOOR_PCT and (step == baseline or p >= SIGNIFICANCE)
        compared = (None, None) if step == baseline else (p, largest_loss(baseline, step))
        verdict = "passed" if passed else "FAILED"
        rows.append((step, verdict, len(values), mean, min(values), max(values), *compared))
    columns = ["step", "gate", "seeds", "mean %", "lowest %", "highest %", "p (below baseline)", "loses at most"]
    formats = dict.fromkeys(columns[3:], "{:.2f}")
    caption = f"Test accuracy after ten epochs on MNIST ({origin([baseline, *steps])})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def origin(steps: Sequence[str]) -> str:
    """Where and when the seeds of these steps were trained, in a few words; they are of the machine of the first."""
    _, where = recorded.held(lambda where: recorded.accuracy(steps[0], where))
    return recorded.origin(where, [record for step in steps for record in recorded.accuracy(step, where)])


def _welch(first: Sequence[float], second: Sequence[float]):
    """The test of the second sample's mean being below the first's, as scipy gives it."""
    from scipy import stats  # here, since it takes longer to import than the rest of the face, and few labs need it

    return stats.ttest_ind(second, first, equal_var=False, alternative="less")


def below(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of the second sample's mean being below the first's: Welch's test, one-sided."""
    return float(_welch(first, second).pvalue)


def keeps(what: str, baseline: Sequence[float], seeds: Sequence[float]) -> Claim:
    """``what`` keeps its mean accuracy and isn't significantly below the baseline; test accuracies (%), one a seed."""
    mean, p = statistics.mean(seeds), below(baseline, seeds)
    return Claim(
        f"{what} keeps a mean accuracy of at least {FLOOR_PCT:.2f} %, and is not significantly below the baseline",
        mean >= FLOOR_PCT and p >= SIGNIFICANCE,
        (mean, p),
        because="ten seeds were trained, and a loss of a tenth of a point shows in some sets of ten",
        so="train ten more seeds before you call the step an optimisation",
    )


def passes(what: str, baseline: Sequence[float], seeds: Sequence[float]) -> Claim:
    """``what`` passes the gate, the same in short; test accuracies (per cent), one a seed."""
    mean, p = statistics.mean(seeds), below(baseline, seeds)
    return Claim(
        f"{what} passes the gate",
        mean >= FLOOR_PCT and p >= SIGNIFICANCE,
        f"{mean:.2f} %, p = {p:.2f}",
        because="with other seeds one comparison in twenty falls below p = 0.05 by chance",
        so="train more seeds before you believe in a loss of accuracy, or in none",
    )


def largest_loss(baseline: str, step: str) -> float:
    """How many points of accuracy the step loses at most, with 95 % confidence (Welch's one-sided bound)."""
    return float(_welch(seeds(step), seeds(baseline)).confidence_interval(0.95).high)
