"""A report ten times as large takes ten times the work, not a hundred times: counted in calls, not in seconds."""

from __future__ import annotations

import cProfile
import re
from pathlib import Path

import pandas as pd
import pytest

from stepbudget import kernel_names
from stepbudget.ask.budget import budget
from stepbudget.coded import coded, each
from stepbudget.report import open_report
from stepbudget.show import summary
from synthetic import AUTOGRAD, SyntheticReport, changed

LONG = "void my::kernel<" + "std::tuple<at::native::Functor<float, (int)4>, " * 4000 + ">" * 4000


def made(folder: Path, steps: int, range_name: str, kernel: str = "sgemm") -> Path:
    """A report of steps of 100 µs, each of four ranges and a kernel; ``range_name`` may hold the range's number."""
    report = SyntheticReport(folder / f"{steps}.sqlite").range(0, 100 * steps, "training")
    for step in range(steps):
        at = 100 * step
        report.range(at, at + 99, range_name.format(2 * step)).range(at + 1, at + 9, "data loading")
        report.range(at + 10, at + 90, range_name.format(2 * step + 1)).range(at + 20, at + 30, "aten::mm", AUTOGRAD)
        report.kernel(at + 30, at + 60, kernel, call=(at + 21, at + 23), thread=AUTOGRAD)
        report.os_call(at + 2, at + 8, "poll")
    return report.write()


def calls(path: Path) -> int:
    """How many calls, of Python and from it, the whole answer takes."""
    with open_report(path) as report:
        profile = cProfile.Profile()
        profile.enable()
        found = budget(report)
        summary.plain(summary.summary(report, found.window, found))
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize(("name", "most"), [("forward", 200), ("step {0}", 400), ("module {0}", 450)])
def test_a_step_more_costs_what_a_step_costs(tmp_path, name, most):
    """The calls that steps add: few for each, and no more for each of many than for each of few."""
    calls(made(tmp_path, 50, name))  # what only the first report of a process takes
    few, more, many = (calls(made(tmp_path, steps, name)) for steps in (100, 200, 400))
    assert many - more <= 1.2 * 2 * (more - few) + 2000
    assert (many - more) / 200 <= most


def test_no_rule_for_names_reads_on_from_each_place_to_the_end():
    """A pattern that may go on without end after a word takes the square of a name in which the word comes often."""
    patterns = [rule.pattern for rule in kernel_names.RULES]
    patterns += [one.pattern for one in (kernel_names.PRODUCT, kernel_names.HELPER, kernel_names.COLLECTIVE)]
    endless = re.compile(r"(?<!\^\(\?=)(?<!\)\(\?=)(?:\.|\\w|\\S)[*+]")
    assert [pattern for pattern in patterns if endless.search(pattern)] == []
    assert kernel_names.rule_of("gemm_" * 40_000).verdict == kernel_names.UNKNOWN
    assert kernel_names.rule_of("gemm_" * 40_000 + "s884").verdict == kernel_names.YES


def test_a_long_name_is_looked_at_once_and_not_in_each_row(tmp_path, monkeypatch):
    """pandas' own tables of texts look at all letters of each row: no such name gets into one."""
    seen: list[int] = []
    whole = pd.factorize

    def factorize(values, *args, **kwargs):
        texts = [value for value in values if isinstance(value, str)]
        seen.append(sum(len(text) for text in texts))
        return whole(values, *args, **kwargs)

    path = made(tmp_path, 200, "forward", LONG)
    monkeypatch.setattr(pd, "factorize", factorize)
    monkeypatch.setattr(pd.core.algorithms, "factorize", factorize)
    with open_report(path) as report:
        found = budget(report)
        answer = summary.plain(summary.summary(report, found.window, found))
    assert [kernel["count"] for kernel in answer["kernels"]] == [200]
    assert sum(seen) < 20 * len(LONG)


def test_equal_texts_have_one_number_in_order_of_their_first_appearance():
    texts = pd.Series(["b", "a", "b", None, "a", None], dtype=object)
    codes, different = coded(texts)
    assert codes.tolist() == [0, 1, 0, 2, 1, 2]
    assert different == ["b", "a", None]
    assert coded(pd.Series([], dtype=object))[1] == []
    asked: list[str] = []
    assert each(texts.dropna(), lambda text: asked.append(text) or text.upper()).tolist() == ["B", "A", "B", "A"]
    assert asked == ["b", "a"], "each different one is asked about once"


def test_ranges_come_in_order_with_their_names_however_these_are_kept(tmp_path):
    """As a text, as the id of one, or as none; of ranges that start together the outer first, an open one before it."""
    report = SyntheticReport(tmp_path / "names.sqlite")
    report.range(5, 6, "inner").range(5, 9, "outer", registered=True).range(5, None, "open").range(1, 2, "first")
    columns = "start, end, eventType, globalTid, textId"
    path = changed(report.write(), f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (9000000, 9000001, 59, 1, 77)")
    with open_report(path) as found:
        assert found.ranges["name"].tolist() == ["first", "open", "outer", "inner", "(unnamed range)"]
