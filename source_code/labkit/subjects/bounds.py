"""How many times as fast can a program become? What labs ask of a fix's bound, and the mistakes made with it."""

from __future__ import annotations

from labkit.numbers import Quantity
from labkit.predictions import Guess
from stepbudget.ask.budget import budget
from stepbudget.ask.predict import bound
from stepbudget.report import Report


@Quantity
def whole_ms(report: Report) -> float:
    """Milliseconds of the report's window."""
    return budget(report).window.duration_ms


@Quantity
def idle_ms(report: Report) -> float:
    """Milliseconds for which the GPU idles in the window."""
    return budget(report).idle_ms


def row_ms(*causes: str) -> Quantity:
    """Milliseconds of these rows of the report's budget, by their keys."""
    return Quantity(lambda report: sum(budget(report).ms[cause] for cause in causes))


def without(ms: Quantity) -> Quantity:
    """How many times as fast the window would be if so many milliseconds of it went."""
    return whole_ms / (whole_ms - ms)


def at_most(fix: str) -> Quantity:
    """How many times as fast, at most, a fix (a key of ``sb.bounds``) makes the report's window."""
    return Quantity(lambda report: bound(report, budget(report), fix).at_most_times)


def at_most_ms(fix: str) -> Quantity:
    """How many milliseconds of the report's window, at most, a fix gains."""
    return Quantity(lambda report: bound(report, budget(report), fix).at_most_ms)


def guess(of: str, fix: str, cause: str, *, alone: str, idle: str, over: str) -> Guess:
    """A guess of a fix's bound. What is said to who takes away the budget's ``cause`` alone, or all idle time, or who
    divides the window by the cause."""
    wrong = {alone: without(row_ms(cause)), idle: without(idle_ms), over: whole_ms / row_ms(cause)}
    return Guess(of, "×", at_most(fix), wrong)
