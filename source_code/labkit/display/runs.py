"""What do timed runs say of one another? Round by round, in words; and how long an epoch takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import special

from labkit.display.spread import Spread, paired
from stepbudget.signs import signed


def epoch_ms(found: Sequence[dict]) -> float:
    """Milliseconds of a training epoch without the profiler: the median over all runs, first epochs left out."""
    return statistics.median(1e3 * epoch["training_s"] for record in found for epoch in record["epochs"][1:])


def in_rounds(ratio: Spread) -> str:
    """What rounds in pairs say, as the end of a sentence: how many times as fast, and whether that is beyond noise.

    ``ratio``: as ``paired`` returns it.
    """
    times = f"{ratio.median:.2f} times as fast"
    if ratio.n == 1:
        return f"{times} in one round; another may say otherwise"
    times = f"{times} ({ratio.low:.2f}–{ratio.high:.2f})"
    if _agree(ratio):
        said = f"{times}, and {'faster' if ratio.low > 1 else 'slower'} in each of {ratio.n} rounds"
        if is_beyond_noise(ratio):
            return said
        low, high = interval(ratio)
        return f"{said}; but {ratio.n} rounds that differ so could do that by chance (95 %: {low:.2f}–{high:.2f})"
    if round(ratio.low, 2) == round(ratio.high, 2) == 1:
        return f"{times}: no difference in {ratio.n} rounds"
    return f"{times}, but the {ratio.n} rounds disagree on which is faster: no difference can be claimed"


def is_beyond_noise(ratio: Spread) -> bool:
    """Do the rounds agree, and by so much and so often that chance would not (95 %)? One round cannot tell."""
    if not _agree(ratio):
        return False
    low, high = interval(ratio)
    return low > 1 or high < 1


def interval(ratio: Spread) -> tuple[float, float]:
    """Where the true ratio of two or more rounds lies with 95 % confidence.

    Student's t on the logarithms of the ratios: on that scale, twice as fast and half as fast are as far from 1.
    """
    logs = np.log(ratio.values)
    half = special.stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def compared(slow: Sequence[dict], fast: Sequence[dict], field: str = "process_s") -> str:
    """What two steps' runs say round by round, as the end of a sentence; and whether they were run in turn at all."""
    ratio = paired(slow, fast, field)
    if in_turn(slow, fast) or not _agree(ratio):
        return in_rounds(ratio)
    return f"{in_rounds(ratio)}; besides, they were not run in turn, and no hour is like another"


def difference(ratio: Spread) -> str:
    """What two times, compared round by round, say of one another; ``ratio``: one over the other, of each round.

    They differ where that is beyond noise.
    """
    values = (ratio.low, ratio.median, ratio.high)
    low, middle, high = (signed(f"{100 * (value - 1):+.1f} %") for value in values)
    if ratio.n == 1:
        return f"{middle} in a single round, in which a few per cent mean nothing"
    if is_beyond_noise(ratio):
        return f"{'longer' if ratio.low > 1 else 'shorter'} in each of {ratio.n} rounds, by {low} to {high}"
    return f"no difference shows: {low} to {high} in {ratio.n} rounds"


def in_turn(first: Sequence[dict], second: Sequence[dict]) -> bool:
    """Did the runs of two steps alternate, in the rounds that both have?"""
    both = list(zip(first, second, strict=False))
    runs = sorted([(one["started"], 1) for one, _ in both] + [(other["started"], 2) for _, other in both])
    return all(one != other for (_, one), (_, other) in pairwise(runs))


def _agree(ratio: Spread) -> bool:
    """Does every round, of two or more, say that the same one is faster, by a hundredth at least?"""
    return ratio.n > 1 and (round(ratio.low, 2) > 1 or round(ratio.high, 2) < 1)
