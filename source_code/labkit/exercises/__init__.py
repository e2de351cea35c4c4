"""Is the reader's answer right? One function an exercise; it says what is wrong, and never what is right.

Each part of the course, or lab, has its functions in a module of its own, each with its ``EXERCISES`` by number.
"""

from __future__ import annotations

from labkit.exercises import lab06, lab07, lab08, lab09, lab10, lab11, lab12, lab13, part1

EXERCISES = (
    part1.EXERCISES
    | lab06.EXERCISES
    | lab07.EXERCISES
    | lab08.EXERCISES
    | lab09.EXERCISES
    | lab10.EXERCISES
    | lab11.EXERCISES
    | lab12.EXERCISES
    | lab13.EXERCISES
)


def exercise(number: str, answer: object, *context: object) -> bool:
    """Check the answer to exercise ``number`` (``"2.1"``); ``context`` is what the exercise is about, such as a report.

    ``None`` stands for no answer yet. Prints one line; True if the answer is right.
    """
    return EXERCISES[number](number, answer, *context)
