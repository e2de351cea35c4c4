"""What the lab on Nsight itself reads: nsys stats beside our sums, the rules of blame, a sleep under other names."""

from __future__ import annotations

import re

import numpy as np
import pytest

import stepbudget
from labkit import course
from labkit.labs import lab24
from labkit.paths import RECORDED, ROOT
from labkit.recording import plan
from stepbudget import ask, intervals
from stepbudget.ask.budget import CAUSES, IDLE
from stepbudget.export import stats
from stepbudget.report import open_report

PROFILES = RECORDED / course.DEFAULT_MACHINE / "profiles"


@pytest.fixture(scope="module")
def before():
    with open_report(PROFILES / "main_opt2.sqlite.xz") as report:
        yield report


@pytest.fixture(scope="module")
def sleeping():
    with open_report(PROFILES / "sleeping.sqlite.xz") as report:
        yield report


# --- nsys stats ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both():
    return lab24.checked(), lab24.told_by_nsys()


def test_the_sums_agree_to_the_nanosecond_and_hold_every_range(both):
    report, theirs = both
    found = lab24.beside(report, theirs).frame
    assert found["nsys stats: ns"].tolist() == found["here: ns"].tolist()
    assert {*report.ranges["name"], "all kernels", "all CUDA calls", "copies to the GPU"} == {*found["of"]}
    assert {*found["nsys stats --report"]} <= {names[0] for names in stats.TABLES.values()}
    assert (found["differ by: ns or counts"] == 0).all(), "in their counts, too"


def test_a_nanosecond_or_a_kernel_too_many_shows(both):
    report, theirs = both
    longer = theirs["ranges"].copy()
    longer.loc[longer["Range"].str.removeprefix(":") == "forward", "Total Time (ns)"] += 1
    more = theirs["kernels"].copy()
    more.loc[0, "Instances"] += 2
    differs = lab24.beside(report, theirs | {"ranges": longer, "kernels": more}).frame
    apart = differs.set_index("of")["differ by: ns or counts"]
    assert apart[apart > 0].to_dict() == {"forward": 1, "all kernels": 2}


# --- the rules ----------------------------------------------------------------------------------------------


def test_every_rule_of_the_code_is_there_in_order_with_rows_of_the_budget():
    found = lab24.rules()
    assert found["rule"].tolist() == list(range(1, len(found) + 1))
    named = ", ".join(found["cause"])
    assert {cause for cause in IDLE if CAUSES[cause] in named} == {*IDLE}
    assert found["cause"].iloc[-1] == CAUSES["unexplained"]
    assert not found["when"].str.contains(r"[()*`]|_").any()
    assert found["when"].str.len().between(20, 200).all()


def test_a_rule_says_the_code_s_constants(monkeypatch, capsys):
    monkeypatch.setattr(ask.budget, "LOADING_MS", 7.5)
    lab24.print_rules()
    said = capsys.readouterr().out
    assert "for longer than 7.5 ms in one" in said
    assert max(map(len, said.splitlines())) <= lab24.WIDTH
    assert len(re.findall(r"^ ?\d+\. ", said, re.MULTILINE)) == len(lab24.rules())


def test_the_order_of_the_rules_is_the_order_of_the_code_s_claims(sleeping):
    """Names before states: what rule 9 takes, rule 11 would have taken."""
    rules = lab24.rules().set_index("cause")["rule"]
    assert rules[CAUSES["loader"]] < rules[CAUSES["optimizer"]] < rules[CAUSES["python"]] < rules[CAUSES["os_wait"]]
    unnamed = lab24.as_if(sleeping, {"optimizer step": "update"})
    budgets = [ask.budget.budget(report) for report in (sleeping, unnamed)]
    moved = [budgets[1].ms[cause] - budgets[0].ms[cause] for cause in ("optimizer", "python", "os_wait")]
    assert moved[0] < -500 and moved[2] > 500 and sum(moved) == pytest.approx(0)


def test_another_name_moves_the_sleep_and_nothing_of_it_is_lost(sleeping):
    views = {
        "as it is": sleeping,
        "renamed": lab24.as_if(sleeping, {"optimizer step": "data loading"}),
        "unnamed": lab24.as_if(sleeping, {"optimizer step": "update"}),
        "untraced": lab24.as_if(sleeping, {"optimizer step": "update"}, without=("os_calls",)),
    }
    when = lab24.asleep(sleeping)
    found = lab24.blamed(views, when).frame.set_index("row of the budget")
    taken = [CAUSES[cause] for cause in ("optimizer", "loader", "os_wait", "unexplained")]
    assert found.idxmax().tolist() == taken
    assert (found.max() > 500).all() and (found.max() < 595).all()
    assert found.sum().tolist() == pytest.approx([found["as it is"].sum()] * 4)
    assert lab24.blamed(views, when[:0]).frame.shape == (len(IDLE), 1 + 4), "where nothing slept, every row is there"
    assert "optimizer step" in set(sleeping.ranges["name"]), "the report itself is left as it was"
    assert len(sleeping.os_calls)


# --- the sleep ----------------------------------------------------------------------------------------------


def test_each_step_sleeps_once_for_ten_milliseconds(before, sleeping):
    when = lab24.asleep(sleeping)
    assert len(when) == lab24.steps(sleeping) == lab24.steps(before) == 59
    assert ((when[:, 1] - when[:, 0]) / 1e6).tolist() == pytest.approx([10.1] * 59, abs=0.1)
    slept = [report.os_calls["name"].str.contains("sleep").sum() for report in (before, sleeping)]
    assert slept[0] == 0 < slept[1]
    held = lab24.asleep(before)  # by locks, and for less long
    assert (held[:, 1] - held[:, 0] < 1e7).all() and len(held) <= 2
    assert lab24.asleep(sleeping, "no such phase").tolist() == []


def test_every_moment_of_a_sleep_stands_in_one_row(sleeping):
    when = lab24.asleep(sleeping)
    found = lab24.meanwhile(sleeping, when)
    assert found.sum() == pytest.approx(intervals.total(when) / 1e6)
    assert found.idxmax() == CAUSES["optimizer"] and 0 < found[CAUSES["other_kernels"]] < 100
    shown_rows = lab24.meanwhile_table(sleeping).frame
    assert shown_rows["ms"].iloc[:-1].sum() == pytest.approx(shown_rows["ms"].iloc[-1])
    assert lab24.meanwhile(sleeping, np.empty((0, 2), dtype=np.int64)).sum() == 0


def test_the_row_that_grew_is_the_optimizer_s_by_what_the_gpu_idled_through(before, sleeping):
    row, ms = lab24.grown(ask.compare.compare(before, sleeping))
    assert row == "optimizer" and row in lab24.WORDS.values()
    assert ms == pytest.approx(lab24.meanwhile(sleeping, lab24.asleep(sleeping))[CAUSES["optimizer"]], rel=0.05)
    row, _ = lab24.grown(ask.compare.compare(sleeping, before))
    assert row == "loader"


def test_the_bound_of_a_sleep_lies_below_what_was_measured(before, sleeping):
    least_ms = lab24.steps(before) * 10 + lab24.own_ms(before)
    assert 0.5 * sleeping.window().duration_ms < least_ms < sleeping.window().duration_ms


# --- the report and the drawing -----------------------------------------------------------------------------


def test_the_shipped_report_says_how_it_was_made():
    made = lab24.made_by()
    assert plan.NSIGHT_PROGRAM in made["command"] and " ".join(plan.NSIGHT_FLAGS) in made["command"]
    assert lab24.SHIPPED.is_file() and made["nsys"] == "2025.3.1"


def test_the_tables_of_the_drawing_are_there():
    named = re.findall(r">sb\.([^<]+)<", (ROOT / "images" / "nsight_window.svg").read_text())
    assert len(named) == 6 and all(callable(getattr(stepbudget, word)) for words in named for word in words.split(", "))
