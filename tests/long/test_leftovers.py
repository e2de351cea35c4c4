"""What is left in the temporary folder and beside reports, after a normal end, Ctrl-C and a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.paths import ROOT
from labkit.source import running
from stepbudget.export import leftovers, nsys

MESSY = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

def test_a_mess(tmp_path):
    tempfile.mkdtemp(prefix="messy-")
    (tmp_path / "made").touch()
    subprocess.run([sys.executable, "-c", "import tempfile; tempfile.mkdtemp(prefix='messy-child-')"], check=True)
    Path(os.environ["BEGUN"]).touch()
    time.sleep(float(os.environ["LASTS"]))
    assert not os.environ.get("FAILS")
"""


@pytest.fixture
def messy(tmp_path):
    """Runs a test of this course that leaves what it likes, with an empty temporary folder: that folder."""
    course, folder = tmp_path / "course", tmp_path / "temporary"
    (course / "tests").mkdir(parents=True)
    folder.mkdir()
    shutil.copy(ROOT / "conftest.py", course)
    (course / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (course / "tests" / "test_messy.py").write_text(MESSY)

    def run(*words: str, lasts: float = 0, fails: str = "") -> tuple[Path, subprocess.Popen]:
        begun = tmp_path / "begun"
        begun.unlink(missing_ok=True)
        own = {"TMPDIR": str(folder), "BEGUN": str(begun), "LASTS": str(lasts), "FAILS": fails}
        own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which would take most of the time
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
            cwd=course,
            env=inherited | own,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        until = time.monotonic() + 300
        while not begun.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        return folder, process

    return run


TWO = ("-p", "xdist.plugin", "-n", "2", "--dist", "loadfile")


@pytest.mark.parametrize("words", [(), TWO], ids=["one process", "two"])
@pytest.mark.parametrize("ends", ["by itself", "by Ctrl-C"])
def test_a_run_of_tests_leaves_nothing_in_the_temporary_folder(messy, words, ends):
    folder, process = messy(*words, lasts=0 if ends == "by itself" else 600)
    if ends == "by Ctrl-C":
        assert len(list(folder.glob("gpulab-*/messy-*"))) == 2, "there it lay"
        os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == (0 if ends == "by itself" else 2), said
    assert not list(folder.iterdir())


def test_what_a_killed_or_failed_run_left_goes_with_the_next_one(messy):
    folder, process = messy(lasts=600)
    (held,) = folder.iterdir()
    _, second = messy()
    second.communicate(timeout=300)
    assert [*folder.iterdir()] == [held], "the first one still ran"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(list(held.glob("messy-*"))) == 2
    _, failing = messy(fails="yes")
    said, _ = failing.communicate(timeout=300)
    (left,) = folder.iterdir()
    assert left != held and f"what the tests made lies in {left} until the next run" in said
    assert list(left.glob("pytest-of-*/pytest-0/test_a_mess0/made"))
    _, last = messy()
    last.communicate(timeout=300)
    assert not list(folder.iterdir())


def test_scratch_folders_of_killed_processes_go_by_age(tmp_path):
    day = leftovers.OLD_S
    for name, age in (("labkit-run-old", day + 60), ("labkit-run-new", day - 60), ("runs", 2 * day)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "draft.json").touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / "labkit-run-link").symlink_to("runs")
    os.utime(tmp_path / "labkit-run-link", (time.time() - 2 * day,) * 2, follow_symlinks=False)
    leftovers.sweep(tmp_path, running.SCRATCH)
    leftovers.sweep(tmp_path / "nowhere", running.SCRATCH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labkit-run-link", "labkit-run-new", "runs"]
    assert list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (lambda folder: running.run_once("main_moon.py", folder / "run.json"), running.SCRATCH),
        (lambda folder: running.run_traced("main_moon.py", folder / "run.json"), running.SCRATCH_OF_TRACE),
        (lambda folder: nsys._exported(folder / "none", "", nsys.Nsys("/bin/false", (2030,)), folder), nsys.SCRATCH),
    ],
    ids=["a run", "a trace", "an export"],
)
def test_whoever_makes_the_next_ones_takes_the_old_ones_away(make, prefix, tmp_path):
    folder = tmp_path / "reports"
    (folder / f"{prefix}killed").mkdir(parents=True)
    os.utime(folder / f"{prefix}killed", (0, 0))
    with pytest.raises(Exception, match=r"main_moon\.py|it said nothing"):
        make(folder if "stepbudget" not in prefix else folder / "one.sqlite")
    assert not list(folder.iterdir())


def test_ranks_leave_none_of_torchruns_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(running.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "said.py").write_text("print('here')")
    for script, fails in ((tmp_path / "said.py", False), (tmp_path / "none.py", True)):
        command = f"torchrun --standalone --nproc-per-node 1 '{script}'"
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        if fails:
            with pytest.raises(running.LabError, match=r"none\.py"):
                running.run_ranks(command, variables=environment)
        else:
            running.run_ranks(command, variables=environment)
    assert {path.name for path in tmp_path.iterdir()} - {"torchinductor_root"} == {"said.py"}
