"""Was a question on reports given reports? One sentence where it was not, before anything is looked up in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import TypeVar

from labkit.errors import LabError
from stepbudget.report import Report

ONE = 'a report, as lab.profile(…) and lab.open_report("FILE") give one'
SEVERAL = 'reports by name, as {"before": report}'
Question = TypeVar("Question", bound=Callable)


def on_reports(question: Question) -> Question:
    """The same question; LabError where its first argument is not what it is annotated as: a report, or several."""
    (first, *_) = signature(question).parameters.values()
    several = "Mapping" in str(first.annotation)

    @wraps(question)
    def asked(*given: object, **more: object) -> object:
        if given or first.name in more:
            found = given[0] if given else more[first.name]
            if wrong := _wrong(found, several):
                raise LabError(f"{question.__name__}() asks {SEVERAL if several else ONE}, and was given {wrong}.")
        return question(*given, **more)

    return asked


def _wrong(found: object, several: bool) -> str | None:
    """What was given in the place of reports; None where they are reports."""
    if not several:
        return None if isinstance(found, Report) else _named(found)
    if not isinstance(found, Mapping):
        return _named(found)
    return next((f"{_named(one)} among them" for one in found.values() if not isinstance(one, Report)), None)


def _named(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"
