"""Which exercises are there? python3 -m labkit.exercises: a line a lab, by kind; wrong answers are counted."""

from __future__ import annotations

import pandas as pd

from labkit import course
from labkit.display.table import table
from labkit.exercises import exercises_of
from labkit.exercises.kinds import KINDS


def overview() -> pd.DataFrame:
    """A row a lab, a column a kind: ``4.2 (9)`` is exercise 4.2 and nine wrong answers that it has a word for."""
    rows = []
    for lab in course.LABS:
        own = exercises_of(lab.number).items()
        cells = {
            kind: ", ".join(f"{name} ({len(one.wrong)})" for name, one in own if one.kind == kind) for kind in KINDS
        }
        rows.append({"lab": lab.number, **cells, "wrong answers": sum(len(one.wrong) for _, one in own)})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    found = overview()
    print(table(found, f"Exercises and their wrong answers, {found['wrong answers'].sum()} in all"))
