"""What ``import stepbudget`` gives: a few functions, whose documentation runs on the recorded reports."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys

import pytest

import stepbudget
from labkit.paths import SOURCE_CODE
from labkit.source import recorded
from stepbudget.__main__ import main

PROFILES = recorded.folder() / "profiles"
FUNCTIONS = [name for name in stepbudget.__all__ if name != "ReportError"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_documentation_of_each_function_is_true(name, monkeypatch):
    function = getattr(stepbudget, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert "ReportError" in function.__doc__ and len(test.examples) >= 3
    monkeypatch.chdir(PROFILES)
    said: list[str] = []
    assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)


def test_an_answer_is_what_json_prints(capsys):
    path = PROFILES / "main_opt3.sqlite.xz"
    with stepbudget.open_report(path) as report:
        found = stepbudget.answer(report)
        of_a_part = stepbudget.answer(report, report.window("forward"), gpu=found["gpu_number"])
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found)) == found
    assert of_a_part["range"] == "forward" and of_a_part["duration_ms"] < found["duration_ms"]


def test_an_error_is_one_that_the_face_names(tmp_path):
    with pytest.raises(stepbudget.ReportError, match="there is no report"):
        stepbudget.open_report(tmp_path / "missing.sqlite")


def test_importing_the_face_imports_no_room():
    code = (
        "import sys, stepbudget; early = [name for name in sys.modules if name.startswith('stepbudget.')]; "
        "assert not early and 'pandas' not in sys.modules, early; assert {*stepbudget.__all__} <= {*dir(stepbudget)}; "
        "assert callable(stepbudget.budget) and stepbudget.budget.__module__ == 'stepbudget.show.answers'; "
        "assert not hasattr(stepbudget, 'no_such_name')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE_CODE, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_is_what_the_question_found_and_stands_for_it():
    with stepbudget.open_report(PROFILES / "main_opt1.sqlite.xz") as report:
        found = stepbudget.budget(report)
        assert found and found.ms["loader"] > 0 and found.frame["cause"].iloc[-1] == "all"
        assert [one.cause for one in stepbudget.advice(report, found)] == [
            one.cause for one in stepbudget.advice(report)
        ]
        assert stepbudget.bounds(report, found)["loader"] == stepbudget.bounds(report)["loader"]
        advised = stepbudget.advice(report)
        assert len(advised) == len(advised.frame) > 1 and advised.frame["upper_bound_ms"].is_monotonic_decreasing
        with pytest.raises(AttributeError, match="moon"):
            found.moon  # noqa: B018


def test_an_answer_shows_the_same_numbers_everywhere():
    with stepbudget.open_report(PROFILES / "main_opt1.sqlite.xz") as report:
        for question in (stepbudget.budget, stepbudget.copies, stepbudget.bounds, stepbudget.kernels):
            found = question(report)
            shown = found._repr_mimebundle_()
            assert shown["text/plain"] == str(found) and "<script" not in shown["text/html"]
            (table,) = [block for block in found.blocks if hasattr(block, "cells")]
            for cell in {cell for row in table.cells("markdown") for cell in row if cell[:1].isdigit()}:
                assert cell in str(found) and cell in shown["text/html"] and cell in found.markdown(), cell
