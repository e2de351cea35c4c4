"""Which exercises are there, and how far did readers come?

python3 -m labkit.exercises                all exercises, a line a lab; their usual wrong answers are counted
python3 -m labkit.exercises NOTEBOOK …     what became of them in these notebooks, or in folders of notebooks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from labkit import course
from labkit.errors import LabError, speak_any_encoding
from labkit.exercises import exercises_of, results
from labkit.exercises.kinds import KINDS
from stepbudget.show.table import table

FORMULA = ("=", "+", "-", "@")  # a spreadsheet would work out a name that begins like this


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


def handed_in(paths: list[Path]) -> dict[str, list[results.Result]]:
    """Reader → results, in the labs' order; what cannot be read is said, and left out. LabError where nothing can."""
    files = results.notebooks(paths)
    whose, found = results.readers(files), {}
    for file in files:
        try:
            notebook = results.read(file)
        except LabError as error:
            print(error, file=sys.stderr)
            continue
        lab = results.lab_of(notebook, file)
        if lab is not None:
            found.setdefault(whose[file], []).extend(results.results(notebook, lab, file))
    if not found:
        raise LabError("none of these notebooks is a lab of this course.")
    return {reader: sorted(own, key=lambda one: one.lab) for reader, own in found.items()}


def main() -> None:
    speak_any_encoding()
    parser = argparse.ArgumentParser(
        prog="python3 -m labkit.exercises",
        description="Without notebooks: all exercises. With them: what is right, wrong or not tried in them, "
        "by their stored outputs, which runs nothing. Several readers get a row each.",
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebooks handed in, or folders of them")
    parser.add_argument("--csv", action="store_true", help="a row a reader, a column an exercise, separated by commas")
    args = parser.parse_args()
    if not args.notebooks:
        if args.csv:
            parser.error("--csv needs notebooks")
        found = overview()
        print(table(found, f"Exercises and their wrong answers, {found['wrong answers'].sum()} in all"))
        return
    try:
        found = handed_in(args.notebooks)
    except LabError as error:
        parser.error(str(error))
    if args.csv:
        made = results.reader_rows(found, by_exercise=True)
        made["reader"] = [f"'{name}" if name.startswith(FORMULA) else name for name in made["reader"]]
        print(made.to_csv(index=False), end="")
    elif len(found) > 1:
        print(table(results.reader_rows(found), "What is right, by reader"))
    else:
        [(reader, own)] = found.items()
        rows = results.exercise_rows(own)
        right = sum(one.state == results.RIGHT for one in own)
        print(table(rows, f"{reader}: {right} of {len(own)} right"))


if __name__ == "__main__":
    main()
