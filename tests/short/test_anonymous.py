"""A report that may be passed on: what stands in the shipped one, and what the profiler sees that makes such a one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import course
from labkit.errors import LabError
from labkit.paths import RECORDED, ROOT
from labkit.recording import anonymous, plan
from stepbudget.export import nsys, profile

SHIPPED = RECORDED / course.DEFAULT_MACHINE / plan.NSIGHT
PASSED = {*anonymous.KEPT, *anonymous.GIVEN, *anonymous.ADDED}
# What compression leaves of names that nsys gives its own variables and its descriptions of counters.
OF_NSYS = {
    "FEATURES", "INJECTION", "SC_SUPPORT", "STANT_FRAME_RATE_HINT", "TRACE_START_IMMEDIATELY", "ZCULL", "_PROFILE_MODE",
}  # fmt: skip
COMMAND = shlex.split(
    "nsys profile --trace osrt,nvtx --sample none --cpuctxsw none --output reports/sleeper"
    " python3 -c 'import time; time.sleep(0.1)'"
)


# --- the shipped report -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> bytes:
    return SHIPPED.read_bytes()


def test_the_shipped_report_is_one_of_nsight_systems_and_small(shipped):
    assert b"NVIDIA Tegra Profiler Report" in shipped[:100]
    assert 100_000 < len(shipped) < 1_000_000
    assert all(word in shipped for word in (b"NVIDIA H200", b"main_baseline_nvtx.py", b"copy to device"))


def test_it_was_recorded_on_a_host_of_another_name_by_nobody(shipped):
    assert anonymous.HOST.encode() in shipped
    assert anonymous.homes(shipped) == [anonymous.HOME]
    addresses = rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"
    assert not re.search(rb"/(?:root|work|Users|mnt)/|" + addresses, shipped)


def test_it_holds_no_variable_but_those_that_were_passed(shipped):
    assert {"HOME", "PATH", "TMPDIR"} < {*anonymous.variables(shipped)} <= PASSED
    # ... nor anything else that looks like one, be it alone
    alone = {name.decode() for name in re.findall(rb"(?<![A-Za-z0-9_])([A-Z_][A-Z0-9_]{2,})=", shipped)}
    assert alone - PASSED <= OF_NSYS


def test_it_knows_of_no_program_but_its_own(shipped):
    scripts = {name.decode() for name in re.findall(rb"[\w./-]+\.py\b", shipped)}
    assert "source_code/main_baseline_nvtx.py" in " ".join(scripts)
    assert not re.search(rb"jupyter|sshd|/bash|docker|slurm|systemd|cron", shipped)


def test_it_holds_nothing_of_the_machine_of_whoever_tests(shipped):
    own = {name: os.environ.get(name) for name in anonymous.KEPT} | {"HOME": anonymous.HOME, "LANG": "C.UTF-8"}
    texts = [f"{name}={value}" for name, value in os.environ.items() if own.get(name) != value]
    assert not [text for text in texts if len(text) > 12 and text.encode() in shipped]


# --- what is found in one ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "found"),
    [
        (b"\n\x08HOME=/x\x00TERM=dumb\x00LANG=C\x00rest", ["HOME", "LANG", "TERM"]),
        (b"\x12\x05ALONE=1\x03 ZCULL= coarse depth test", []),
        (b"\x00A_1=2\x00_b=\x00", ["A_1", "_b"]),
        (b"", []),
    ],
)
def test_variables_are_found_in_lists(report, found):
    assert anonymous.variables(report) == found


def test_home_folders_are_found_and_others_are_not():
    report = b"\x0c/home/ada/x.py\x00/root\x00.cache\x00/opt/root /srv/home/bob ./home/eve"
    assert anonymous.homes(report) == ["/home/ada", "/root"]


def test_a_report_reveals_host_home_checkout_and_variables(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "adas-laptop")
    monkeypatch.setenv("HOME", "/home/ada.l")
    monkeypatch.setenv("SECRET_OF_ADA", "lovelace")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environment = {"LANG": "C.UTF-8", "HOME": anonymous.HOME}
    clean = b"gpu-course\x00HOME=/home/reader\x00LANG=C.UTF-8\x00PWD=/tmp/course\x00"
    assert anonymous.revealed(clean, environment) == []
    told = {
        b"on adas-laptop": ["adas-laptop"],
        b"/home/ada.l/train.py": ["/home/ada.l"],
        str(ROOT / "x.py").encode(): [str(ROOT)],
        b"\x07SECRET_OF_ADA=lovelace": ["SECRET_OF_ADA=lovelace"],
        b"\x00WHATEVER=1\x00EDITOR=vi\x00": ["EDITOR", "WHATEVER"],  # of another process
        b"\x00ANG=C.UTF-8\x00OME=x": [],  # the ends of names that were passed
    }
    for text, found in told.items():
        assert anonymous.revealed(clean + text, environment) == found


def test_a_folder_within_this_machines_own_reveals_nothing_more(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/scratch/of-ada")
    report = b"\x00TMPDIR=/scratch/of-ada/run\x00"
    assert anonymous.revealed(report, {"TMPDIR": "/scratch/of-ada/run"}) == []
    assert anonymous.revealed(report, {"TMPDIR": "/elsewhere"}) == ["TMPDIR=/scratch/of-ada"]


def test_a_user_without_a_home_reveals_no_less(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr(socket, "gethostname", lambda: "adas-laptop")
    with pytest.raises(RuntimeError):
        Path.home()
    assert anonymous.revealed(b"on adas-laptop, in ~/course", {}) == ["adas-laptop"]


# --- recording one -------------------------------------------------------------------------------------------

LOOKING = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
out=$2.nsys-rep; shift 2
{ echo "host $(hostname)"; echo "folder $(pwd)"; echo "program $*"; env | sed 's/^/variable /'
for one in /proc/[0-9]*/cmdline; do echo "process $(tr '\\0' ' ' < $one)"; done
ls source_code | sed 's/^/file /'; ls /dev/shm | sed 's/^/shared /'
} > "$out"
"""


@pytest.fixture
def apart(monkeypatch):
    """Where a process may be given a host's name, processes and mounts of its own; and a Python outside of /root."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if shutil.which("unshare") is None or python is None:
        pytest.skip("no unshare, or no system's Python, on this machine")
    if subprocess.run([*anonymous.HIDDEN, "true"], capture_output=True).returncode:
        pytest.skip("host and processes cannot be hidden here: that takes root, and namespaces that are allowed")
    monkeypatch.setattr(sys, "executable", python)
    for name in anonymous.KEPT:
        monkeypatch.delenv(name, raising=False)


def stand_in(folder: Path, text: str) -> nsys.Nsys:
    """A program that answers for nsys."""
    path = folder / "nsys"
    path.write_text(text)
    path.chmod(0o755)
    return nsys.Nsys(str(path), (2025, 3, 1))


def test_the_profiler_sees_neither_host_nor_user_nor_variables_nor_others(apart, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_ADA", "lovelace")
    monkeypatch.setenv("LAB_MANIFEST", "/tmp/manifest")
    (folder := tmp_path / "made").mkdir()
    report = anonymous.record(COMMAND, folder, stand_in(tmp_path, LOOKING))
    assert report == folder / "sleeper.nsys-rep"
    seen = {}
    for line in report.read_text().splitlines():
        kind, _, what = line.partition(" ")
        seen.setdefault(kind, []).append(what)
    assert seen["host"] == [anonymous.HOST] != [socket.gethostname()]
    assert seen["folder"] == [str(folder / "course")]
    assert seen["program"][0].startswith(f"{sys.executable} -c import time")
    names = {one.partition("=")[0] for one in seen["variable"]}
    assert {*anonymous.GIVEN, "LAB_MANIFEST"} <= names <= {*PASSED, "OLDPWD", "SHLVL", "_"}
    assert f"HOME={anonymous.HOME}" in seen["variable"]
    assert all(any(word in one for word in ("nsys", "sh ", "tr ")) or not one.strip() for one in seen["process"])
    assert "main_baseline_nvtx.py" in seen["file"] and "__pycache__" not in seen["file"]
    assert "shared" not in seen
    assert socket.gethostname() != anonymous.HOST, "the name is changed for the program alone"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo no such flag >&2; exit 3", "could not be recorded: .*no such flag"),
        ("exit 0", "could not be recorded"),
        (LOOKING.replace("host $(hostname)", "the checkout {ROOT}"), "may not be passed on: .*{ROOT}"),
    ],
)
def test_what_fails_or_tells_is_refused(apart, tmp_path, does, said):
    (folder := tmp_path / "made").mkdir()
    told = does.replace("{ROOT}", str(ROOT))
    with pytest.raises(LabError, match=said.replace("{ROOT}", re.escape(str(ROOT)))):
        anonymous.record(COMMAND, folder, stand_in(tmp_path, told if told.startswith("#!") else f"#!/bin/sh\n{told}\n"))


def test_the_nsys_of_this_machine_makes_such_a_report(apart, tmp_path):
    """On the CPU, with whatever version is there; and the same program, profiled plainly, tells more."""
    found = nsys.find_nsys()
    if found is None:
        pytest.skip("this machine has no nsys")
    (folder := tmp_path / "made").mkdir()
    report = anonymous.record(COMMAND, folder, found).read_bytes()
    assert anonymous.HOST.encode() in report and b"time.sleep" in report
    assert anonymous.homes(report) == [anonymous.HOME]
    assert {"HOME", "PATH"} < {*anonymous.variables(report)} <= PASSED
    plain = tmp_path / "plain"
    flags = COMMAND[2 : COMMAND.index("--output")]
    words = [found.path, "profile", *flags, "--output", str(plain), sys.executable, *COMMAND[COMMAND.index("-c") :]]
    told = plain.with_suffix(".nsys-rep")
    profile.record(words, told, found, lambda line: None, environment={"SECRET_OF_ADA": "lovelace"})
    assert b"SECRET_OF_ADA=lovelace" in told.read_bytes(), "so that the test can fail"
