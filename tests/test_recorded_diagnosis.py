"""The clinic's recorded reports: the table of the documentation is today's, ours is right, and two GPUs add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit import cases, course
from labkit.paths import RECORDED
from labkit.topics.diagnosis import page, tables
from stepbudget import kernel_names
from stepbudget.ask import advice, collectives, ranks, sizes
from stepbudget.ask.budget import budget
from stepbudget.report import Report, open_report
from stepbudget.say import ranks as say

FOLDER = RECORDED / course.DEFAULT_MACHINE
PAGE = Path(ranks.__file__).parents[1] / "DIAGNOSIS.md"
TWO = [case for case in cases.CASES if case.gpus == 2]
COMMUNICATION = ("total_ms", "hidden_ms", "exposed_ms", "waiting_ms", "transfer_ms", "unmatched_ms")


@pytest.fixture(scope="module")
def diagnoses() -> tables.Diagnoses:
    return tables.diagnose(FOLDER)


def opened(name: str) -> Report:
    return open_report(FOLDER / "profiles" / f"{name}.sqlite.xz")


# --- the table ----------------------------------------------------------------------------------------------


def test_the_page_of_the_documentation_is_what_the_command_prints(diagnoses):
    assert PAGE.read_text() == page.page(diagnoses, FOLDER)


def test_ours_is_right_in_nine_of_ten_planted_cases_and_each_of_its_alarms_has_its_reason(diagnoses):
    score = diagnoses.score(page.OURS)
    assert score.planted == sum(not case.is_healthy for case in cases.CASES) and not diagnoses.missing
    assert score.right >= 0.9 * score.planted and score.alone == score.right
    assert score.healthy == 5 and score.alarms == len([case for case in cases.CASES if case.turned_out]) <= 1


def test_each_loss_has_its_reason_and_each_reason_its_loss(diagnoses):
    assert page.losses(diagnoses) == list(page.LOST)


def test_an_alarm_s_reason_is_in_the_report_and_on_the_page():
    unhealthy = [case for case in cases.CASES if case.turned_out]
    assert all(case.is_healthy and case.turned_out in PAGE.read_text() for case in unhealthy)
    for case in unhealthy:
        assert case.name == "two_good"
        with opened(case.report) as report:
            idle_ms = [budget(report, report.window(gpu=gpu), gpu).idle_ms for gpu in (0, 1)]
            late = ranks.late_within(report, report.window())
        assert idle_ms == pytest.approx([28, 3], abs=0.6) and late.exposed_ms == pytest.approx(15, abs=0.2)
        assert (late.number, late.last, late.matched) == (0, 104, 104)


# --- two GPUs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TWO, ids=lambda case: case.name)
def test_the_budget_and_the_communication_of_each_rank_add_up(case):
    with opened(case.report) as report:
        found = ranks.together([report])
        assert [rank.window.gpu for rank in found.ranks] == [0, 1] and found.told_apart
        for rank in found.ranks:
            assert sum(rank.budget.fractions.values()) == pytest.approx(1, abs=1e-9)
            split = rank.communication
            total, hidden, exposed, waiting, transfer, unmatched = (split[name] for name in COMMUNICATION)
            assert hidden + exposed == pytest.approx(total, abs=1e-6) and total > 0
            assert waiting + transfer + unmatched == pytest.approx(total, abs=1e-6) and unmatched == 0
            assert split["kernels"] == split["matched"] == 104
            assert exposed >= rank.budget.ms["communication"] - 1e-6


@pytest.mark.parametrize("case", [case for case in TWO if case.late is not None], ids=lambda case: case.name)
def test_the_late_rank_is_named_with_its_reason_whichever_gpu_is_asked_about(case):
    with opened(case.report) as report:
        together = ranks.late(ranks.together([report]))
        assert together.number == case.late and together.cause in case.right
        assert together.exposed_ms <= together.alone_ms and together.at_most_ms <= together.alone_ms
        text = " ".join(say.lines(say.summary(ranks.together([report]))))
        assert f"rank {case.late} came last to" in text and f"{together.reason} took it" in text
        for gpu in (0, 1):
            first = advice.advice(report, budget(report, report.window(gpu=gpu), gpu))[0]
            assert (first.finding, first.gpu) == (advice.LATE, case.late) and first.cause in case.right
            assert first.what.startswith(f"GPU {case.late} is late: ")


def test_a_wait_that_other_kernels_hide_costs_nothing():
    with opened("clinic_two_good") as report:
        late = ranks.late_within(report, report.window())
        own = collectives.communication(report).set_index("gpu").loc[1]
        assert late.alone_ms == pytest.approx(own["waiting_ms"]) and late.exposed_ms < 0.25 * late.alone_ms
        assert late.exposed_ms < own["exposed_ms"]


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
