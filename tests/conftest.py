"""What several tests stand on lies in tests/support; property tests have no deadline, since a machine can be busy."""

import contextlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# Before PyTorch is imported, here and in what tests start: threads that wait for each other's small shares take the
# cores from the tests beside them, and sums differ in the last digits with their number.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("course", deadline=None)
settings.load_profile("course")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory) -> Iterator[Path]:
    """The cache folder of all tests, and of what they start; matplotlib's list of fonts, slow to make, stays in use."""
    usual, folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"), tmp_path_factory.mktemp("cache")
    (folder / "gpu-performance-lab").mkdir()
    with contextlib.suppress(OSError):
        (usual / "matplotlib").mkdir(parents=True, exist_ok=True)
        (folder / "matplotlib").symlink_to(usual / "matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def no_mnist(_cache) -> Path:
    """A cache folder in which a download has just failed: the bundled digits, and no network.

    Else every process that trains would ask the network, two ranks at once, and what is trained on would depend on it.
    """
    (_cache / "gpu-performance-lab" / ".download-failed").touch()
    return _cache


@pytest.fixture
def unbroken_lines(monkeypatch):
    """For tests of what is said: a line is a line, however long. Where lines break is for test_printed_lines.py."""
    from labkit import lines

    monkeypatch.setattr(lines, "WIDE", 10_000)


@pytest.fixture
def compiler() -> None:
    """For tests that compile CUDA C++ by NVRTC, which needs no GPU. They are skipped without it, or without headers."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings comes with PyTorch's newer builds for Linux only")
    from labkit.errors import LabError
    from labkit.kernels.nvrtc import headers

    try:
        headers()
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, once a file; each test opens a page of its own. Without Chromium it may be skipped, not in CI.

    Not once a session: as long as it lives, nothing else of its process may run an event loop.
    """
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if os.environ.get("LAB_REQUIRE_CHROMIUM") != "1":
        pytest.importorskip("playwright.sync_api")
        if chromium is None:
            pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    quiet = ("quic", "background-networking", "component-update", "sync")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", *(f"--disable-{what}" for what in quiet)]
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="session")
def ran_on(tmp_path_factory) -> Iterator[Callable[[str], dict]]:
    """What became of each notebook on a machine (``in_one_process.run``); all that are asked for share one process."""
    import in_one_process
    import pages

    settings = {"initializer": in_one_process.begin, "initargs": (str(tmp_path_factory.mktemp("machines")),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        yield cache(lambda machine: process.submit(in_one_process.run, machine, pages.of(machine)).result())
