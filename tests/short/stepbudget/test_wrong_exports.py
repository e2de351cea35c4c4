"""Which export is a report's own? The new report is read, whatever the clock said and whatever lies beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stepbudget.errors import ReportError
from stepbudget.export import nsys, processes
from stepbudget.report import open_report
from stepbudget.show import summary
from synthetic import SyntheticReport

NEW, OLD, FOREIGN = "of the new report", "of the old report", "of a stranger"
NSYS_REP = b"NVIDIA Tegra Profiler\x00 2024.6.2.225-246235244400v0 "


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """An nsys whose export holds the range that the report's last line names; what it was asked is counted."""
    calls = tmp_path / "tool" / "calls"
    calls.parent.mkdir()
    for word in (NEW, OLD):
        SyntheticReport(calls.parent / f"{word}.sqlite").range(0, 100, word).kernel(1, 2, "k", call=(0, 1)).write()
    script = calls.parent / "nsys"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2025.3.1.90-1"; exit 0; }\n'
        f'[ "$2" = --help ] && exit 0\necho "$*" >> {calls}\n'
        'while [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done\n'
        f'cp "{calls.parent}/$(tail -n 1 "$1").sqlite" "$out"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("LAB_NSYS", str(script))
    nsys.find_nsys.cache_clear()
    yield calls
    nsys.find_nsys.cache_clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def write(folder: Path, word: str) -> Path:
    path = folder / "demo.nsys-rep"
    path.write_bytes(NSYS_REP + b"\n" + word.encode())
    return path


def ranges(path: Path) -> list[str]:
    with open_report(path) as report:
        return list(report.ranges["name"])


def foreign(folder: Path) -> Path:
    return SyntheticReport(folder / "demo.sqlite").range(0, 100, FOREIGN).kernel(1, 2, "k", call=(0, 1)).write()


def test_a_clock_that_was_set_back_hides_no_new_report(tool, folder):
    path = write(folder, OLD)
    assert ranges(path) == [OLD]
    write(folder, NEW)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert ranges(path) == [NEW] and ranges(path) == [NEW]
    assert tool.read_text().count("export --type") == 2, "once for each report"


def test_a_report_of_the_same_size_and_moment_is_another(tool, folder):
    path = write(folder, OLD)
    told = path.stat()
    assert ranges(path) == [OLD] and len(NEW) == len(OLD)
    write(folder, NEW)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert ranges(path) == [NEW]


def test_a_newer_export_of_a_stranger_is_neither_read_nor_overwritten(tool, folder):
    path, others = write(folder, NEW), foreign(folder)
    later = time.time() + 100
    os.utime(others, (later, later))
    assert ranges(path) == [NEW] and ranges(path) == [NEW] and ranges(others) == [FOREIGN]
    assert sorted(file.name for file in folder.iterdir()) == ["demo.nsys-rep", "demo.nsys-rep.sqlite", "demo.sqlite"]
    assert tool.read_text().count("export --type") == 1, "its own is found the next time"


def test_a_damaged_file_beside_a_report_is_not_in_the_way(tool, folder):
    path = write(folder, NEW)
    (folder / "demo.sqlite").write_bytes(b"half")
    assert ranges(path) == [NEW] and (folder / "demo.sqlite").read_bytes() == b"half"


def test_where_no_new_one_can_be_made_the_answer_says_that_it_may_be_a_strangers(tool, folder, monkeypatch):
    path = write(folder, NEW)
    foreign(folder)
    monkeypatch.setenv("LAB_NSYS", str(folder / "none"))
    with open_report(path) as report:
        (said,) = summary.summary(report)["remarks"]
    assert said.endswith("if it is its own: nothing in that file says so")


def test_an_nsys_that_hangs_over_an_export_is_ended_and_told(tool, folder, monkeypatch):
    (tool.parent / "nsys").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2025.3.1.90-1"; exit 0; }\n'
        '[ "$2" = --help ] && exit 0\nsleep 600\n'
    )
    monkeypatch.setattr(processes, "STALLED_S", 1.0)
    with pytest.raises(ReportError, match=r"could not export demo\.nsys-rep.*neither said nor computed"):
        open_report(write(folder, NEW))
    assert [file.name for file in folder.iterdir()] == ["demo.nsys-rep"]


# --- LAB_NSYS -----------------------------------------------------------------------------------------------


def wrong(tmp_path: Path) -> dict[str, Path]:
    latin, deaf = tmp_path / "latin", tmp_path / "deaf"
    latin.write_bytes(b"#!/bin/sh\nprintf 'Nsight \\351\\377 no number\\n'\n")
    deaf.write_text("#!/bin/sh\nexit 3\n")
    for file in (latin, deaf):
        file.chmod(0o755)
    plain = tmp_path / "plain"
    plain.write_text("no program")
    plain.chmod(0o644)
    return {
        "which is a folder: name the program in it": tmp_path,
        "which is no file": tmp_path / "none",
        "which is a file that may not be executed": plain,
        "which is no nsys that tells its version": latin,
        "is no nsys that tells its version": deaf,
    }


def test_an_nsys_that_is_wrongly_named_is_told_with_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys, "_installed_nsys", list)
    for words, path in wrong(tmp_path).items():
        monkeypatch.setenv("LAB_NSYS", str(path))
        nsys.find_nsys.cache_clear()
        with pytest.raises(ReportError) as told:
            nsys.need_nsys()
        assert str(told.value).startswith(f"LAB_NSYS names {path}, which is") and words in str(told.value)
    nsys.find_nsys.cache_clear()


def test_a_version_in_other_letters_is_read(tmp_path, monkeypatch):
    tool = tmp_path / "nsys"
    tool.write_bytes(b"#!/bin/sh\nprintf 'NVIDIA\\256 Nsight Systems\\231 version 2025.3.1.90-1\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("LAB_NSYS", str(tool))
    nsys.find_nsys.cache_clear()
    assert nsys.find_nsys().version == (2025, 3, 1)
    nsys.find_nsys.cache_clear()
