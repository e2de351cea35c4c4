"""The live check runs a notebook's cells as a notebook does, notes where it stops, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from math import inf
from pathlib import Path

import nbformat
import pytest

from labkit.errors import LabError
from labkit.paths import ROOT
from labkit.recording import live_check
from labkit.recording.live_check import NAME, merged, run_lab


@pytest.fixture
def called(monkeypatch, capsys):
    """``python3 -m labkit.recording.live_check`` in this process: status, and what it complains of."""

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setenv("LAB_MODE", "live")  # as it does itself
        monkeypatch.setattr(sys, "argv", ["live_check", *words])
        status = 0
        try:
            live_check.main()
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().err

    return call


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Makes a notebook of these cells."""
    monkeypatch.chdir(tmp_path)  # running one changes into its folder

    def make(*sources: str) -> Path:
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        nbformat.write(made, tmp_path / "made.ipynb")
        return tmp_path / "made.ipynb"

    return make


def test_cells_share_their_names_and_the_last_expression_is_shown(notebook):
    found = run_lab(notebook("x = 20", "print('so')\nx + 1"), inf)
    assert found["status"] == "whole"
    assert [cell["said"] for cell in found["cells"]] == ["", "so\n21\n"]


def test_the_first_cell_that_fails_ends_the_lab_with_its_words(notebook):
    found = run_lab(notebook("x = 1", "x / 0", "never = 1"), inf, lambda line: None)
    assert (found["status"], len(found["cells"])) == ("failed", 2)
    assert found["cells"][-1]["error"] == "ZeroDivisionError: division by zero"


def test_no_cell_begins_after_the_time(notebook):
    assert run_lab(notebook("x = 1"), stop_at=0.0) | {"seconds": 0} == {
        "status": "unfinished", "seconds": 0, "cells": [], "differs": [],
    }  # fmt: skip


def test_a_lab_that_ran_whole_is_not_run_again(called, tmp_path):
    words = ["--labs", "0", "--pretend", "h200", "--into", str(tmp_path / "new")]
    program = [sys.executable, "-m", "labkit.recording.live_check"]
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first = json.loads((tmp_path / "new" / NAME).read_text())["labs"]["start_here"]
    assert called(*words) == (0, "")
    second = json.loads((tmp_path / "new" / NAME).read_text())["labs"]["start_here"]
    assert first["status"] == "whole" and first == second


def test_a_lab_that_is_not_there_is_named(called, tmp_path):
    status, said = called("--labs", "99", "--pretend", "h200", "--into", str(tmp_path))
    assert status and "there is no lab 99" in said and not [*tmp_path.iterdir()]


def test_before_each_cell_the_result_so_far_is_kept(notebook):
    kept: list[dict] = []
    found = run_lab(notebook("x = 1", "x / 0"), inf, lambda line: None, kept.append)
    assert [(one["status"], len(one["cells"]), one.get("running")) for one in kept] == [
        ("unfinished", 0, 0), ("unfinished", 1, 1), ("failed", 2, None),
    ]  # fmt: skip
    assert kept[-1] == found and kept[0]["since"] <= kept[1]["since"]


def test_a_lab_that_is_killed_leaves_what_it_had_done(notebook, tmp_path):
    killed = notebook("print('done')", "import os; os.kill(os.getpid(), 9)", "never = 1")
    program = f"""
from functools import partial
from math import inf
from pathlib import Path
from labkit.recording.live_check import put, run_lab
run_lab(Path({str(killed)!r}), inf, print, partial(put, Path({str(tmp_path / NAME)!r}), "made"))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    lab = json.loads((tmp_path / NAME).read_text())["labs"]["made"]
    assert (lab["status"], lab["running"]) == ("unfinished", 1)
    assert [(cell["cell"], cell["said"]) for cell in lab["cells"]] == [(0, "done\n")] and lab["run_at"] >= lab["since"]


def test_a_lab_whose_process_dies_has_failed_and_keeps_its_cells(tmp_path, monkeypatch):
    def die(words, **more):
        live_check.put(tmp_path / NAME, "made", {"status": "unfinished", "cells": [{"cell": 2}], "running": 3})
        return subprocess.CompletedProcess(words, -11)

    monkeypatch.setattr(live_check.subprocess, "run", die)
    found = live_check._in_a_process("made", tmp_path / NAME, 9.0, None)
    assert (found["status"], found["error"]) == ("failed", "its process ended with status -11")
    kept = live_check.read(tmp_path / NAME)["labs"]["made"]
    assert (kept["status"], kept["running"], len(kept["cells"])) == ("failed", 3, 1)


def test_where_the_checkout_lies_is_not_kept(notebook):
    found = run_lab(notebook(f"print('{ROOT}/reports/a', '{sys.executable}')"), inf)
    assert found["cells"][0]["said"] == "reports/a python3\n"


def test_what_pictures_consist_of_is_not_kept(notebook):
    found = run_lab(notebook("print({'image/png': 'iVBORw0', 'text/plain': 'a curve'})"), inf)
    assert found["cells"][0]["said"] == "{'image/png': '<picture>', 'text/plain': 'a curve'}\n"


def test_what_an_unfinished_run_took_counts(tmp_path, monkeypatch):
    """What it made is used again, so the run that ends a lab would take next to no time."""
    took = iter([("unfinished", 100.0), ("whole", 4.0)])

    def run(name, file, left_s, pretended):
        status, seconds = next(took)
        result = {"status": status, "seconds": seconds, "cells": [], "differs": []}
        live_check.put(file, name, result)
        return dict(result)

    monkeypatch.setattr(live_check, "_in_a_process", run)
    for seconds in (100.0, 104.0):
        found = live_check.check(["a"], tmp_path / NAME, 9.0, "h200")
        assert found["labs"]["a"]["seconds"] == seconds


def lab(status: str, cells: int, day: int) -> dict:
    return {"status": status, "cells": [{}] * cells, "run_at": f"2030-01-{day:02d}T00:00:00+00:00"}


def test_of_several_results_the_newest_whole_run_of_each_lab_is_kept():
    one, two = live_check.names()[1:3]
    about = {"machine": {"gpu": "NVIDIA Test GPU"}, "live": "quick"}
    first = about | {"labs": {two: lab("unfinished", 5, 1), one: lab("whole", 9, 1)}}
    second = about | {"labs": {one: lab("whole", 9, 2), two: lab("failed", 3, 2)}}
    third = about | {"labs": {one: lab("failed", 9, 3)}}
    found = merged([first, second, third])
    assert found == about | {"labs": {one: lab("whole", 9, 2), two: lab("unfinished", 5, 1)}}
    assert list(found["labs"]) == [one, two]
    with pytest.raises(LabError, match="different machines"):
        merged([first, second | {"live": "full"}])


def test_results_are_merged_by_the_command_line(called, tmp_path):
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file, name in zip(files, live_check.names(), strict=False):
        file.write_text(json.dumps({"machine": {}, "live": "quick", "labs": {name: lab("whole", 1, 1)}}))
    assert called("--into", str(tmp_path), "--merge", *map(str, files)) == (0, "")
    assert list(live_check.read(tmp_path / NAME)["labs"]) == live_check.names()[:2]
