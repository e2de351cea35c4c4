"""A range asked for by name that comes many times: which one is answered, and how the others vary."""

from __future__ import annotations

import json

import pytest

import stepbudget as sb
from stepbudget.ask.occurrences import occurrences
from stepbudget.report import open_report
from synthetic import SyntheticReport

GEMM = "ampere_s16816gemm_128x64"
LENGTHS = [12, *[10] * 46, 9, 31, 10]  # ms: 50 steps, the first one longer, the 49th the longest, the 48th the shortest


@pytest.fixture
def made(tmp_path):
    made, at = SyntheticReport(tmp_path / "made.sqlite"), 0
    for ms in LENGTHS:
        made.range(at, at + 1000 * ms, "step").kernel(at + 100, at + 5100, GEMM, call=(at + 10, at + 20))
        at += 1000 * ms
    return made


@pytest.mark.parametrize("number", [1, 2, 49])
def test_the_answer_says_which_one_it_is_about_and_how_the_others_vary(made, ask, number):
    path = made.write()
    status, out, _ = ask(path, "--range", "step", "--occurrence", number)
    assert status == 0
    said = " ".join(out.split())
    assert f"number {number} of 50 is answered (--occurrence chooses another)" in said
    assert "they last 9.00 to 31.00 ms (number 49), median 10.00 (nearest: number 2)" in said
    assert "the GPU busy for 50 % of it in the median" in said
    found = json.loads(ask(path, "--range", "step", "--occurrence", number, "--json")[1])["occurrences"]
    assert found == {
        "number": number, "count": 50, "median_ms": 10, "shortest_ms": 9, "longest_ms": 31, "longest": 49, "usual": 2,
        "gpu_busy_fraction": pytest.approx(0.5),
    }  # fmt: skip


def test_a_range_that_comes_once_has_nothing_to_be_compared_with(made, ask):
    path = made.range(0, 100, "alone").write()
    status, out, _ = ask(path, "--range", "alone", "--json")
    assert status == 0 and json.loads(out)["occurrences"] is None and "--occurrence" not in out
    assert json.loads(ask(path, "--json")[1])["occurrences"] is None, "nor has the whole capture"


def test_another_processs_ranges_of_this_name_are_none_of_it(made):
    made.range(5, 900_000, "step", process=4712).range(0, 600_000, "training").range(
        0, 600_000, "training", process=4712
    )
    report = open_report(made.write())
    assert occurrences(report, report.window("training")) is None
    assert occurrences(report, report.window("step", 3)).count == 50


def test_in_a_notebook_the_budget_says_it_too(made):
    report = sb.open(made.write())
    assert "number 3 of 50" in str(sb.budget(report, report.window("step", 3)))
    assert " of 50" not in str(sb.budget(report))
