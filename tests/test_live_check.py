"""The live check runs a notebook's cells as a notebook does, notes where it stops, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from math import inf
from pathlib import Path

import nbformat
import pytest

from labkit.recording.live_check import NAME, run_lab


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


def test_a_lab_that_ran_whole_is_not_run_again(tmp_path):
    words = [sys.executable, "-m", "labkit.recording.live_check", "--labs", "0", "--pretend", "h200"]
    words += ["--into", str(tmp_path / "new")]
    kept = []
    for _ in range(2):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        kept.append((tmp_path / "new" / NAME).read_text())
    first, second = (json.loads(text)["labs"]["start_here"] for text in kept)
    assert first["status"] == "whole" and first == second
    words[words.index("0")] = "99"
    assert "there is no lab 99" in subprocess.run(words, capture_output=True, text=True).stderr
