"""The plain sums, by SQL alone, and the full answer, by tables in memory, read the same export in the same way."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.recording import plan
from labkit.source import recorded
from stepbudget.ask import copies, sums
from stepbudget.report import open_report
from synthetic import SyntheticReport

PROFILES = recorded.folder() / "profiles"
MEASURES = ["count", "total_ns", "min_ns", "max_ns"]


def from_sums(found: dict[str, list[tuple]], question: str, *names: str) -> dict:
    """Of each name (or names) its count, total, shortest and longest."""
    rows = sums.objects(found)[question]
    return {tuple(row[name] for name in names): tuple(row[measure] for measure in MEASURES) for row in rows}


def from_table(table: pd.DataFrame, *names: str) -> dict:
    """The same of a table of the report."""
    ns = (table["end"] - table["start"]).groupby([table[name] for name in names])
    rows = ns.agg(["size", "sum", "min", "max"]).itertuples(name=None)
    return {key if len(names) > 1 else (key,): tuple(row) for key, *row in rows}


def read_alike(path: object) -> None:
    found = sums.sums(path)
    with open_report(path) as report:
        for question, table in {"ranges": report.ranges, "kernels": report.kernels, "calls": report.api}.items():
            assert from_sums(found, question, "name") == from_table(table, "name"), question
        moved = from_sums(found, "copies", "direction", "memory")
        filled = [moved.pop(key)[0] for key in list(moved) if key[0] == "memset"]
        assert moved == from_table(copies.with_memory(report, report.copies), "direction", "host_memory")
        assert sum(filled) == len(report.memsets)
        sizes = copies.labelled(report, report.extent).groupby(["direction", "host_memory"])["bytes"].sum().to_dict()
        rows = [row for row in sums.objects(found)["copies"] if row["direction"] != "memset"]
        assert {(row["direction"], row["memory"]): row["bytes"] for row in rows} == sizes


@pytest.mark.parametrize("name", [*plan.CHECKED, "main_opt3_ops", "main_opt5", "main_baseline", "keras_mixed_torch"])
def test_recorded_reports_are_read_alike(name):
    read_alike(PROFILES / f"{name}.sqlite.xz")


PARTS = ["aten::add", ", seq = ", ", op_id = 3", ", sizes = [[2]]", "_v", "_v7000", "7", "\u0667", "cuX", "\n", ""]
names = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join)


@settings(max_examples=40)
@given(rows=st.lists(st.tuples(names, st.integers(0, 9)), min_size=1, max_size=8), registered=st.booleans())
def test_whatever_the_names_they_are_read_alike(tmp_path_factory, rows, registered):
    build = SyntheticReport(tmp_path_factory.getbasetemp() / "alike.sqlite")
    for start, (name, lasts) in enumerate(rows):
        build.range(start, start + lasts, name, registered=registered).api(start, start + lasts, name)
        build.kernel(start, start + lasts, name, call=(start, start)).copy(start, start + lasts, lasts, memory="pinned")
    read_alike(build.range(50, None, "open").memset(1, 2, 3).write())
