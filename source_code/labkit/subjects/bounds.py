"""How many times as fast can a program become? What labs ask of a fix's bound, and the mistakes made with it."""

from __future__ import annotations

from labkit.predictions import Guess
from stepbudget.ask.budget import budget
from stepbudget.ask.predict import bound
from stepbudget.report import Report


def at_most(report: Report, fix: str) -> float:
    """How many times as fast, at most, a fix (a key of ``sb.bounds``) makes the report's window."""
    return bound(report, budget(report), fix).at_most_times


def times_without(report: Report, ms: float) -> float:
    """How many times as fast the report's window would be if so many milliseconds of it went."""
    whole_ms = budget(report).window.duration_ms
    return whole_ms / (whole_ms - ms)


def guess(of: str, fix: str, cause: str, *, alone: str, idle: str, over: str) -> Guess:
    """A guess of a fix's bound. What is said to who takes away the budget's ``cause`` alone, or all idle time, or who
    divides the window by the cause."""
    return Guess(
        of, " times", lambda report: at_most(report, fix),
        wrong={
            alone: lambda report: times_without(report, budget(report).ms[cause]),
            idle: lambda report: times_without(report, budget(report).idle_ms),
            over: lambda report: budget(report).window.duration_ms / budget(report).ms[cause],
        },
    )  # fmt: skip
