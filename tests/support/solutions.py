"""Each exercise as a page asks it: its worked solution is right, and no usual wrong answer is.

Tried where the page asks, on what the page asks about, beside the page's own run: its names are copied.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd

from labkit import course, exercises, lines, predictions
from labkit.exercises import exercises_of
from labkit.exercises.kinds import CODE
from labkit.recording import live_check

SOLUTION = re.compile(r"<details><summary>Solution</summary>\s*```python\n(.*?)```", re.DOTALL)
EVERY = {number: one for lab in course.LABS for number, one in exercises_of(lab.number).items()}
CALL = re.compile(r'lab\.exercise\("([\d.]+)"')
A_KERNEL = "10.1"  # asks for a Triton kernel: no plain function in its place, and it returns nothing


LOUD = "a hundred lines of an object"


class Loud:
    """An object that should be named, not printed."""

    def __repr__(self) -> str:
        return f"{LOUD}\n" * 100


ODD = [
    float("nan"),
    [1.0, 2.0],
    np.array([1.0, 2.0]),
    pd.Series([1.0, 2.0]),
    10**400,
    Loud(),
    pd.NA,
    1j,
    b"1",
    {},
]


def usual_ones(number: str, *context: object) -> dict[str, tuple[bool, str]]:
    """Each usual wrong answer to an exercise, given: what went wrong → was it accepted, and what was said."""
    found = {}
    for why, answer in EVERY[number].usual(*context).items():
        with redirect_stdout(io.StringIO()) as said:
            found[why] = EVERY[number].check(number, answer, *context), said.getvalue()
    return found


def refused(number: str, *context: object) -> int:
    """How many wrong answers were tried; each is refused, with the word on what went wrong."""
    answers = usual_ones(number, *context)
    assert [why for why, (accepted, _) in answers.items() if accepted] == []
    assert [(why, said) for why, (_, said) in answers.items() if why not in said] == []
    return len(answers)


def answered(number: str, answer: object, *context: object) -> tuple[bool, str]:
    """Is the answer accepted, and what is said of it?"""
    with redirect_stdout(io.StringIO()) as said:
        return EVERY[number].check(number, answer, *context), said.getvalue()


def odd_answers_get_words(number: str, *context: object) -> None:
    """What is no answer to any exercise, given or returned by the function that is asked for: one line of words."""
    returns = EVERY[number].kind == CODE and number != A_KERNEL
    for odd in ODD:
        for answer in [odd, *([lambda *_, odd=odd, **__: odd] if returns else [])]:
            accepted, said = answered(number, answer, *context)
            assert not accepted, (number, odd)
            assert said.startswith(f"exercise {number}: ") and said.count("\n") == 1 and LOUD not in said, (
                number,
                said,
            )
            assert len(said) < 400 and "Error: " not in said, (number, said)


def like(given: object) -> list[object]:
    """A right answer again, its numbers in the types that a reader's may have; a function that returns it so."""
    if callable(given):
        return [lambda *a, to=to, **k: to(given(*a, **k)) for to in (_in_numpy, _in_fractions)]
    return [to(given) for to in (_in_numpy, _in_fractions, _in_decimals, _in_pandas) if to(given) is not given]


def _in(kinds: dict[type, Callable]) -> Callable:
    def to(given: object) -> object:
        if type(given) is tuple:
            return tuple(map(to, given))
        return kinds[type(given)](given) if type(given) in kinds else given

    return to


_in_numpy, _in_fractions = _in({int: np.int64, float: np.float64}), _in({float: Fraction})
_in_decimals, _in_pandas = _in({int: Decimal, float: Decimal}), _in({int: lambda n: pd.Series([n]), float: np.array})


def solutions_of(page: Path) -> dict[str, str]:
    """The source of each cell that asks an exercise, and the solution that follows it."""
    found, asking = {}, None
    for cell in nbformat.read(page, as_version=4).cells:
        if cell.cell_type == "code" and "lab.exercise(" in cell.source:
            asking = cell.source
        elif asking is not None and (solution := SOLUTION.search(cell.source)):
            assert CALL.findall(solution[1]) == CALL.findall(asking), "the solution ends with the same check"
            found[asking], asking = solution[1], None
    assert asking is None, "an exercise without a solution"
    return found


@contextlib.contextmanager
def tried(page: Path) -> Iterator[dict]:
    """While ``live_check.run_lab`` runs a page: what is ``wrong`` with its exercises.

    ``counts``: how many wrong answers each has; ``told``: what the solutions print.
    """
    found: dict = {"wrong": [], "counts": {}, "told": ""}
    run_cell, check, predict, wide = live_check.run_cell, exercises.exercise, predictions.predict, lines.WIDE
    solutions = solutions_of(page)

    def checked(number: str, answer: object, *context: object) -> bool:
        found["counts"][number] = refused(number, *context)
        odd_answers_get_words(number, *context)
        for again in like(answer) if number != A_KERNEL else []:
            assert answered(number, again, *context) == (True, f"✓ exercise {number}\n"), number
        return check(number, answer, *context)

    def predicted(guess, made: object, *context: object):
        for why, mistake in guess.wrong.items():
            assert guess.why(float(mistake(*context)), *context) == why, (guess.of, why)
        right = guess.measured(*context)
        assert isinstance(right, str | tuple) or guess.why(right, *context) == "", guess.of
        return predict(guess, made, *context)

    def and_solved(source: str, names: dict) -> None:
        run_cell(source, names)
        if source in solutions:
            lines.WIDE, exercises.exercise = 10_000, checked
            try:
                with redirect_stdout(io.StringIO()) as said:
                    exec(compile(solutions[source], f"{page.name}, a solution", "exec"), dict(names))
            except Exception:
                found["wrong"].append(traceback.format_exc())
            finally:
                lines.WIDE, exercises.exercise = wide, check
            found["told"] += said.getvalue()

    live_check.run_cell, predictions.predict = and_solved, predicted
    try:
        yield found
    finally:
        live_check.run_cell, predictions.predict = run_cell, predict
