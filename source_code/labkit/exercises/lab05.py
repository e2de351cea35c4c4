"""The exercises of lab 5: an epoch without idle time, what comes after the loader, and rounds that are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, number, shown
from stepbudget.ask.budget import budget
from stepbudget.ask.idle import idle
from stepbudget.ask.predict import bounds
from stepbudget.report import Report


def _times_busy(report: Report) -> float:
    found = idle(report)
    return found.window.duration_ms / found.busy_ms if found.busy_ms else math.inf


IDLE_BOUND = Number(
    BOUND,
    "If the GPU never idled, the epoch would last as long as the GPU is busy now.",
    right=_times_busy,
    wrong={
        "that is the share for which the GPU works: turn it over": lambda report: 1 / _times_busy(report),
        "that is the share for which it idles, in per cent": lambda report: 100 * idle(report).idle_share,
        "that is the epoch over the idle time: the work is what is left": lambda report: 1 / idle(report).idle_share,
        "that is idle time over work: the epoch holds the work, too": lambda report: _times_busy(report) - 1,
        "that takes away the loader's wait alone": lambda r: bounds(r, budget(r))["loader"].at_most_times,
        "those are milliseconds: how many times as fast?": lambda report: idle(report).busy_ms,
    },
)


def _next_fix(report: Report) -> str:
    found = {fix: bound.at_most_ms for fix, bound in bounds(report, budget(report)).items() if fix != "loader"}
    return max(found, key=found.__getitem__)


NEXT_AFTER_LOADER = Choice(
    READ,
    "Compare what each fix gains at most.",
    right=_next_fix,
    wrong={
        "loader": "the loader is left aside here: which comes after it?",
        "pinned_memory": "the copies of this step are pinned already, and its row of copies is short",
        "no_synchronisation": "waiting for the GPU is a short row here: compare what each fix gains at most",
        "mixed_precision": "much of its work uses Tensor Cores already: compare what each fix gains at most",
        "cuda_graph": "launches and Python are not what is largest here: compare what each fix gains at most",
    },
)

ROUNDS = (  # seconds before and after, and what is to be said of them
    ([10.0, 12.0, 30.0], [8.0, 10.0, 20.0], 1.25),  # one round of a busy hour
    ([10.0, 20.0, 30.0], [5.0, 10.0, 15.0], 2.0),  # ranges that overlap, ratios that agree
    ([10.0, 10.0, 10.0], [9.0, 11.0, 9.5], None),  # faster, slower, faster
    ([10.0, 10.0, 10.0], [12.5, 20.0, 16.0], 0.625),  # slower each time
    ([10.0, 9.0, 11.0], [10.0, 8.0, 9.0], None),  # one round knows no difference
    ([10.0, 10.0, 10.0, 10.0, 10.0], [8.0, 5.0, 4.0, 2.5, 2.0], 2.5),  # five rounds
)


def _try_gain(gain: Callable) -> str | None:
    for before_s, after_s, wanted in ROUNDS:
        given = gain(list(before_s), list(after_s))
        of = f"{before_s} s and {after_s} s"
        if wanted is None:
            if given is not None:
                return f"the rounds {of} do not agree which is the faster: None is wanted, not {shown(given)}"
            continue
        if given is None:
            return f"the rounds {of} agree which is the faster, and it claims nothing"
        try:
            found = number(given)
        except NotANumber as wrong:
            return str(wrong)
        if math.isclose(found, wanted, rel_tol=1e-6):
            continue
        times = [one / other for one, other in zip(before_s, after_s, strict=True)]
        for value, why in (
            (1 / wanted, "upside down: 2 means twice as fast"),
            (
                statistics.median(before_s) / statistics.median(after_s),
                "these are medians divided: divide in each round",
            ),
            (statistics.fmean(before_s) / statistics.fmean(after_s), "these are means divided: divide in each round"),
            (min(before_s) / min(after_s), "these are the best runs divided: divide in each round"),
            (statistics.fmean(times), "the mean of the rounds: one odd round draws it away, take the median"),
        ):
            if math.isclose(found, value, rel_tol=1e-6):
                return f"for {of} it says {found:.3g}: {why}"
        return f"for {of} it says {found:.3g}: the median of the rounds' ratios is wanted"
    return None


def _ratios(before_s: Sequence[float], after_s: Sequence[float]) -> list[float]:
    return [before / after for before, after in zip(before_s, after_s, strict=True)]


def _agreed(middle: Callable) -> Callable:
    def gain(before_s, after_s):
        ratios = _ratios(before_s, after_s)
        agree = min(ratios) > 1 or max(ratios) < 1
        return middle(before_s, after_s) if agree else None

    return gain


def _only_if_faster(before_s, after_s):
    ratios = _ratios(before_s, after_s)
    return statistics.median(ratios) if min(ratios) > 1 else None


def _only_if_ranges_part(before_s, after_s):
    apart = min(before_s) > max(after_s) or max(before_s) < min(after_s)
    return statistics.median(_ratios(before_s, after_s)) if apart else None


GAIN = Code(
    "zip() gives the two runs of a round; statistics.median is there; all ratios above 1, or all below it, agree.",
    _try_gain,
    wrong={
        "do not agree which is the faster": lambda b, a: statistics.median(_ratios(b, a)),
        "upside down": _agreed(lambda b, a: statistics.median(_ratios(a, b))),
        "these are medians divided": _agreed(lambda b, a: statistics.median(b) / statistics.median(a)),
        "these are means divided": _agreed(lambda b, a: statistics.fmean(b) / statistics.fmean(a)),
        "these are the best runs divided": _agreed(lambda b, a: min(b) / min(a)),
        "the mean of the rounds": _agreed(lambda b, a: statistics.fmean(_ratios(b, a))),
        "agree which is the faster, and it claims nothing": _only_if_ranges_part,
        "s and [12.5, 20.0, 16.0] s agree which": _only_if_faster,
        "is not one number": _agreed(_ratios),
    },
)

EXERCISES = {"5.1": IDLE_BOUND, "5.2": NEXT_AFTER_LOADER, "5.3": GAIN}
