"""What one lab alone needs, a module a lab: ``lab02`` holds what lab 2 claims, its exercises, its tables and charts.

A check is a function of its lab's module. It is given reports and records, and yields claims and conclusions in the
order in which they are printed; a notebook calls it by its name: ``lab.check("starved", before)``.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable

from labkit import checks, course
from labkit.checks import Claim
from labkit.errors import LabError, near

_lab: list[int] = []  # the one that has begun


def begin(number: int | None) -> None:
    """Lab ``number`` begins: the checks that a notebook calls are its."""
    _lab[:] = [] if number is None else [number]


def checks_of(number: int) -> dict[str, Callable[..., Iterable[Claim | str]]]:
    """The checks of a lab by their names; LabError where there is no such lab, none where it has no module."""
    if number not in {lab.number for lab in course.LABS}:
        raise LabError(f"there is no lab {number}: they are numbered from 1 to {len(course.LABS)}.")
    try:
        module = importlib.import_module(f"{__name__}.lab{number:02d}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.lab{number:02d}":
            raise
        return {}
    own = vars(module).items()
    return {name: made for name, made in own if inspect.isgeneratorfunction(made) and not name.startswith("_")}


def check(name: str, *given: object, **more: object) -> None:
    """Check what the lab that has begun claims under this name, about what is given."""
    if not _lab:
        raise LabError("no lab has begun: lab.start(2), with its number, comes first.")
    found = checks_of(_lab[0])
    if name not in found:
        raise LabError(f"lab {_lab[0]} has no check called {name}. {near(name, found)}")
    checks.check(found[name](*given, **more))
