"""Programs that hang, ignore what they are asked, or leave others behind: each comes to an end, with all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stepbudget.errors import ReportError
from stepbudget.export import nsys, processes, profile

SOURCE_CODE = Path(__file__).resolve().parents[3] / "source_code"
linux = pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="only Linux tells what a process started")

# As nsys does it: an agent in a session of its own whose parent ends, and a program in another session; none of them
# heeds a request to end.
DEAF = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "sleep = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
    "agent = f'import subprocess, sys; subprocess.Popen([sys.executable, \"-c\", {sleep!r}], start_new_session=True)'\n"
    "subprocess.run([sys.executable, '-c', agent])\n"
    "subprocess.Popen([sys.executable, '-c', sleep], start_new_session=True)\n"
    "print('begun', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE_S", 0.4)


@pytest.fixture
def mark(monkeypatch) -> str:
    """What the program under test is marked with."""
    word = f"test{os.getpid()}x{time.monotonic_ns()}"
    monkeypatch.setattr(processes.uuid, "uuid4", lambda: type("One", (), {"hex": word}))
    yield word
    processes.kill(word)


def wait_until(holds) -> None:
    """While a process is in the middle of exec, Linux shows none of its variables."""
    deadline = time.monotonic() + 240
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to hear of its end."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@linux
def test_what_ignores_every_request_ends_with_its_children_once_interrupted(hasty, mark):
    def stop(line: str) -> None:
        wait_until(lambda: len(processes.started(mark)) == 3)
        assert len(processes.started(mark)) == 3, "itself, its agent, its program"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        processes.stream([sys.executable, "-c", DEAF], stop)
    assert not processes.started(mark)


@linux
def test_what_is_interrupted_while_it_starts_ends(mark, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **settings):
            super().__init__(*words, **settings)
            wait_until(lambda: processes.started(mark))
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.stream(["sleep", "600"], lambda line: None)
    assert not processes.started(mark)


@linux
def test_a_second_interruption_kills_at_once(monkeypatch, mark):
    """PATIENCE_S is as it ships: the second Ctrl-C does not wait for it."""
    job = subprocess.Popen(
        [sys.executable, "-c", DEAF], env={**os.environ, processes.MARK: mark}, stdout=subprocess.PIPE
    )
    assert job.stdout.readline()

    def again(self, timeout=None):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", again)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.end(job, mark)
    assert not processes.started(mark) and time.monotonic() - start < processes.PATIENCE_S
    job.stdout.close()


@linux
def test_what_neither_speaks_nor_computes_is_ended_and_what_computes_is_not(monkeypatch, hasty, mark):
    monkeypatch.setattr(processes, "STALLED_S", 1.5)
    with pytest.raises(ReportError, match=r"has neither said nor computed anything for .* and was ended"):
        processes.stream([sys.executable, "-c", DEAF], lambda line: None)
    assert not processes.started(mark)
    busy = "import time\nuntil = time.monotonic() + 2.5\nwhile time.monotonic() < until: pass\nprint('trained')"
    assert processes.stream([sys.executable, "-c", busy], lambda line: None) == (0, "trained")


def test_a_limit_is_kept(hasty):
    start = time.monotonic()
    with pytest.raises(ReportError, match=r"did not end within 1 s, and was ended\.$"):
        processes.stream([sys.executable, "-c", "import time; time.sleep(600)"], lambda line: None, limit_s=1)
    assert time.monotonic() - start < 60


@linux
def test_a_run_within_a_run_ends_with_both(mark, monkeypatch):
    monkeypatch.setenv(processes.MARK, "outer")
    assert processes.marked(mark) == {processes.MARK: f"outer {mark}"}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **processes.marked(mark)}) as job:
        wait_until(lambda: processes.started(mark))
        assert processes.started(mark) == [job.pid] == processes.started("outer")
        processes.kill("outer")
        assert job.wait(60) == -signal.SIGKILL


def test_what_closes_its_output_and_goes_on_is_waited_for_within_the_limit(hasty):
    closes = "import os, sys, time; print('last', flush=True); os.close(1); os.close(2); time.sleep(float(sys.argv[1]))"
    assert processes.stream([sys.executable, "-c", closes, "0.5"], lambda line: None) == (0, "last")
    with pytest.raises(ReportError, match="did not end within"):
        processes.stream([sys.executable, "-c", closes, "600"], lambda line: None, limit_s=2)


@linux
def test_a_child_that_keeps_the_output_open_holds_nobody_up(monkeypatch, mark):
    monkeypatch.setattr(processes, "LINGER_S", 0.3)
    words = [sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '600']); print('done')"]
    assert processes.stream(words, lambda line: None) == (0, "done")


def test_an_interrupted_profile_leaves_no_half_report(tmp_path, hasty):
    report = tmp_path / "demo.nsys-rep"
    body = f"import pathlib, time; pathlib.Path({str(report)!r}).write_text('half'); print('on'); time.sleep(600)"

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    found = nsys.Nsys(sys.executable, (2025, 3, 1))
    with pytest.raises(KeyboardInterrupt):
        profile.record([sys.executable, "-c", body], report, found, stop)
    assert not report.exists()


def test_an_nsys_that_went_away_is_one_sentence(tmp_path):
    found = nsys.Nsys(str(tmp_path / "gone"), (2025, 3, 1))
    with pytest.raises(ReportError, match="gone cannot be started: No such file"):
        profile.record([found.path, "profile"], tmp_path / "demo.nsys-rep", found, lambda line: None)


@linux
def test_ctrl_c_in_a_terminal_ends_an_export_and_leaves_nothing(tmp_path, monkeypatch):
    """A process of its own, interrupted as a shell or a notebook does it, while nsys ignores that."""
    tool, started = tmp_path / "nsys", tmp_path / "started"
    tool.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2025.3.1.90-1"; exit 0; }\n'
        f"trap '' INT TERM\n[ \"$2\" = --help ] && exit 0\necho $$ > {started}\nsleep 600\nsleep 600\n"
    )
    tool.chmod(0o755)
    report = tmp_path / "demo.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler\x00")
    script = (
        "import sys; from pathlib import Path; from stepbudget.export import nsys, processes\n"
        "processes.PATIENCE_S = 0.4\n"
        "try: nsys.export(Path(sys.argv[1]))\nexcept KeyboardInterrupt: print('interrupted')\n"
    )
    environment = {**os.environ, "LAB_NSYS": str(tool), "PYTHONPATH": str(SOURCE_CODE)}
    words = [sys.executable, "-c", script, str(report)]
    # where the tests run in the background, SIGINT is ignored, and a child would inherit that
    usual = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    job = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True, **usual)
    deadline = time.monotonic() + 240
    while not started.is_file() or not started.read_text().strip():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGINT)
    assert job.communicate(timeout=240)[0] == "interrupted\n"
    wait_until(lambda: ended(int(started.read_text())))
    assert ended(int(started.read_text()))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["demo.nsys-rep", "nsys", "started"]
