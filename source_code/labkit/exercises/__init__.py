"""Is the reader's answer right? It says what is wrong, and never what is right.

Each lab has its exercises in a module of its own, ``labNN``, as ``EXERCISES`` by number; it is imported when the first
of them is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util

from labkit.errors import LabError
from labkit.exercises.kinds import Exercise
from labkit.lines import say


def exercises_of(lab: int) -> dict[str, Exercise]:
    """A lab's exercises: number (``"2.1"``) → exercise. LabError where there is no such lab."""
    name = f"{__name__}.lab{lab:02d}"
    if importlib.util.find_spec(name) is None:
        raise LabError(f"there is no lab {lab} with exercises.")
    return importlib.import_module(name).EXERCISES


def exercise(number: str, answer: object, *context: object) -> bool:
    """Check the answer to exercise ``number`` (``"2.1"``); ``context`` is what the exercise is about, such as a report.

    ``None`` stands for no answer yet, ``"hint"`` asks for one. Prints one line; True if the answer is right.
    LabError: no such exercise.
    """
    lab = number.partition(".")[0]
    found = exercises_of(int(lab) if lab.isdecimal() else 0)
    if number not in found:
        raise LabError(f"lab {lab} has no exercise {number}: it has {', '.join(found)}.")
    if isinstance(answer, str) and answer.strip().casefold() == "hint":
        say(f"exercise {number}, a hint: {found[number].hint}")
        return False
    return found[number].check(number, answer, *context)
