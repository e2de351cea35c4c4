"""How far did readers come? Each exercise of the notebooks they hand in: right, wrong, not tried, or in doubt.

What counts is the line that the check printed below the answer when the reader ran it. Nothing of hers is run: a
stranger's notebook is a stranger's program. A stored output proves little by itself: it has to fit its cell. The cell
asks what the lab asks, was changed and was run; a number or word that stands there, of an exercise that needs no
report, is checked again. What does not fit is *in doubt*: look at it. A function that was changed after its last run is
not noticed, nor is a reader who is set on deceiving.

``run`` is for readers who are trusted: the course's own notebook in recorded mode, with the reader's answers in it.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
import pandas as pd
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from labkit import course, lines
from labkit.course import Lab
from labkit.errors import LabError
from labkit.exercises import exercises_of
from labkit.exercises.kinds import CODE
from labkit.paths import ROOT

RIGHT, WRONG, NOT_TRIED, DOUBT = "right", "wrong", "not tried", "in doubt"
STATES = (RIGHT, WRONG, NOT_TRIED, DOUBT)
STORED, AGAIN, RUN = "stored output", "checked again", "run"  # how it was told
LINE = re.compile(r"^(?:(?P<ok>✓ )?exercise (?P<number>\d[\d.]*\d)(?P<said>$|: .*|, a hint: .*))$", re.MULTILINE)
NOT_YET = ": not yet – "
SAYS_NOTHING = object()  # an answer that only running it would tell


@dataclass(frozen=True)
class Result:
    """How one reader did in one exercise: the state (of STATES), how that was told, and a word on why."""

    lab: int
    exercise: str
    kind: str
    state: str
    how: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Call:
    """A check as it stands in a cell: the answer's expression, what else it is given, and the cell."""

    answer: ast.expr | None
    context: str
    tree: ast.Module
    cell: nbformat.NotebookNode


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
    asked = {int(number.partition(".")[0]) for number in _calls(notebook)}
    return next((lab for lab in course.LABS if lab.number in asked), None)


def results(notebook: nbformat.NotebookNode, lab: Lab, file: Path | None = None, how: str = STORED) -> list[Result]:
    """How each exercise of a lab stands in a notebook, by its stored outputs.

    ``file``: where it lies, since the course's own notebook may be the one that was answered in.
    """
    starts = _calls(_shipped(lab, file)) if how == STORED else {}
    starts = {number: start for number, start in starts.items() if _printed(number, start.cell)[0] != RIGHT}
    calls = _calls(notebook)
    found = []
    for number, exercise in exercises_of(lab.number).items():
        if number in calls:
            state, told, note = _judged(number, calls[number], starts.get(number), how)
        else:
            state, told, note = NOT_TRIED, "", "its check is not in the notebook"
        found.append(Result(lab.number, number, exercise.kind, state, told, _plain(note)))
    return found


def run(notebook: nbformat.NotebookNode, lab: Lab) -> list[Result]:
    """The same, from the lab as the course has it, run in recorded mode with the reader's answer cells in it.

    This runs the reader's code. An answer that needs other cells of hers stops with a NameError.
    """
    from labkit.recording.notebooks import CELL_TIMEOUT_S  # it imports torch, which reading does without

    answered, calls = _shipped(lab), _calls(notebook)
    for number, start in _calls(answered).items():
        if number in calls:
            start.cell.source = calls[number].cell.source
    environment = {**os.environ, "LAB_MODE": "recorded", "LAB_PREDICTIONS": "off"}
    client = NotebookClient(
        answered,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(ROOT / "labs")}},
    )
    try:
        client.execute(env=environment)
    except (CellTimeoutError, DeadKernelError) as error:
        why = f"the lab did not run to its end ({type(error).__name__})"
        return [Result(lab.number, *one, DOUBT, RUN, why) for one in _kinds(lab)]
    return results(answered, lab, how=RUN)


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
    columns = ["lab", "exercise", "kind", "result", "told by", "note"]
    rows = [(one.lab, one.exercise, one.kind, one.state, one.how, one.note) for one in found]
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


def _judged(number: str, call: _Call, start: _Call | None, how: str) -> tuple[str, str, str]:
    """State, how it was told, and a word."""
    cell = call.cell
    state, note = _printed(number, cell)
    if how == RUN:
        return state, RUN, note
    if start is not None and cell.source.strip() == start.cell.source.strip():
        return (DOUBT, how, "the cell is the lab's own, and yet right") if state == RIGHT else (NOT_TRIED, "", "")
    if state == NOT_TRIED and not _has_line(number, cell):
        return NOT_TRIED, "", "answered, but never run" if start is not None else ""
    if start is not None and call.context != start.context:
        return DOUBT, how, "the check is given something else than in the lab"
    if cell.execution_count is None:
        return DOUBT, how, "an output of a cell that was never run"
    answer = _literal(call)
    if answer is SAYS_NOTHING:
        return state, how, note
    if (answer is None) != (state == NOT_TRIED) and not _is_hint(answer):
        return DOUBT, how, "changed after its last run"
    exercise = exercises_of(int(number.partition(".")[0]))[number]
    if answer is None or _is_hint(answer) or exercise.kind == CODE or call.context or start is None:
        return state, how, note
    with redirect_stdout(io.StringIO()):
        is_right = exercise.check(number, answer)
    return (state, AGAIN, note) if is_right == (state == RIGHT) else (DOUBT, AGAIN, "changed after its last run")


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
    errors = [output.get("ename", "an error") for output in cell.outputs if output.output_type == "error"]
    return (WRONG, f"the cell stops with {errors[0]}") if errors and state != RIGHT else (state, note)


def _has_line(number: str, cell: nbformat.NotebookNode) -> bool:
    return bool(_lines(number, cell)) or any(output.output_type == "error" for output in cell.outputs)


def _lines(number: str, cell: nbformat.NotebookNode) -> list[re.Match]:
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return [line for line in LINE.finditer(lines.joined(printed)) if line["number"] == number]


def _calls(notebook: nbformat.NotebookNode) -> dict[str, _Call]:
    """The checks of a notebook: number → where it stands; of several the last that was answered."""
    found: dict[str, _Call] = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or "exercise" not in cell.source:
            continue
        for number, call in _checks(cell):
            if number not in found or _printed(number, cell)[0] != NOT_TRIED:
                found[number] = call
    return found


def _checks(cell: nbformat.NotebookNode) -> Iterator[tuple[str, _Call]]:
    try:
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # its check is looked for in the text
        for number in re.findall(r'lab\.exercise\("([\d.]+)"', cell.source):
            yield number, _Call(None, "", ast.Module([], []), cell)
        return
    for node in ast.walk(tree):
        is_check = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exercise"
        if is_check and node.args and isinstance(number := getattr(node.args[0], "value", None), str):
            context = ", ".join(map(ast.unparse, [*node.args[2:], *(one.value for one in node.keywords)]))
            yield number, _Call(node.args[1] if len(node.args) > 1 else None, context, tree, cell)


def _literal(call: _Call) -> object:
    """The answer where it stands in the cell as a plain value, without running anything; else SAYS_NOTHING."""
    value = call.answer
    if isinstance(value, ast.Name):
        given = [
            node.value
            for node in ast.walk(call.tree)
            if isinstance(node, ast.Assign) and any(_is_name(target, value.id) for target in node.targets)
        ]
        others = sum(_is_name(node, value.id) and isinstance(node.ctx, ast.Store) for node in ast.walk(call.tree))
        value = given[0] if len(given) == 1 == others else None
    if value is not None:
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(value)
    return SAYS_NOTHING


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_hint(answer: object) -> bool:
    return isinstance(answer, str) and answer.strip().casefold() == "hint"


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


def _kinds(lab: Lab) -> list[tuple[str, str]]:
    return [(number, one.kind) for number, one in exercises_of(lab.number).items()]


def _plain(text: str) -> str:
    """One line without anything that a terminal would obey."""
    return "".join(letter for letter in text if letter.isprintable())
