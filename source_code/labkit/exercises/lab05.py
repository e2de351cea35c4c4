"""The exercises of lab 5: an epoch without idle time, and what comes after the loader."""

from __future__ import annotations

import math

from labkit.checks import answer_choice, answer_number
from stepbudget.ask.budget import budget
from stepbudget.ask.idle import idle
from stepbudget.ask.predict import bounds
from stepbudget.report import Report


def _idle_bound(number: str, answer: float | None, report: Report) -> bool:
    found = idle(report)
    hint = "If the GPU never idled, the epoch would last as long as the GPU is busy now."
    right = found.window.duration_ms / found.busy_ms if found.busy_ms else math.inf
    return answer_number(number, answer, right, hint)


def _next_after_loader(number: str, answer: str | None, report: Report) -> bool:
    found = {fix: bound.at_most_ms for fix, bound in bounds(report, budget(report)).items() if fix != "loader"}
    return answer_choice(number, answer, max(found, key=found.__getitem__), "Compare what each fix gains at most.")


EXERCISES = {"5.1": _idle_bound, "5.2": _next_after_loader}
