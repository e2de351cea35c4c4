"""How far did readers come? Each exercise of the notebooks they hand in: right, wrong or not tried.

What counts is the line that the check printed below the answer when the reader ran it. Nothing of hers is run: a
stranger's notebook is a stranger's program. What was changed after its last run is not noticed, nor is a reader who is
set on deceiving.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import pandas as pd

from labkit import course, lines
from labkit.course import Lab
from labkit.errors import LabError
from labkit.exercises import exercises_of
from labkit.paths import ROOT

RIGHT, WRONG, NOT_TRIED = STATES = ("right", "wrong", "not tried")
CHECK = re.compile(r"""exercise\(\s*["'](\d[\d.]*)["']""")  # in a cell
LINE = re.compile(r"^(?:(?P<ok>✓ )?exercise (?P<number>\d[\d.]*\d)(?P<said>$|: .*|, a hint: .*))$", re.MULTILINE)
NOT_YET = ": not yet – "


@dataclass(frozen=True)
class Result:
    """How one reader did in one exercise: the state (of STATES), and a word on why."""

    lab: int
    exercise: str
    kind: str
    state: str
    note: str = ""


def notebooks(paths: Iterable[Path]) -> list[Path]:
    """The notebooks among files and below folders, Jupyter's checkpoints left out; LabError where there are none."""
    found = []
    for path in paths:
        if not path.exists():
            raise LabError(f"there is no {path}.")
        below = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        found += [file for file in below if ".ipynb_checkpoints" not in file.parts]
    if not found:
        raise LabError(f"no notebook (.ipynb) lies in {', '.join(map(str, paths))}.")
    return [*dict.fromkeys(file.resolve() for file in found)]


def read(file: Path) -> nbformat.NotebookNode:
    """A handed-in notebook; LabError where the file is none."""
    try:
        return nbformat.read(file, as_version=4)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, nbformat.ValidationError) as error:
        raise LabError(f"{file} is no notebook that can be read ({type(error).__name__}).") from None


def lab_of(notebook: nbformat.NotebookNode, file: Path) -> Lab | None:
    """The lab that a notebook is, by its file's name or else by its exercises; None where it is none."""
    for lab in course.LABS:
        if lab.name in file.stem:
            return lab
    asked = {int(number.partition(".")[0]) for number in _checks(notebook)}
    return next((lab for lab in course.LABS if lab.number in asked), None)


def results(notebook: nbformat.NotebookNode, lab: Lab, file: Path | None = None) -> list[Result]:
    """How each exercise of a lab stands in a notebook, by its stored outputs.

    ``file``: where it lies, since the course's own notebook may be the one that was answered in.
    """
    starts, cells = _checks(_shipped(lab, file)), _checks(notebook)
    found = []
    for number, exercise in exercises_of(lab.number).items():
        state, note = NOT_TRIED, "its check is not in the notebook"
        if number in cells:
            state, note = _judged(number, cells[number], starts.get(number))
        found.append(Result(lab.number, number, exercise.kind, state, _plain(note)))
    return found


def readers(files: list[Path]) -> dict[Path, str]:
    """Whose notebook is it? By the part of the folders' paths that differs, and of the file's name beside the lab's."""
    folders = [*dict.fromkeys(file.parent for file in files)]
    parts = [list(folder.parts) for folder in folders]
    while len(parts) > 1 and all(len(one) > 1 and one[-1] == parts[0][-1] for one in parts):
        parts = [one[:-1] for one in parts]
    while len(parts) > 1 and all(len(one) > 1 and one[0] == parts[0][0] for one in parts):
        parts = [one[1:] for one in parts]
    whose = dict(zip(folders, ("/".join(one) if len(parts) > 1 else one[-1] for one in parts), strict=True))
    found = {}
    for file in files:
        rest = file.stem
        for lab in course.LABS:
            rest = rest.replace(lab.name, "")
        own = rest.strip(" _-.") if any(lab.name in file.stem for lab in course.LABS) else ""
        found[file] = _plain(" ".join(filter(None, (whose[file.parent], own))))
    return found


def exercise_rows(found: list[Result]) -> pd.DataFrame:
    """One reader's results: a row an exercise."""
    columns = ["lab", "exercise", "kind", "result", "note"]
    rows = [(one.lab, one.exercise, one.kind, one.state, one.note) for one in found]
    return pd.DataFrame(rows, columns=columns)


def reader_rows(found: dict[str, list[Result]], by_exercise: bool = False) -> pd.DataFrame:
    """A row a reader: how many of each state, then of each lab what is right (``2/3``), or each exercise's state."""
    rows = []
    for reader, own in found.items():
        row = {"reader": reader, **{state: sum(one.state == state for one in own) for state in STATES}}
        for one in own:
            if by_exercise:
                row[one.exercise] = one.state
            else:
                of_lab = [other for other in own if other.lab == one.lab]
                row[f"lab {one.lab}"] = f"{sum(other.state == RIGHT for other in of_lab)}/{len(of_lab)}"
        rows.append(row)
    table = pd.DataFrame(rows)
    order = [number for lab in course.LABS for number in (*exercises_of(lab.number), f"lab {lab.number}")]
    return table[["reader", *STATES, *(name for name in order if name in table)]]


def _judged(number: str, cell: nbformat.NotebookNode, start: nbformat.NotebookNode | None) -> tuple[str, str]:
    """State and a word; a check may refuse what the lab starts from, which is no answer until it is changed."""
    if start is not None and cell.source.strip() == start.source.strip():
        return NOT_TRIED, ""
    if start is not None and not _lines(number, cell) and not _errors(cell):
        return NOT_TRIED, "answered, but never run"
    return _printed(number, cell)


def _printed(number: str, cell: nbformat.NotebookNode) -> tuple[str, str]:
    """The state that the cell's output tells, and the check's word; the last line counts."""
    state, note = NOT_TRIED, ""
    for line in _lines(number, cell):
        said = line["said"]
        if line["ok"] and not said:
            state, note = RIGHT, ""
        elif said.startswith(NOT_YET):
            state, note = WRONG, said.removeprefix(NOT_YET)
        else:
            state, note = NOT_TRIED, "asked for the hint" if ", a hint" in said else ""
    errors = _errors(cell)
    return (WRONG, f"the cell stops with {errors[0]}") if errors and state != RIGHT else (state, note)


def _errors(cell: nbformat.NotebookNode) -> list[str]:
    return [output.get("ename", "an error") for output in cell.outputs if output.output_type == "error"]


def _lines(number: str, cell: nbformat.NotebookNode) -> list[re.Match]:
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return [line for line in LINE.finditer(lines.joined(printed)) if line["number"] == number]


def _checks(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    """The checks of a notebook: number → the cell; of several the last that was answered."""
    found: dict[str, nbformat.NotebookNode] = {}
    for cell in notebook.cells:
        for number in CHECK.findall(cell.source) if cell.cell_type == "code" else ():
            if number not in found or _printed(number, cell)[0] != NOT_TRIED:
                found[number] = cell
    return found


def _shipped(lab: Lab, file: Path | None = None) -> nbformat.NotebookNode:
    """The lab as the course ships it: out of git where the checkout has it, since somebody may have answered in it.

    Where there is no git, and ``file`` is that notebook itself, nothing tells how it was: no cells.
    """
    committed = _committed(lab)
    if committed:
        return nbformat.reads(committed, as_version=4)
    if file is not None and file == lab.path.resolve():
        return nbformat.v4.new_notebook()
    return nbformat.read(lab.path, as_version=4)


@cache
def _committed(lab: Lab) -> str:
    command = ["git", "-C", str(ROOT), "show", f"HEAD:./{lab.path.relative_to(ROOT)}"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True).stdout
    return ""


def _plain(text: str) -> str:
    """One line without anything that a terminal would obey."""
    return "".join(letter for letter in text if letter.isprintable())
