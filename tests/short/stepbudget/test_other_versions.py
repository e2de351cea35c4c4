"""Reports of an older or a newer Nsight Systems: read as far as they go, and what they lack is said, not shown as 0."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

import synthetic
from labkit.source import recorded
from stepbudget.ask.launch import launches
from stepbudget.report import open_report

SLIM = recorded.folder() / "profiles" / "main_opt3.sqlite.xz"
# A table that some version does not write, or that nobody asked for: what is said, and which causes can then be no more
# than 0, since nothing tells them.
LACKING = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernels: the report holds none", {"tensor_core_kernels", "other_kernels"}),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("CUDA API calls", {"synchronisation", "launch_overhead"}),
    "NVTX_EVENTS": ("NVTX ranges", {"optimizer"}),
    "OSRT_API": ("operating system calls", {"os_wait"}),
    "GPU_METRICS": ("GPU counters", set()),
    "TARGET_INFO_GPU_METRICS": ("GPU counters", set()),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "main_opt3.sqlite"
    path.write_bytes(lzma.decompress(SLIM.read_bytes()))
    return path


def changed(whole: Path, folder: Path, *statements: str) -> Path:
    path = folder / whole.name
    shutil.copyfile(whole, path)
    return synthetic.changed(path, *statements)


@pytest.mark.parametrize("table", LACKING)
def test_a_table_that_a_version_does_not_write_is_said_to_be_missing(table, whole, tmp_path, answer):
    words, untold = LACKING[table]
    found = answer(changed(whole, tmp_path, f"DROP TABLE {table}"))
    assert any(line.startswith(words) for line in found["not_looked_at"])
    assert not any(found["budget"].get(cause) for cause in untold)
    assert sum(share or 0 for share in found["budget"].values()) == pytest.approx(1)


@pytest.mark.filterwarnings("error")
def test_without_calls_no_launch_is_made_up(whole, tmp_path):
    with open_report(changed(whole, tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")) as report:
        assert launches(report).empty


def test_what_says_who_made_it_may_be_absent(whole, tmp_path, answer):
    gone = [f"DROP TABLE {table}" for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "META_DATA_EXPORT")]
    found = answer(changed(whole, tmp_path, *gone))
    assert found["gpu"] is None and found["nsys_version"] is None
    assert sum(share or 0 for share in found["budget"].values()) == pytest.approx(1) and found["kernels"]


@pytest.mark.parametrize(
    ("table", "column"),
    [("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"), ("NVTX_EVENTS", "eventType"), ("OSRT_API", "end")],
)
def test_a_column_that_a_newer_version_renamed_is_one_sentence(table, column, whole, tmp_path, ask):
    path = changed(whole, tmp_path, f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{column}OfTomorrow"')
    status, out, err = ask(path)
    assert (status, out) == (2, "") and err.count("\n") == 1 and f"{table} has no column {column}" in err


def test_tables_and_columns_that_only_a_newer_version_writes_change_nothing(whole, tmp_path, answer):
    before = answer(whole)
    more = [
        "CREATE TABLE ACTIVITY_OF_TOMORROW (start INT, end INT)",
        'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN "clusterOfTomorrow" INT',
    ]
    assert answer(changed(whole, tmp_path, *more)) == before


def test_rows_may_come_in_any_order(whole, tmp_path, answer):
    """From 2025.6 on an export's rows are in no particular order (its release notes), not even in that of time."""
    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "GPU_METRICS")
    mixed = [
        statement
        for table in tables
        for statement in (
            f"CREATE TABLE mixed AS SELECT * FROM {table} ORDER BY rowid * 7919 % 10007, rowid",
            f"DROP TABLE {table}",
            f"ALTER TABLE mixed RENAME TO {table}",
        )
    ]
    assert answer(changed(whole, tmp_path, *mixed)) == answer(whole)


def test_pytorchs_own_ranges_tell_steps_and_loader_without_a_line_of_code(tmp_path, answer):
    """What is left of a report where the program names nothing: the operators' ranges alone, as of nsys --pytorch."""
    (tmp_path / "whole").mkdir()
    path = tmp_path / "whole" / "main_opt2_ops.sqlite"
    path.write_bytes(lzma.decompress((SLIM.parent / "main_opt2_ops.sqlite.xz").read_bytes()))
    named = answer(path)
    bare = answer(changed(path, tmp_path, "DELETE FROM NVTX_EVENTS WHERE text NOT LIKE '%, op_id = %'"))
    assert (named["range"], bare["range"]) == ("training", "whole capture")
    assert bare["steps"] == named["steps"] == 59
    assert bare["advice"][0]["cause"] == named["advice"][0]["cause"] == "loader"
    assert [row["tflops"] for row in bare["flops"] if row["tflops"]]
