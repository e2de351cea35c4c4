"""Two live runs at once: each knows of the other and waits for it, and nobody who is gone is waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from labkit.paths import SOURCE_CODE
from labkit.source import Live, Programs, kinds, turns, visible
from stand_in import A_GPU, NO_GPU

# A notebook that measures: it says what it is told to, and when its run began and ended.
NOTEBOOK = """
import json, os, sys, time
from pathlib import Path
from labkit.source import turns
turns.SHARED = Path(os.environ["TMPDIR"])
turns.PATIENCE_S, name, rounds, lasts = float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
say = lambda line: print(json.dumps(line), flush=True)
for number in range(rounds):
    with turns.turn(f"{name}.py", say, ["0"]):
        start = time.monotonic()
        say("begun")
        while not number and len(sys.argv) > 5 and not os.path.exists(sys.argv[5]):
            time.sleep(0.02)
        time.sleep(lasts)
        say([start, time.monotonic()])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder of the test's own, where the locks lie."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(turns, "SHARED", tmp_path)
    monkeypatch.setattr(visible, "listed", lambda: ())
    return tmp_path


def notebook(
    name: str, rounds: int = 1, lasts: float = 0.5, patience: float = 60, until: tuple[Path, ...] = ()
) -> subprocess.Popen:
    words = [sys.executable, "-c", NOTEBOOK, str(patience), name, str(rounds), str(lasts), *map(str, until)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_CODE)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def said(job: subprocess.Popen) -> list:
    out, _ = job.communicate(timeout=120)
    assert job.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def begun(job: subprocess.Popen) -> None:
    assert json.loads(job.stdout.readline()) == "begun"


def test_two_notebooks_take_turns_and_the_one_that_waits_says_for_whom(folder):
    first = notebook("main_a", rounds=3, lasts=0.6, until=(folder / "go",))
    begun(first)
    second = notebook("main_b", rounds=2, lasts=0.3)
    waits = json.loads(second.stdout.readline())
    (folder / "go").touch()
    lines = [said(first), said(second)]
    runs = sorted(line for told in lines for line in told if isinstance(line, list))
    assert len(runs) == 5 and all(before[1] <= after[0] for before, after in pairwise(runs))
    assert "another live run" in waits
    assert f"(process {first.pid}: main_a.py)" in waits and " since " in waits and "waiting for its end" in waits
    assert any("is free after" in line for line in lines[1])
    of_b = [run for run in runs if run in lines[1]]
    assert runs.index(of_b[0]) < 4, "who waits comes before the next run of the one that is at work"


def test_one_alone_says_nothing_and_leaves_one_small_file(folder):
    assert [type(line) for line in said(notebook("main_a", rounds=2, lasts=0))] == [str, list] * 2
    (file,) = folder.glob("*.lock")
    assert file.name == "gpu-performance-lab-gpu-0.lock" and file.stat().st_size < 100


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_was_killed_blocks_nobody(folder, how):
    first = notebook("main_a", lasts=600)
    begun(first)
    first.send_signal(how)
    first.wait()
    first.stdout.close()
    assert [type(line) for line in said(notebook("main_b", lasts=0))] == [str, list]


def test_patience_ends_and_what_follows_is_said(folder):
    first = notebook("main_a", lasts=600)
    begun(first)
    start = time.monotonic()
    lines = said(notebook("main_b", lasts=0, patience=1))
    assert time.monotonic() - start < 60
    assert "still there" in lines[1] and "the timings of both will differ" in lines[1] and lines[2] == "begun"
    first.kill()
    first.communicate()


def test_a_run_within_a_run_waits_for_nobody(folder):
    with turns.turn("outer", pytest.fail), turns.turn("inner", pytest.fail):
        pass
    with turns.turn("again", pytest.fail):
        assert "again" in (folder / f"gpu-performance-lab-gpu-{turns.gpus()[0]}.lock").read_text()


@pytest.mark.parametrize("visible, names", [("", ["0", "1"]), ("3", ["3"]), ("1,GPU-8f3a", ["1", "GPU-8f3a"])])
def test_the_gpus_are_those_that_a_program_would_use(visible, names, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert turns.gpus(2) == names and turns.gpus() == names[:1]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "no folder"])
def test_what_is_no_lock_of_ours_is_left_alone_and_nobody_waits(kind, folder, monkeypatch):
    file, precious = folder / f"gpu-performance-lab-gpu-{turns.gpus()[0]}.lock", folder / "precious"
    precious.write_text("kept")
    if kind == "link":
        file.symlink_to(precious)
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        monkeypatch.setattr(turns, "SHARED", folder / "none")
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    with turns.turn("main_a.py", pytest.fail):
        assert precious.read_text() == "kept"


def test_live_runs_take_turns_where_there_is_a_gpu(folder, monkeypatch):
    taken = []

    class Here(Programs):
        facts = A_GPU

        def run(self, words, file):
            taken.append((words, [path.read_text().split()[-1] for path in folder.glob("*.lock")]))
            return {"process_s": 1.0}

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Live(Here(), folder / "reports").get(kinds.runs(["main_opt1.py"], repeats=1), lambda line: None)
    assert [held for _, held in taken] == [["main_opt1.py"]]
    (file,) = folder.glob("*.lock")
    file.unlink()
    Here.facts = NO_GPU
    Live(Here(), folder / "more").get(kinds.runs(["main_opt1.py"], repeats=1), lambda line: None)
    assert taken[1][1] == [], "phases on a CPU are not timed against each other"
