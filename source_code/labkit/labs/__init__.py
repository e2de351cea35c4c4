"""What one lab alone needs, a module a lab: ``lab02`` holds what lab 2 claims, its exercises, its tables and charts.

A check is a function of its lab's module. It is given reports and records, and yields claims and conclusions in the
order in which they are printed; a notebook calls it by its name: ``lab.check("starved", before)``. What a lab asks its
reader to predict stands in its module's ``PREDICTIONS``: ``lab.predict("times", my_times, before)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from labkit import checks, course, predictions
from labkit.checks import Claim
from labkit.errors import LabError, near

_lab: list[int] = []  # the one that has begun


def begin(number: int | None) -> None:
    """Lab ``number`` begins: the checks that a notebook calls are its."""
    _lab[:] = [] if number is None else [number]


def on_nsight() -> bool:
    """Is the lab that has begun about what Nsight Systems alone records?"""
    return any(lab.on_nsight for lab in course.LABS if lab.number in _lab)


def checks_of(number: int) -> dict[str, Callable[..., Iterable[Claim | str]]]:
    """The checks of a lab by their names; LabError where there is no such lab."""
    own = vars(course.module_of(number)).items()
    return {name: made for name, made in own if inspect.isgeneratorfunction(made) and not name.startswith("_")}


def check(name: str, *given: object, **more: object) -> None:
    """Check what the lab that has begun claims under this name, about what is given."""
    checks.check(_named(name, "check", checks_of)(*given, **more))


def predictions_of(number: int) -> dict[str, predictions.Guess]:
    """What a lab asks its reader to predict, by name; LabError where there is no such lab."""
    return getattr(course.module_of(number), "PREDICTIONS", {})


def predict(name: str, guess: object, *context: object) -> None:
    """Score the reader's guess (None: none was made) of what the lab that has begun asks under this name."""
    predictions.predict(_named(name, "prediction", predictions_of), guess, *context)


def _named(name: str, what: str, of: Callable[[int], dict]) -> Any:
    if not _lab:
        raise LabError("no lab has begun: lab.start(2), with its number, comes first.")
    found = of(_lab[0])
    if name not in found:
        raise LabError(f"lab {_lab[0]} has no {what} called {name}. {near(name, found)}")
    return found[name]
