"""The morning check: each thing that may be wrong is found, and what mends it is said."""

from __future__ import annotations

import importlib.metadata
import os
import stat
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import doctor
from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.versions import before
from stepbudget.export import nsys

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def fake_nsys(monkeypatch, tmp_path):
    """An nsys that answers as a shell script says; its version is asked first."""

    def make(script: str) -> None:
        tool = tmp_path / "nsys"
        tool.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "version 2025.3.1.0" && exit\n{script}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("LAB_NSYS", str(tool))

    nsys.find_nsys.cache_clear()
    yield make
    nsys.find_nsys.cache_clear()


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch):
    wants = [
        "numpy>=1",
        'stepbudget[read]; extra == "course"',
        'pandas>=99; extra == "read"',
        'nosuch; extra == "course"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wants)
    rows = {what: (found, so) for what, found, so in doctor.packages("course")}
    assert set(rows) == {"package pandas", "package nosuch"}
    assert rows["package nosuch"] == ("not installed", "make lab installs it") and ">=99" in rows["package pandas"][0]
    assert [found for _, found, _ in doctor.packages("other")] == ["all 1 as wanted"]


def test_a_course_that_is_not_installed_is_no_traceback(monkeypatch):
    def gone(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", gone)
    assert [*doctor.packages("course")] == [("packages", "the course is not installed", "make lab installs it")]


def test_what_left_the_tested_set_is_told_and_the_first_of_it_named(monkeypatch):
    differs = {name: ("2.0", "2.1") for name in "abcdef"} | {"the reader's own": ("", "1.0")}
    monkeypatch.setattr(doctor.versions, "moved", lambda file: dict([*differs.items()][:shown]))
    monkeypatch.setattr(doctor.versions, "held_by", lambda: Path(__file__))  # a file that is there, on any Python
    found = {}
    for shown in (0, 1, 7):
        [(_, found[shown], follows)] = doctor.tested_set()
        assert follows == "", "another version is no fault"
    assert found[0] == "all packages" and found[1] == "all but 1: a 2.1 (tested: 2.0)"
    assert found[7].startswith("all but 6: a 2.1 (tested: 2.0), b") and found[7].endswith(" and 2 others")
    monkeypatch.setattr(doctor.versions, "held_by", lambda: Path("none.txt"))
    assert [*doctor.tested_set()] == [("tested together", "nothing yet on this Python", "")]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo The importer does not start >&2; exit 1", "its importer does not start"),
        ("sleep 60", "did not end within"),
        ('[ "$1" = profile ] && : >"$7.nsys-rep" && exit 0; exit 1', "could not export"),
    ],
)
def test_an_nsys_that_fails_or_hangs_is_told(fake_nsys, monkeypatch, script, said):
    monkeypatch.setattr(doctor, "PATIENCE_S", 1.0)
    fake_nsys(script.replace("$7", "${9}"))
    what, found, so = doctor.profiler()
    assert (what, found) == ("a profile", "none") and said in so


def test_no_nsys_is_one_sentence(monkeypatch):
    monkeypatch.setattr(nsys, "find_nsys", lambda: None)
    assert "was not found" in doctor.profiler()[2]


def test_too_little_shared_memory_names_the_containers_flag(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: Usage(64e6, 0, 64e6))
    assert doctor.shared_memory(15, tmp_path)[2] == "in a container: docker run --ipc=host"
    assert doctor.shared_memory(1, tmp_path)[2] == ""
    assert doctor.shared_memory(1, tmp_path / "none")[1] == "not told"


def test_a_full_disk_and_a_folder_of_somebody_elses_are_told(monkeypatch, tmp_path):
    assert doctor.disk(tmp_path / "not" / "yet")[2] == "" or "make room" in doctor.disk(tmp_path)[2]
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: Usage(9e9, 0, 1e9))
    assert "make room" in doctor.disk(tmp_path)[2]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "not writable" in doctor.disk(tmp_path)[1] and str(tmp_path) in doctor.disk(tmp_path)[2]


def page(**environment):
    words = [sys.executable, "-m", "labkit.doctor"]
    return subprocess.run(
        words, env=os.environ | environment, capture_output=True, text=True, cwd=Path(__file__).parent
    )


def test_the_page_has_all_and_ends_well_where_the_labs_show_what_was_recorded():
    done = page(LAB_MODE="recorded")
    assert done.returncode == 0, done.stderr
    for what in (
        "Python",
        "packages",
        "GPU",
        "driver",
        "CPU cores",
        "a profile",
        "shared memory",
        "reports/",
        "recordings",
        "digits",
    ):
        assert any(line.startswith(what) for line in done.stdout.splitlines()), what
    assert done.stdout.splitlines()[-1].startswith("Recorded mode")


def test_a_mode_that_is_none_ends_badly_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("LAB_MODE", "bogus")
    with pytest.raises(SystemExit) as ended:
        doctor.main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "LAB_MODE=bogus is not a mode: use auto, live, recorded."


def test_each_mode_is_named_and_what_breaks_it(monkeypatch):
    monkeypatch.setattr(doctor, "packages", lambda extra: iter([("packages", "all 11 as wanted", "")]))
    at = {"recorded": SimpleNamespace(name="recorded", greeting="Recorded"), "live": SimpleNamespace(name="live")}
    monkeypatch.setattr(doctor.source, "current", lambda: at["recorded"])
    no_profile, differ = ("a profile", "none", "no importer"), ("recordings", "2 of 9 files differ", "git checkout")
    assert doctor.mode([no_profile]) == "Recorded", "recorded results need no profile"
    with pytest.raises(LabError, match="2 of 9 files differ; git checkout"):
        doctor.mode([differ])
    monkeypatch.setattr(doctor.source, "current", lambda: at["live"])
    assert "LAB_MODE=recorded" in doctor.mode([differ, no_profile])
    monkeypatch.setattr(doctor, "packages", lambda extra: iter([("package pandas", "not installed", "make read")]))
    with pytest.raises(LabError, match="do not open: package pandas: not installed"):
        doctor.mode([])


@pytest.mark.parametrize(
    ("driver", "tool", "free_gb", "said"),
    [
        ("", None, 50.0, "show recorded results, without an NVIDIA driver and Nsight Systems. make read"),
        ("590.1", None, 50.0, "show recorded results, without Nsight Systems."),
        ("590.1", nsys.Nsys("nsys", (2026, 1)), 50.0, "the labs run live, if PyTorch sees the GPU."),
        ("590.1", nsys.Nsys("nsys", (2026, 1)), 2.0, "installed yet. make read: recorded results without PyTorch."),
        ("", None, 0.1, "There is room for nothing."),
    ],
)
def test_before_an_installation_it_says_what_one_would_give(monkeypatch, driver, tool, free_gb, said):
    monkeypatch.delenv("LAB_NSYS", raising=False)
    assert said in before.conclusion(driver, tool, free_gb)
    follows = {what: so for what, _, so in before.rows(driver, tool, free_gb)}
    assert bool(follows["Nsight Systems"]) is (tool is None) and bool(follows["disk"]) is (free_gb < 6)
    assert not follows["driver"] and "CUDA 12" in before.rows("550.1", tool, free_gb)[1][2]


def test_before_an_installation_a_folder_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in before.rows("", None, 50.0)[-1][2]


def test_before_an_installation_the_standard_library_is_enough():
    words = [sys.executable, "-IS", "-c", f"import sys; sys.path.append({str(SOURCE_CODE)!r}); import runpy"]
    words[-1] += "; runpy.run_module('labkit.versions.before', run_name='__main__')"
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and "Nothing is installed yet." in done.stdout, done.stderr
