"""How the notebooks are validated: ``pytest --nbval``, typed as it is, at the top or in labs/. And where tests leave
what they leave in the temporary folder: in one of the run's own, which goes with it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

try:
    import fcntl
except ModuleNotFoundError:  # on Windows
    fcntl = None

OWN = "gpulab-"  # short: in such a folder lie sockets, whose paths may not be long
_own: list[Path] = []  # this run's temporary folder
_held: list[int] = []  # open files whose lock says that the run goes on


def pytest_configure(config) -> None:
    """nbval with this environment's Python, a time limit that ends, and recorded results unless told otherwise."""
    if fcntl and not hasattr(config, "workerinput"):  # workers get their controller's
        _temporary_folder()
    option = config.option
    if getattr(option, "nbval", False) or getattr(option, "nbval_lax", False):
        option.nbval_current_env = option.nbval_kernel_name is None
        option.nbval_cell_timeout = min(option.nbval_cell_timeout, 1200)  # seconds; a dead kernel is noticed only then
        os.environ.setdefault("LAB_MODE", "recorded")
        os.environ["LAB_PREDICTIONS"] = "off"


def _temporary_folder() -> None:
    """One of this run's own for all that it starts: tests, kernels, nsys, torchrun. Those of runs that are over go."""
    top = Path(tempfile.gettempdir())
    for old in top.glob(f"{OWN}*/.held"):
        with suppress(OSError):  # it is somebody else's, or its run goes on
            with old.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old.parent, ignore_errors=True)
    own = Path(tempfile.mkdtemp(prefix=OWN, dir=top))
    own.chmod(0o1777)  # as the system's: some tests give their rights away
    _held.append(os.open(own / ".draft", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    fcntl.flock(_held[-1], fcntl.LOCK_EX)
    (own / ".draft").rename(own / ".held")
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    _own.append(own)


def pytest_sessionfinish(session, exitstatus) -> None:
    """After tests that failed, what they made may tell why: it stays until the next run."""
    if _own and exitstatus == pytest.ExitCode.TESTS_FAILED:
        print(f"\nwhat the tests made lies in {_own.pop()} until the next run")


def pytest_terminal_summary(terminalreporter, config) -> None:
    """After ``make test``: what it left out, and the command that runs it."""
    if config.args == ["tests/short"]:
        left = len(list(Path(config.rootpath, "tests/long").rglob("test_*.py")))
        terminalreporter.line(f"{left} files of longer tests, and nbval, are left to: make test-all")


def pytest_unconfigure(config) -> None:
    while _own:
        shutil.rmtree(_own.pop(), ignore_errors=True)


LONGEST_FIRST = (
    "test_pages_as_stored.py",
    "test_machines.py", "test_recording_ranks.py", "test_distributed.py", "test_only_reading.py",
    "test_several_nodes.py", "test_scripts.py", "test_waits.py", "test_faults.py", "test_keras.py", "test_recording.py",
    "test_results.py", "test_command_line.py", "test_page_width.py", "test_jupyterlab.py",
    "test_bench_sharding.py", "test_limit.py",
)  # fmt: skip


MOST_WORKERS, WORKER_BYTES = 6, 3e9


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which readers need not have
def pytest_xdist_auto_num_workers() -> int | None:
    """With ``-n auto``, one more than there are cores, since some tests wait: for a browser, for processes that end."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # pytest-xdist's own
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2 * WORKER_BYTES
    return min(cores + 1, MOST_WORKERS, max(1, int(memory / WORKER_BYTES)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile`` a file is one worker's, but each pretended machine goes to whoever is free.

    What takes longest comes first, so that no worker is left with it while the other has nothing to do.
    """
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            machine = re.search(r"\[([\w-]+?)(?:-start_here|-\d\d_\w+)?\]$", test)
            return f"on {machine[1]}" if machine and file.endswith(("test_machines.py", "test_waits.py")) else file

    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False  # not by their numbers of tests
    return LongestFirst(config, log)


def pytest_collection_modifyitems(config, items) -> None:
    """The longest files first; each file's tests stay together and in their order."""
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
