"""Each worked solution is right, and its check can fail: every lab runs again with the solutions in place."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

from labkit import course, exercises
from labkit.display import show
from labkit.errors import LabError
from labkit.recording.notebooks import execute, files
from labkit.source import recorded
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.report import open_report

LABS = [path for path in files() if path.parent.name == "labs"]
SOLUTION = re.compile(r"<details><summary>Solution</summary>\s*```python\n(.*?)```", re.DOTALL)
NEW_KERNEL = {"09_triton"}  # Triton's interpreter has to be chosen before Triton is imported
CALL = re.compile(r'lab\.exercise\("([\d.]+)"')


def solved(path) -> nbformat.NotebookNode:
    """The lab with each exercise's cell replaced by the solution that follows it."""
    notebook = nbformat.read(path, as_version=4)
    open_cell = None
    for cell in notebook.cells:
        if cell.cell_type == "code" and "lab.exercise(" in cell.source:
            open_cell = cell
        elif open_cell is not None and (found := SOLUTION.search(cell.source)):
            assert CALL.findall(found.group(1)) == CALL.findall(open_cell.source), (
                "the solution ends with the same check"
            )
            open_cell.source = found.group(1)
            open_cell = None
    assert open_cell is None, "an exercise without a solution"
    return notebook


def told_here(notebook: nbformat.NotebookNode, name: str, capsys) -> str:
    """What the cells print, run one after another in this process: a kernel, and pictures, are what nbval is for."""
    names = {"__name__": "__main__"}
    for number, source in enumerate((cell.source for cell in notebook.cells if cell.cell_type == "code"), 1):
        exec(compile(source, f"{name}, cell {number}", "exec"), names)
    return capsys.readouterr().out


def told_by_a_kernel(notebook: nbformat.NotebookNode, file: Path) -> str:
    """The same from a new kernel."""
    nbformat.write(notebook, file)
    cells = [cell for cell in execute(file).cells if cell.cell_type == "code"]
    return "\n".join(out.text for cell in cells for out in cell.outputs if "text" in out) + "\n"


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_the_solutions_pass_their_checks(path, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("LAB_MODE", os.environ.get("LAB_MODE", "recorded"))
    monkeypatch.setattr(show, "_png", lambda figure: "")
    monkeypatch.chdir(path.parent)
    notebook = solved(path)
    if path.stem in NEW_KERNEL:
        told = told_by_a_kernel(notebook, tmp_path / path.name)
    else:
        told = told_here(notebook, path.name, capsys)
    asked = [number for cell in notebook.cells if cell.cell_type == "code" for number in CALL.findall(cell.source)]
    assert asked
    for number in asked:
        assert f"[ok] exercise {number}\n" in told


def test_every_exercise_of_the_labs_has_a_check_and_the_other_way_round():
    asked = {number for path in LABS for number in CALL.findall(path.read_text().replace('\\"', '"'))}
    assert asked == {number for lab in course.LABS for number in exercises.exercises_of(lab.number)}


@pytest.mark.parametrize(
    ("number", "said"), [("9.9", "lab 9 has no exercise 9.9: it has 9.1, 9.2"), ("77.1", "no lab 77")]
)
def test_an_exercise_that_there_is_not_is_named(number, said):
    with pytest.raises(LabError, match=re.escape(said)):
        exercises.exercise(number, 1)


@pytest.mark.parametrize("number", ["1.2", "3.2", "4.2"])
def test_an_empty_function_is_no_answer(number, capsys):
    def unanswered(*_):
        raise NotImplementedError

    assert not exercises.exercise(number, unanswered)
    assert "no answer yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "wrong", "said"),
    [
        ("1.2", lambda work, synchronize: (work(), 0.0)[1], "before the GPU has finished"),
        ("1.2", lambda work, synchronize: (work(), float("nan"))[1], "not seconds"),
        ("3.2", lambda batch, device: batch.to(device), "pageable"),
        ("3.2", lambda batch, device: batch.pin_memory().to("cpu", non_blocking=True), "not to the device"),
        ("3.2", lambda batch, device: (batch.pin_memory().to(device, non_blocking=True), None)[1], "not the copy"),
        ("3.2", lambda batch, device: batch.pin_memory().to(device), "still waits"),
        ("3.2", lambda batch, device: None, "never copies"),
        ("4.1", 2.0**-14, "too large"),
        ("4.2", lambda *_: None, "FP32"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(number, wrong, said, capsys):
    assert not exercises.exercise(number, wrong)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "step", "wrong", "said"),
    [
        ("1.1", "main_baseline_nvtx", lambda whole, found: found.idle_ms / whole.duration_ms, "too small"),
        ("1.1", "main_baseline_nvtx", lambda whole, found: 1 - found.idle_ms / whole.duration_ms, "units"),
        ("2.1", "main_opt1", lambda whole, found: 59, "count the steps"),
        ("2.2", "main_opt1", lambda whole, found: whole.duration_ms / found.ms["loader"], "What is left"),
        ("3.1", "main_opt2", lambda whole, found: found.ms["loader"], "a row of the budget"),
        ("3.1", "main_opt2", lambda whole, found: found.ms["copies"] / 1e3, "units"),
        ("5.2", "main_opt3_tf32", lambda whole, found: "cuda_graph", "gains at most"),
    ],
)
def test_a_wrong_reading_of_a_budget_is_told(number, step, wrong, said, capsys):
    with open_report(recorded.folder() / "profiles" / f"{step}.sqlite.xz") as report:
        whole = report.window()
        context = (report, whole) if number == "1.1" else (report,)
        assert not exercises.exercise(number, wrong(whole, budget(report)), *context)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda score: score.share, "units"),
        (lambda score: score.gained_ms, "too small"),
        (lambda score: score.bound.at_most_ms, "not yet"),
        (lambda score: score.bound.of_ms, "too large"),
        (lambda score: 100 * score.share, "[ok] exercise 4.3"),
    ],
)
def test_the_share_of_a_bound(wrong, said, capsys):
    profiles = recorded.folder() / "profiles"
    names = ("main_opt3_tf32", "main_opt3_bf16")
    tf32, bf16 = (open_report(profiles / f"{name}.sqlite.xz") for name in names)
    with tf32, bf16:
        exercises.exercise("4.3", wrong(compare(tf32, bf16).score("mixed_precision")), tf32, bf16)
    assert said in capsys.readouterr().out
