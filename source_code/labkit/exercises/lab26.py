"""Exercises of lab 26: two halves of a softmax put together, what a mask costs, the bytes of the naive form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, NotWanted, Number, each_of
from labkit.numbers import number
from labkit.topics.kernels.readings import attention_bytes, attention_times

PIECES = [  # two pieces of a row
    ([0.5, -1.0, 2.0], [1.0, 1.5]),
    ([3.0], [-2.0, 7.0, 0.0]),
    ([1000.0, 998.0], [1001.5]),
    ([-900.0], [-901.0, -905.0]),
]


def known(piece: Sequence[float]) -> tuple[float, float]:
    """What is kept of a piece: its largest number, and the sum of powers relative to it."""
    return max(piece), sum(math.exp(one - max(piece)) for one in piece)


def _try_merge(merge: Callable) -> str | None:
    for one, other in PIECES:
        try:
            parts = each_of(merge(known(one), known(other)), "two numbers, the largest and the total, are")
        except OverflowError:
            return "with numbers around 1,000 it overflows: take powers of differences only, none of which is positive"
        if len(parts) != 2:
            raise NotWanted(f"two numbers are wanted, the largest and the total, not {len(parts)}")
        largest, total = (number(part) for part in parts)
        right, whole = known([*one, *other])
        if largest != right:
            return "the largest of both pieces is the larger of their largest"
        if math.isclose(total, sum(known(part)[1] for part in (one, other))) and not math.isclose(total, whole):
            return "the totals are added as they are: each is relative to its own piece's largest number"
        if total > sum(known(part)[1] for part in (one, other)):
            return "a total grows: its factor is exp(its own largest - the larger one), which is 1 at most"
        if not math.isclose(total, whole, rel_tol=1e-6):
            return "one of the two totals is not right: both get a factor, and that of one of them is 1"
    return None


def _merged(first: Callable[[float], float], second: Callable[[float], float], largest: Callable = max) -> Callable:
    """A merge that corrects each total in its own way, given its own largest number less the larger one."""

    def merge(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
        top = largest(one[0], other[0])
        return top, one[1] * first(one[0] - top) + other[1] * second(other[0] - top)

    return merge


def _never(depth: float) -> float:
    return 1.0


def _large_powers(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    top = max(one[0], other[0])
    return top, (one[1] * math.exp(one[0]) + other[1] * math.exp(other[0])) / math.exp(top)


MERGE = Code(
    "The larger of both is the new largest; each total is multiplied by exp(its own largest - the new one).",
    _try_merge,
    wrong={
        "the totals are added as they are": _merged(_never, _never),
        "the larger of their largest": _merged(math.exp, math.exp, largest=min),
        "a total grows": _merged(lambda depth: math.exp(-depth), lambda depth: math.exp(-depth)),
        "one of the two totals is not right": _merged(lambda depth: math.exp(2 * depth), math.exp),
        "it overflows": _large_powers,
    },
)


def _times(records: Sequence[dict], slow: tuple[str, bool], fast: tuple[str, bool]) -> float:
    """How many times as long one way (and causal, or not) takes as another, at the longest length."""
    longest = attention_times(records).unstack("causal").iloc[-1]
    found = float(longest[slow] / longest[fast])
    if math.isnan(found):
        raise NothingToAnswer("one of the two was not measured here")
    return found


def _otherwise(records: Sequence[dict], slow: tuple[str, bool], fast: tuple[str, bool]) -> float:
    """The same for a wrong answer, which there may be none of."""
    try:
        return _times(records, slow, fast)
    except NothingToAnswer:
        return math.nan


NAIVE, NAIVE_CAUSAL = ("naive", False), ("naive", True)  # columns of ``attention_times``, and causal or not
FORMS = Number(
    READ,
    "The solid orange line at the right end of each picture: its value in ms, the right picture's over the left one's.",
    right=lambda records: _times(records, NAIVE_CAUSAL, NAIVE),
    wrong={
        "that is turned over: causal over not causal?": lambda records: _times(records, NAIVE, NAIVE_CAUSAL),
        "that is our kernel, which skips half: the naive form?": lambda records: _otherwise(
            records, ("triton", True), ("triton", False)
        ),
        "that is the naive form over ours, not causal": lambda records: _otherwise(records, NAIVE, ("triton", False)),
        "that is the naive form over ours, causal": lambda records: _otherwise(records, NAIVE_CAUSAL, ("triton", True)),
        "that is by how much longer, in per cent: how many times as long?": lambda records: (
            100 * (_times(records, NAIVE_CAUSAL, NAIVE) - 1)
        ),
    },
    within=0.1,  # read off a logarithmic picture
)

_LONG = {"batch": 1, "heads": 16, "length": 16_384, "width": 64, "dtype": "bf16"}


def _gb(naive: bool = True, **other: object) -> float:
    return attention_bytes(**(_LONG | other), naive=naive) / 1e9


BYTES_OF_SCORES = Number(
    BOUND,
    "Of a head: q, k, v and the result are 16,384 × 64 numbers each, the scores 16,384 × 16,384, and these go four "
    "times: written, read, written, read.",
    right=_gb,
    wrong={
        "that is the scores alone: q, k, v and the result move, too": lambda: _gb() - _gb(naive=False),
        "that is without the scores: the form of one kernel": lambda: _gb(naive=False),
        "that is one head: there are 16": lambda: _gb(heads=1),
        "those are numbers, in thousands of millions: two bytes each": lambda: _gb() / 2,
        "that is in FP32: two bytes a number": lambda: 2 * _gb(),
        "that is with the scores written and read once: the softmax reads and writes them, too": lambda: (
            (_gb() + _gb(naive=False)) / 2
        ),
        "that is with the scores moved once only": lambda: _gb(naive=False) + (_gb() - _gb(naive=False)) / 4,
    },
    within=0.002,  # the inputs and the result are four thousandths
)

EXERCISES = {"26.1": MERGE, "26.2": FORMS, "26.3": BYTES_OF_SCORES}
