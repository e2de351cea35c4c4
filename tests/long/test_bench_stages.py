"""The benchmark of stages: each way is timed, checked against the shipped one, or refused in a row that says so."""

from __future__ import annotations

import json

import pytest
import torch

import forked
from benchmarks import bench_stages
from labkit.kernels import conv2
from labkit.paths import BENCHMARKS


def test_every_kernel_is_timed_in_every_way(tmp_path):
    file, script = tmp_path / "stages.json", BENCHMARKS / "bench_stages.py"
    done = forked.run([script, "--tiny", "--batch-size", 2, "--rounds", 2, "--record", file])
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 3 * len(bench_stages.OPTIONS) and [row["shipped"] for row in rows].count(True) == 3
    assert all(0 < row["range_us"][0] <= row["us"] <= row["range_us"][1] and row["rounds"] == 2 for row in rows)
    assert all(row["error"] < 1e-6 for row in rows), "a reference is the same, however a kernel is started"
    assert f"{rows[0]['us']:.1f} µs" in done.stdout


class Pretended:
    """A kernel that keeps what it is started with, and refuses three stages as Triton does."""

    def __init__(self) -> None:
        self.started = []

    def __getitem__(self, grid):
        return lambda *arguments, **named: self.start(grid, arguments, named)

    def start(self, grid, arguments, named):
        self.started.append((grid, arguments, named))
        if named.get("num_stages") == 3:
            raise bench_stages.OutOfResources(300_000, 232_448, "shared memory")
        return "compiled"


def test_a_kernel_is_started_with_other_options_than_its_caller_says(monkeypatch):
    kernel = Pretended()
    monkeypatch.setattr(conv2, "_conv2_pool", kernel)
    work = lambda: conv2._conv2_pool[(5,)](1, BLOCK=64, num_stages=1)  # noqa: E731
    assert bench_stages.started("_conv2_pool", work, {"num_stages": 2, "num_warps": 8}) == ("compiled", "compiled")
    assert kernel.started == [((5,), (1,), {"BLOCK": 64, "num_stages": 2, "num_warps": 8})]
    assert conv2._conv2_pool is kernel, "as before"


def test_a_refusal_is_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr(conv2, "_conv2_pool", Pretended())

    def work():
        conv2._conv2_pool[(1,)](num_stages=1)
        return [torch.ones(2)]

    rows = list(bench_stages.timed(
        list(bench_stages.choices({"_conv2_pool": work}, torch.zeros(1))), torch.device("cpu"), 1
    ))  # fmt: skip
    refused = [row for row in rows if "refused" in row]
    assert [row["num_stages"] for row in refused] == [3, 3, 3] and not any("us" in row for row in refused)
    assert "shared memory" in refused[0]["refused"] and "refused: out of resource" in bench_stages.told(refused[0])


def test_another_result_stops_the_benchmark():
    results = iter([1.0, 1.0, 1.1])
    with pytest.raises(AssertionError, match="is off by"):
        list(bench_stages.choices({"_conv2_pool": lambda: [torch.full((2,), next(results))]}, torch.zeros(1)))
