"""The exercises of lab 2: steps that wait for the loader, and what is left to gain."""

from __future__ import annotations

from labkit.checks import answer_number
from stepbudget.ask.budget import budget
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.predict import bounds
from stepbudget.report import Report


def _waiting_steps(number: str, answer: int | None, report: Report) -> bool:
    largest = budget(report).over(step_windows(report)).idxmax(axis=1)
    hint = "idxmax(axis=1) names the largest cause of each step; count the steps where it is 'loader'."
    return answer_number(number, answer, int((largest == "loader").sum()), hint)


def _loader_bound(number: str, answer: float | None, report: Report) -> bool:
    hint = "What is left of the epoch without all the time for which the loader held the program (held_ms)?"
    return answer_number(number, answer, bounds(report, budget(report))["loader"].at_most_times, hint)


EXERCISES = {"2.1": _waiting_steps, "2.2": _loader_bound}
