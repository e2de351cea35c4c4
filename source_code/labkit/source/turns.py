"""Whose turn is it to measure? Two live runs at once on one GPU slow each other, and neither's times are true.

So each run holds a lock while it lasts, and the next one waits for it, in the order in which they came: two notebooks
take turns run by run. Who waits says for whom; after PATIENCE_S it goes on, and says what that means. The lock is a
file in shared memory, by GPU, on which the system itself holds a lock: when its holder ends, however it ends, nobody is
blocked. With ``--ipc=host``, as the course starts its container, that memory is the host's: containers know of each
other and of the host. One that has its own (Docker's default) knows of nobody else, and ``make doctor`` says so.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from labkit.source import visible
from labkit.source.pace import duration

PATIENCE_S = 600.0  # longer than any run of a lab takes
LOOK_S = 0.2
SHARED = Path("/dev/shm")  # of all who share the host's; a batch job often has a temporary folder of its own
QUEUE, GPU = 0, 1  # bytes of the file that are locked: who comes next, and who is at work
_held: dict[Path, int] = {}  # by this process: lock → its open file


def gpus(count: int = 1) -> list[str]:
    """What the first GPUs are called that programs started here would use: by UUID, else as they are numbered here."""
    names = [gpu.uuid or gpu.named for gpu in visible.gpus()]
    return (names or [str(number) for number in range(count)])[:count]


def place() -> Path:
    """Where the locks lie: in the system's shared memory, else in its temporary folder."""
    return SHARED if SHARED.is_dir() and os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir())


@contextmanager
def turn(what: str, show: Callable[[str], None] = print, names: list[str] | None = None) -> Iterator[None]:
    """Within the block no other live run is on these GPUs (``names``), unless it takes longer than PATIENCE_S.

    ``what``: what runs, for those who wait. Where the system has no such locks, nobody waits.
    """
    with ExitStack() as locks:
        for name in sorted(names or gpus()):
            locks.enter_context(_one(_file(name), what, show))
        yield


@contextmanager
def _one(file: Path, what: str, show: Callable[[str], None]) -> Iterator[None]:
    try:
        import fcntl
    except ModuleNotFoundError:  # not on Windows
        yield
        return
    if file in _held:  # one run within another, as a profile that is timed
        yield
        return
    try:
        held = _opened(file)
    except OSError:  # no such folder, one that takes no files, or somebody else's file
        yield
        return
    try:
        _held[file] = held
        if _wait(fcntl, held, show):
            os.ftruncate(held, 0)
            os.pwrite(held, f"{datetime.now().astimezone():%H:%M} {os.getpid()} {what}".encode(), 0)
        yield
    finally:
        del _held[file]
        os.close(held)  # and the system takes the locks back


def _opened(file: Path) -> int:
    """The lock, made if need be so that other users may lock it too; OSError where it is not a file of its own."""
    how = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        held = os.open(file, how)
    except FileNotFoundError:
        held = os.open(file, how | os.O_CREAT, 0o666)
        with suppress(OSError):  # it was made by another meanwhile
            os.fchmod(held, 0o666)  # whatever the umask
    told = os.fstat(held)
    if not stat.S_ISREG(told.st_mode) or told.st_nlink != 1:
        os.close(held)
        raise OSError(f"{file} is not a file of its own")
    return held


def _wait(fcntl, held: int, show: Callable[[str], None]) -> bool:
    """Wait for the GPU in a queue of one; is it ours?"""
    start, told = time.monotonic(), False
    for place in (QUEUE, GPU):
        while not _locked(fcntl, held, place):
            if not told:
                told = True
                at_most = duration(PATIENCE_S)
                show(f"| another live run is on this GPU{_who(held)}: waiting for its end, at most {at_most}")
            if time.monotonic() - start > PATIENCE_S:
                show(f"| it is still there after {duration(PATIENCE_S)}: going on, and the timings of both will differ")
                return False
            time.sleep(LOOK_S)
    fcntl.lockf(held, fcntl.LOCK_UN, 1, QUEUE)
    if told:
        show(f"| the GPU is free after {duration(time.monotonic() - start)}")
    return True


def _locked(fcntl, held: int, place: int) -> bool:
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError:
        return False
    return True


def _who(held: int) -> str:
    """Since when, which process, and what it runs, as far as the file tells."""
    with suppress(OSError):
        told = os.pread(held, 300, 0).decode(errors="replace").strip().split(" ", 2)
        if len(told) == 3:
            return f" since {told[0]} (process {told[1]}: {told[2]})"
    return ""


def _file(name: str) -> Path:
    return place() / f"gpu-performance-lab-gpu-{re.sub(r'[^A-Za-z0-9-]', '-', name)}.lock"
