"""The benchmark of compiling: a process a variant, its end timed apart; what was compiled how often, and why again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import forked
from benchmarks import bench_compiling
from labkit.paths import BENCHMARKS
from labkit.training.model import Net


def test_a_variant_is_a_process_whose_end_is_timed_apart(tmp_path):
    file, script = tmp_path / "compiling.json", BENCHMARKS / "bench_compiling.py"
    words = ["--only", "eager", "--limit", 24, "--batch-size", 16, "--repeats", 2, "--record", file]
    done = forked.run([script, *words])
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["variant"], row["caches"], row["repeats"], row["graphs"]) == ("eager", "none", 2, 0)
    assert 0 < row["first_s"] < row["process_s"] and 0 < row["end_s"] < row["process_s"] - row["first_s"]
    assert f"{row['end_s']:5.2f} s" in done.stdout and row["loss"] > 0


def test_a_variant_that_fails_is_a_row_that_says_why(tmp_path):
    args = SimpleNamespace(batch_size=8, limit=8, data_dir=str(tmp_path / "nowhere"), repeats=1)
    row = {"variant": "loss", "caches": "cold", **bench_compiling.process("loss", args, tmp_path)}
    assert [*row] == ["variant", "caches", "refused"] and "nowhere" in row["refused"]
    assert "refused: " in bench_compiling.told(row)


@pytest.fixture
def fresh():
    """A compiler that has seen nothing, before and after."""
    from torch._dynamo import utils

    def forget():
        torch._dynamo.reset()
        utils.counters.clear()
        utils.clear_compilation_metrics()

    forget()
    yield
    forget()


def test_graphs_breaks_and_compilations_are_counted(fresh):
    @torch.compile(backend="eager", dynamic=False)
    def work(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    work(torch.ones(2))
    found = bench_compiling.counted()
    assert (found["graphs"], found["recompiles"], len(found["breaks"])) == (2, 0, 1)
    work(torch.ones(3))
    found = bench_compiling.counted()
    assert (found["graphs"], found["recompiles"]) == (4, 2), "both halves, for another size"
    assert all("size mismatch" in reason for reason in found["reasons"])


def test_the_regional_net_is_the_net():
    torch.manual_seed(1)
    regional, net = bench_compiling.Regional(disable=True).eval(), Net().eval()
    net.load_state_dict(regional.state_dict())
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(regional(x), net(x))


def test_what_is_quick_is_there():
    assert {*bench_compiling.QUICK} <= {*bench_compiling.VARIANTS}
