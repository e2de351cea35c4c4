"""This machine's Nsight Systems, if it has one: it makes a report on the CPU, and leaves nothing when interrupted."""

import os
import sys

import pytest

from labkit.source import Live, Programs, command, kinds
from labkit.training import machine
from stepbudget.ask.phases import phases
from stepbudget.errors import ReportError
from stepbudget.export import nsys as exports
from stepbudget.export import processes, profile
from stepbudget.report import open_report


@pytest.fixture
def real_nsys(monkeypatch):
    monkeypatch.delenv("LAB_NSYS", raising=False)
    exports.find_nsys.cache_clear()
    found = exports.find_nsys()
    if found is None:
        if os.environ.get("LAB_REQUIRE_NSYS") == "1":
            pytest.fail("LAB_REQUIRE_NSYS=1, but no nsys was found")
        pytest.skip("no nsys on this machine")
    yield found
    exports.find_nsys.cache_clear()


def test_a_real_nsys_without_a_gpu_sees_the_seven_phases(real_nsys, tmp_path, monkeypatch):
    reports = tmp_path / "reports"
    monkeypatch.setattr(machine, "gpu_name", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setattr(command, "NO_GPU_LIMIT", ["--limit", "64", "--epochs", "1", "--batch-size", "32"])
    text = command.profile_command("demo", "main_baseline_nvtx.py --profile --epochs 2 --workers 0").replace(
        "reports/demo", str(reports / "demo")
    )
    said: list[str] = []
    with Live(Programs(), reports).get(kinds.profile(text), said.append) as report:
        table = phases(report)
        assert report.gpu is None and report.kernels.empty
    assert list(table["phase"]) == [
        "data loading", "copy to device", "zero grad", "forward", "loss", "backward", "optimizer step",
    ]  # fmt: skip
    assert (table["cpu_ms"] > 0).all()
    assert (table["kernels"] == 0).all() and (table["gpu_ms"] == 0).all()
    assert list(table["count"]) == [3, 2, 2, 2, 2, 2, 2], "two steps; the loader is asked once more and has no batch"
    assert any("Test set: Average loss" in line for line in said), "the program's output is shown"
    assert open_report(reports / "demo.sqlite").window().name == "training"


def test_an_interrupted_real_nsys_leaves_no_process_and_no_file(real_nsys, tmp_path, monkeypatch):
    """Its agent has left its group, and the program is deaf."""
    monkeypatch.setattr(processes, "PATIENCE_S", 3.0)
    monkeypatch.setenv(processes.MARK, f"test-{os.getpid()}")
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    report = tmp_path / "reports" / "demo.nsys-rep"
    report.parent.mkdir()
    flags = ["--trace", "osrt", "--sample", "none", "--cpuctxsw", "none", "--output", str(report.with_suffix(""))]
    seen: list[int] = []

    def stop(line: str) -> None:
        if line == "on":
            seen.extend(processes.started(f"test-{os.getpid()}"))
            raise KeyboardInterrupt

    for _ in range(3):  # its agent and that of another nsys that starts meanwhile may lose each other's connection
        try:
            profile.record([real_nsys.path, "profile", *flags, sys.executable, "-c", deaf], report, real_nsys, stop)
        except KeyboardInterrupt:
            break
        except ReportError as error:
            assert str(error).endswith("Connection reset by peer") and not seen
    assert len(seen) >= 3, "nsys, its agent, the program"
    assert not processes.started(f"test-{os.getpid()}") and not [*report.parent.iterdir()]
