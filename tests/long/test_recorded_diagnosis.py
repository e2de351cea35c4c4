"""The clinic's recorded reports: the table of the documentation is today's, ours is right, and two GPUs add up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from labkit import cases, course
from labkit.paths import RECORDED
from labkit.subjects.diagnosis import tables
from stepbudget import kernel_names
from stepbudget.ask import advice, collectives, ranks, sizes
from stepbudget.ask.budget import budget
from stepbudget.report import Report, open_report

OURS = "stepbudget: advice"
FOLDER = RECORDED / course.DEFAULT_MACHINE
PAGE = Path(ranks.__file__).parents[1] / "DIAGNOSIS.md"


@pytest.fixture(scope="module")
def diagnoses() -> tables.Diagnoses:
    return tables.diagnose(FOLDER)


def opened(name: str) -> Report:
    return open_report(FOLDER / "profiles" / f"{name}.sqlite.xz")


# --- the table ----------------------------------------------------------------------------------------------


def test_the_page_of_the_documentation_has_the_tables_that_the_command_prints(diagnoses):
    page = PAGE.read_text()
    assert tables.recorded_on(FOLDER) in page and tables.markdown(diagnoses) in page


def test_ours_is_right_in_nine_of_ten_planted_cases_and_raises_no_alarm_at_a_healthy_program(diagnoses):
    score = diagnoses.score(OURS)
    assert score.planted == sum(not case.is_healthy for case in cases.CASES) and not diagnoses.missing
    assert score.right >= 0.9 * score.planted and score.alone == score.right
    assert score.healthy == 5 and score.alarms == 0


def test_each_loss_has_its_reason_and_each_reason_its_loss(diagnoses):
    planted = [case for case in cases.CASES if not case.is_healthy]
    lost = [case.name for case in planted if not diagnoses.found[case.name][OURS].is_right(case)]
    told = PAGE.read_text().partition("## Where ours loses")[2]
    assert re.findall(r"^- \*\*(\w+)\*\*", told, re.MULTILINE) == [*lost, "budget"]


def test_a_wait_that_other_kernels_hide_costs_nothing():
    with opened("clinic_two_good") as report:
        waited = collectives.communication(report)
        assert (waited["waiting_ms"] > 0.3 * waited["total_ms"]).all() and (waited["exposed_ms"] < 3.1).all()
        assert ranks.late_within(report, report.window()) is None


# --- sizes --------------------------------------------------------------------------------------------------


def test_kernels_for_sizes_that_do_not_fit_are_found_and_only_those():
    with opened("clinic_text_odd") as report:
        first = advice.advice(report, budget(report))[0]
        found = sizes.misaligned(report, report.window())
    assert first.finding == advice.SIZES and first.what == cases.OTHER_CAUSES["sizes"]
    assert first.upper_bound_ms == found.alone_ms <= found.gpu_ms
    assert (found.least, found.older, found.capability) == (1, (7, 5), (9, 0)) and found.count == 135
    assert "(align1)" in first.evidence and "older generation (7.5, and the GPU has 9.0)" in first.evidence
    with opened("clinic_text_good") as report:
        assert sizes.misaligned(report, report.window()) is None


def test_in_every_product_that_was_timed_the_kernels_name_tells_whether_the_sizes_fit():
    """Of FP16, BF16 and TF32: N and K at multiples of 16 bytes, or a kernel that says that it fetches less at once."""
    needed = {"fp16": 8, "bf16": 8, "tf32": 4}
    record = json.loads((FOLDER / "benchmarks" / "bench_shapes-01.json").read_text())
    rows = [row for row in record["rows"] if row["what"] == "matmul" and row["part"] == "one" and row.get("kernels")]
    seen = {True: 0, False: 0}
    for row in rows:
        if row["dtype"] in needed and row["stride"] == "tight" and row["layout"] == "nn":
            names = [record["kernels"][number] for number in row["kernels"]]
            fits = all(row[side] % needed[row["dtype"]] == 0 for side in ("n", "k"))
            assert any(map(kernel_names.is_misaligned, names)) != fits, (row, names)
            seen[fits] += 1
    assert seen == {True: 97, False: 32}
