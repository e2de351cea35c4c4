"""How is another program run, so that it comes to an end with all that it started?

nsys starts an agent that leaves its process group, and the profiled program in a session of its own. So what was
started is known by a variable that it inherits, which Linux tells of each process. The program stays in the group of
its caller: what ends a notebook's kernel with its group, or Ctrl-C in a terminal, reaches it as before.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from stepbudget.errors import ReportError

MARK = "STEPBUDGET_RUN"  # the variable that tells whose a process is: a word for each run that it is part of
PROCESSES = Path("/proc")
PATIENCE_S = 10.0  # with a program that is asked to end: nsys takes 2
LOOK_S = 30.0  # between two looks at what a silent program computes
LINGER_S = 2.0  # that a program's children may hold its output after its end
# A training that prints nothing for hours still computes, and so does an export: what does neither, waits for what will
# not come. It is long beside any wait for a disk or a network that is slow.
STALLED_S = 600.0
LEAST_SHARE = 0.001  # of a core; a hung nsys and its agent use none


class Stalled(ReportError):
    """A program that did not come to an end, and was ended."""


def stream(
    words: Sequence[str],
    show: Callable[[str], None],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> tuple[int, str]:
    """Run a command, show its output line by line as it comes; exit status and all it said.

    Stalled where it has neither said nor computed anything for STALLED_S, or did not end within ``limit_s``. Then, and
    where something interrupts this, the command is asked to end, and what is left after PATIENCE_S is killed, with all
    that it started. OSError where the program does not start.
    """
    mark = uuid.uuid4().hex
    own = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {}), **marked(mark)}
    try:
        process = subprocess.Popen(words, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except KeyboardInterrupt:  # it may have started already
        kill(mark)
        raise
    said: list[str] = []
    try:
        for line in _lines(process, mark, Path(words[0]).name, limit_s):
            said.append(line)
            if line:
                show(line)
        return process.wait(), "\n".join(said)
    except BaseException:
        end(process, mark)
        raise


def marked(mark: str) -> dict[str, str]:
    """The variable for what is to be known by ``mark``, and by those of the runs that this process is part of."""
    return {MARK: " ".join(filter(None, [os.environ.get(MARK), mark]))}


def end(process: subprocess.Popen, mark: str) -> None:
    """Ask a program to end, then what is left of all that it started; what does not within PATIENCE_S is killed.

    A second interruption kills at once. ``mark``: the value of MARK that the program was started with.
    """
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        _signal(started(mark), signal.SIGTERM)
        give_up = time.monotonic() + PATIENCE_S / 2
        while started(mark) and time.monotonic() < give_up:
            time.sleep(0.1)
    finally:
        process.kill()
        kill(mark)
        process.wait()


def kill(mark: str) -> None:
    """Kill every process that was started with this mark; what they start meanwhile, too.

    It ends where two looks found none: in the middle of exec, Linux shows no variables of a process.
    """
    unseen = 0
    while unseen < 2:
        left = started(mark)
        _signal(left, signal.SIGKILL)
        unseen = 0 if left else unseen + 1
        time.sleep(0.05)


def _signal(processes: list[int], which: int) -> None:
    for pid in processes:
        with suppress(OSError):  # it has ended meanwhile
            os.kill(pid, which)


def started(mark: str) -> list[int]:
    """The processes with this mark that still run; none where the system does not tell (elsewhere than on Linux)."""
    return [int(one.name) for one in PROCESSES.glob("[0-9]*") if mark in _marks(one)]


def _marks(process: Path) -> list[str]:
    start = f"{MARK}=".encode()
    own = [one for one in _read(process / "environ").split(b"\0") if one.startswith(start)]
    return own[0].removeprefix(start).decode(errors="replace").split() if own else []


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # another user's, or one that has ended
        return b""


def _lines(process: subprocess.Popen, mark: str, name: str, limit_s: float | None) -> Iterator[str]:
    """The lines that a program prints; Stalled where it does not come to an end."""
    lines: queue.Queue[bytes | None] = queue.Queue()
    threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
    start = said_at = looked_at = alive_at = time.monotonic()
    worked: dict[int, float] = {}
    closed = False
    while True:
        try:
            raw = lines.get(timeout=0.02 if closed else 0.2)
        except queue.Empty:
            raw = b""
        now, closed = time.monotonic(), closed or raw is None
        if not raw and process.poll() is not None and (closed or now - said_at > LINGER_S):
            return
        if raw:
            said_at = alive_at = now
            # Bytes: text mode would end a line at each carriage return. Of a progress bar, its last state.
            yield raw.decode(errors="replace").rstrip().rpartition("\r")[2]
        if limit_s is not None and now - start > limit_s:
            raise Stalled(f"{name} did not end within {limit_s:.0f} s, and was ended.")
        if now - max(said_at, looked_at) > min(LOOK_S, STALLED_S / 3):
            before, worked = worked, {pid: _cpu_s(pid) for pid in started(mark)}
            gained = sum(worked.values()) - sum(before.values())
            if not worked or worked.keys() != before.keys() or gained > LEAST_SHARE * (now - looked_at):
                alive_at = now
            looked_at = now
        if now - alive_at > STALLED_S:
            raise Stalled(
                f"{name} has neither said nor computed anything for {STALLED_S / 60:.0f} minutes, and was ended: "
                "try the same command in a terminal."
            )


def _pass_on(output: IO[bytes], lines: queue.Queue) -> None:
    """Line by line, and None at the end; in a thread of its own, since a pipe may stay open when its program ended."""
    with output:
        for raw in output:
            lines.put(raw)
    lines.put(None)


def _cpu_s(pid: int) -> float:
    """The CPU time of a process so far; 0 where it has ended."""
    told = _read(PROCESSES / str(pid) / "stat").rpartition(b")")[2].split()
    return sum(map(int, told[11:13])) / os.sysconf("SC_CLK_TCK") if told else 0.0
