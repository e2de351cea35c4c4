"""What readers hand in is told right: the course's own notebooks, answered rightly, wrongly, or not at all."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
import pytest

from labkit import course, exercises, lines
from labkit.errors import LabError
from labkit.exercises import exercises_of, results
from labkit.exercises.__main__ import handed_in, main
from labkit.exercises.results import NOT_TRIED, RIGHT, WRONG

LAB = {lab.number: lab for lab in course.LABS}


def cell_of(notebook: nbformat.NotebookNode, number: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and f'exercise("{number}"' in cell.source)


def printed(number: str, answer: object) -> str:
    """What the check says, as JupyterLab would store it."""
    with redirect_stdout(io.StringIO()) as said:
        exercises.exercise(number, answer)
    return said.getvalue()


def answer(notebook: nbformat.NotebookNode, number: str, old: str, new: str, output: str | None) -> None:
    """Put ``new`` in the place of ``old`` in an exercise's cell, with what it then printed; None: nothing new."""
    cell = cell_of(notebook, number)
    assert old in cell.source
    cell.source = cell.source.replace(old, new)
    if output is not None:
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]


def hand_in(folder: Path, lab: int, *answers: tuple) -> Path:
    """A lab in a reader's folder, answered."""
    notebook = nbformat.read(LAB[lab].path, as_version=4)
    for one in answers:
        answer(notebook, *one)
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / LAB[lab].file)
    return folder


def told(folder: Path) -> dict[str, str]:
    """Exercise → state, of one reader."""
    [own] = handed_in([folder]).values()
    return {one.exercise: one.state for one in own}


def note(folder: Path, number: str) -> str:
    [own] = handed_in([folder]).values()
    return next(one.note for one in own if one.exercise == number)


RIGHT_9_1 = exercises_of(9)["9.1"].right()


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_a_lab_as_it_ships_was_not_tried(lab, tmp_path):
    found = told(hand_in(tmp_path, lab.number))
    assert found == dict.fromkeys(exercises_of(lab.number), NOT_TRIED)


def test_right_and_wrong_answers_and_none(tmp_path):
    good, bad = f"my_intensity = {RIGHT_9_1!r}", "my_intensity = 1.0"
    none = "my_intensity = None"
    ok, no = printed("9.1", RIGHT_9_1), printed("9.1", 1.0)
    roof = ("9.4", "my_times = None", "my_times = 1 + 0.3", "✓ exercise 9.4\n")
    assert told(hand_in(tmp_path / "a", 9, ("9.1", none, good, ok), roof)) == {
        "9.1": RIGHT, "9.2": NOT_TRIED, "9.3": NOT_TRIED, "9.4": RIGHT,
    }  # fmt: skip
    wrong = hand_in(tmp_path / "b", 9, ("9.1", none, bad, no))
    assert told(wrong)["9.1"] == WRONG
    assert note(wrong, "9.1") == lines.joined(no).partition("not yet – ")[2].strip()
    hint = hand_in(tmp_path / "c", 9, ("9.1", none, 'my_intensity = "hint"', printed("9.1", "hint")))
    assert told(hint)["9.1"] == NOT_TRIED and note(hint, "9.1") == "asked for the hint"
    never = hand_in(tmp_path / "d", 9, ("9.1", none, good, ""))
    assert told(never)["9.1"] == NOT_TRIED and note(never, "9.1") == "answered, but never run"


def test_a_start_is_not_tried_whatever_the_check_says_and_wrong_once_it_is_changed(tmp_path):
    refused = printed("2.3", lambda DataLoader, digits, cores: DataLoader(digits, num_workers=1))
    assert ": not yet" in refused
    start = "    raise NotImplementedError  # remove this line, and mend what follows\n"
    untouched, changed = (("2.3", start, new, refused) for new in (start, ""))
    assert told(hand_in(tmp_path / "a", 2, untouched))["2.3"] == NOT_TRIED
    assert told(hand_in(tmp_path / "b", 2, changed))["2.3"] == WRONG


def test_more_that_can_stand_in_a_notebook(tmp_path):
    folder = hand_in(tmp_path, 9, ("9.1", "my_intensity = None", "my_intensity = 1 +* 2", ""))
    notebook = nbformat.read(folder / LAB[9].file, as_version=4)
    error = nbformat.v4.new_output("error", ename="SyntaxError", evalue="", traceback=[])
    cell_of(notebook, "9.1").outputs = [error]
    answer(notebook, "9.4", "my_times = None", "my_times = peaks.roof()", "✓ exercise 9.4\n")
    answer(notebook, "9.3", "= None", "= 1.5", "exercise 9.3: not yet – \x1b[2Jgone\n")
    notebook.cells.remove(cell_of(notebook, "9.2"))
    nbformat.write(notebook, folder / LAB[9].file)
    assert [*told(folder).values()] == [WRONG, NOT_TRIED, WRONG, RIGHT]
    assert note(folder, "9.1") == "the cell stops with SyntaxError"
    assert note(folder, "9.2") == "its check is not in the notebook"
    assert note(folder, "9.3") == "[2Jgone"


def test_reading_runs_nothing(tmp_path):
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\nmy_intensity = 7"
    folder = hand_in(tmp_path / "a", 9, ("9.1", "my_intensity = None", trap, printed("9.1", 7)))
    assert told(folder)["9.1"] == WRONG
    assert not (tmp_path / "ran").exists()


# Several readers


def test_readers_are_told_apart_by_what_differs(tmp_path):
    def names(*files: str) -> list[str]:
        return list(results.readers([Path(file) for file in files]).values())

    one, two = LAB[1].file, LAB[2].file
    assert names(f"/home/ada/course/labs/{one}", f"/home/bo/course/labs/{two}") == ["ada", "bo"]
    assert names(f"/in/ada/{one}", f"/in/ada/{two}", f"/in/bo/labs/{one}") == ["ada", "ada", "bo/labs"]
    assert names(f"/in/ada_{one}", "/in/02_pytorch_mnist (bo).ipynb") == ["in ada", "in (bo)"]
    assert names(f"/in/ada/{one}", f"/in/ada/{two}") == ["ada", "ada"]


def command(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "labkit.exercises", *words], capture_output=True, text=True)


@pytest.fixture
def called(monkeypatch, capsys):
    """The same in this process: status, what it prints, what it complains of."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["labkit.exercises", *map(str, words)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_one_command_prints_a_row_a_reader(called, tmp_path):
    ok = ("9.1", "my_intensity = None", f"my_intensity = {RIGHT_9_1!r}", printed("9.1", RIGHT_9_1))
    hand_in(tmp_path / "=ada", 9, ok)
    hand_in(tmp_path / "=ada", 2)
    hand_in(tmp_path / "bo", 9)
    hand_in(tmp_path / "bo" / ".ipynb_checkpoints", 1)
    (tmp_path / "bo" / "broken.ipynb").write_text("{")
    done = command(tmp_path)
    assert done.returncode == 0
    assert "broken.ipynb is no notebook that can be read" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[3:]]
    assert rows == [["=ada", "1", "0", "6", "0/3", "1/4"], ["bo", "0", "0", "4", "–", "0/4"]]
    ada, bo = csv.DictReader(io.StringIO(called(tmp_path, "--csv")[1]))
    assert (ada["reader"], ada["9.1"], ada["2.1"], ada["right"]) == ("'=ada", RIGHT, NOT_TRIED, "1")
    assert (bo["reader"], bo["9.1"], bo["2.1"]) == ("bo", NOT_TRIED, "")


def test_one_reader_gets_a_row_an_exercise_and_nothing_is_said_to_be_nothing(called, tmp_path):
    found = called(hand_in(tmp_path / "ada", 2))[1]
    assert found.startswith("ada: 0 of 3 right\n") and found.count(NOT_TRIED) == 3
    (tmp_path / "none").mkdir()
    for words, why in (
        ([tmp_path / "none"], "no notebook"),
        ([tmp_path / "missing"], "there is no "),
        (["--csv"], "needs notebooks"),
    ):
        status, said, against = called(*words)
        assert status == 2 and said == "" and why in against
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "none" / "other.ipynb")
    with pytest.raises(LabError, match="none of these notebooks is a lab"):
        handed_in([tmp_path / "none"])
