"""Is the reader's answer right? It says what is wrong, and never what is right.

Each lab has its exercises in its module, ``labkit.labs.labNN``, as ``EXERCISES`` by number; it is imported when the
first of them is asked for.
"""

from __future__ import annotations

import json
import re

from labkit import course
from labkit.errors import LabError, near
from labkit.exercises.kinds import Exercise
from labkit.lines import say
from labkit.numbers import shown
from stepbudget.errors import ReportError

CALL = r"(?m)^lab\.exercise\(\"{}\".*\)$"  # the check, as it stands in its lab


def exercises_of(lab: int) -> dict[str, Exercise]:
    """A lab's exercises: number (``"2.1"``) → exercise. LabError where there is no such lab."""
    return course.module_of(lab).EXERCISES


def exercise(number: str, answer: object, *context: object) -> bool:
    """Check the answer to exercise ``number`` (``"2.1"``); ``context`` is what the exercise is about, such as a report.

    ``None`` stands for no answer yet, ``"hint"`` asks for one. Prints one line; True if the answer is right.
    LabError: no such exercise, or it asks about something else than this context.
    """
    lab = str(number).partition(".")[0]
    if not (isinstance(number, str) and lab.isdecimal()):
        raise LabError(f'no exercise is called {shown(number)}: its name is lab and number, in quotes, as "2.1".')
    found = exercises_of(int(lab))
    if number not in found:
        raise LabError(f"lab {lab} has no exercise {number}. {near(number, found)}")
    if isinstance(answer, str) and answer.strip().casefold() == "hint":
        say(f"exercise {number}, a hint: {found[number].hint}")
        return False
    try:
        return found[number].check(number, answer, *context)
    except ReportError:
        raise
    except Exception as error:
        given = ", ".join(map(shown, context)) or "nothing"
        raise LabError(
            f"exercise {number} is about something else than {given}; in its lab the check reads: {_line(number)}"
        ) from error


def _line(number: str) -> str:
    """The check of an exercise as it stands in its lab."""
    cells = json.loads(course.LABS[int(number.partition(".")[0]) - 1].path.read_text())["cells"]
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return next(line[0] for source in code if (line := re.search(CALL.format(re.escape(number)), source)))
