"""Backtraces as the nsys of this machine writes them; no GPU is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from stepbudget import backtraces
from stepbudget.export import nsys
from stepbudget.report import open_report


def test_a_live_recording_names_the_function_that_slept(tmp_path):
    """The chains of the operating system as an nsys of today writes them; no GPU is needed."""
    nsys.find_nsys.cache_clear()
    found, compiler = nsys.find_nsys(), shutil.which("cc")
    if found is None or compiler is None:
        pytest.skip("needs nsys and a C compiler")
    source = "#include <time.h>\nstatic void __attribute__((noinline)) rest_here(void) {\n"
    source += "  struct timespec t = {0, 5000000}; nanosleep(&t, 0);\n}\n"
    source += "int main(void) { for (int i = 0; i < 40; ++i) rest_here(); return 0; }\n"
    (tmp_path / "rest.c").write_text(source)
    subprocess.run([compiler, "-g", "-O1", "-fno-omit-frame-pointer", "-o", "rest", "rest.c"], cwd=tmp_path, check=True)
    options = ["--trace", "osrt", "--sample", "process-tree", "--cpuctxsw", "none", "--backtrace", "fp"]
    session = f"lines-{os.getpid()}"
    made = [found.path, "profile", *options, "--session-new", session, "--output", "rest", "./rest"]
    with contextlib.suppress(subprocess.TimeoutExpired), (tmp_path / "log").open("w") as log:
        subprocess.run(made, cwd=tmp_path, stdout=log, stderr=log, timeout=10)
    end_agents(session)
    if not (tmp_path / "rest.nsys-rep").is_file():  # nsys 2022.4 does not always come to an end where it samples
        pytest.skip(f"nsys records no backtraces here: {(tmp_path / 'log').read_text()[-200:]}")
    report = open_report(tmp_path / "rest.nsys-rep")
    slept = backtraces.chained(report, "OSRT_API")["frame"].map(str)
    assert (slept == "rest in rest_here").sum() >= 20, slept.value_counts()


def end_agents(session: str) -> None:
    """End the processes that nsys leaves behind where it is interrupted: those of this session alone."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"--session-name={session}\0".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
