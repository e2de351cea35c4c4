"""What a rank holds and sends, measured on two ranks on the CPU: each kind of number has the size it must have."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.smaller import smaller

from labkit.recording import plan

RANKS, SHRINK = 2, 64


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    file, blocks = folder / "record.json", ("DEPTH, LENGTH, HEAD = 12,", "DEPTH, LENGTH, HEAD = 3,")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    words = [sys.executable, *launcher, smaller(folder, "bench_sharding.py", *blocks), "--device", "cpu"]
    words += ["--shrink", SHRINK, "--record", file]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(file.read_text())


def each(record, share):
    rows = [row for row in record["rows"] if row["share"] == share]
    assert rows
    for row in rows:
        assert len(row["of_each_rank"]) == RANKS
        for own in row["of_each_rank"]:
            assert own["out_of_memory"] is False and len(own["step_s"]) == row["steps"] == 2
            yield row, own, own["parameters"]


def moved(own, function):
    return {kind: sum(one["bytes"] * one["count"] for one in own["sent"] if (one["function"], one["dtype"]) == kind)
            for kind in {(one["function"], one["dtype"]) for one in own["sent"]} if kind[0] == function}  # fmt: skip


def test_the_record_is_of_all_ranks(record):
    assert (record["script"], record["status"], record["ranks"]) == ("bench_sharding.py", "complete", RANKS)
    assert record["gpu_memory_mb"] is None and record["backend"] == "gloo"
    assert all(own["losses"][-1] < own["losses"][0] for _, own, _ in [*each(record, "ddp"), *each(record, "fsdp")])


def test_ddp_holds_all_of_it_on_each_rank_and_averages_it_once(record):
    for _, own, parameters in each(record, "ddp"):
        for kind, numbers in (("weights", 1), ("gradients", 1), ("optimizer", 2)):
            assert own[f"{kind}_mb"] == {"float32": pytest.approx(4 * numbers * parameters / 1e6)}
        assert moved(own, "AllReduce") == {("AllReduce", "float32"): 4 * parameters}
        assert {one["function"] for one in own["sent"]} == {"AllReduce"}


def test_fsdp_holds_a_share_in_fp32_and_gathers_bf16_twice_unless_it_keeps_it(record):
    for row, own, parameters in each(record, "fsdp"):
        for kind, numbers in (("weights", 1), ("gradients", 1), ("optimizer", 2)):
            assert own[f"{kind}_mb"] == {"float32": pytest.approx(4 * numbers * parameters / RANKS / 1e6)}
        blocks = row["depth"] * (12 * row["width"] ** 2 + 13 * row["width"])
        gathered = parameters + (blocks if row["reshard"] else 0)
        assert moved(own, "AllGather") == {("AllGather", "bfloat16"): 2 * gathered}
        assert moved(own, "ReduceScatter") == {("ReduceScatter", "float32"): 4 * parameters}


def test_it_is_planned_once_on_all_gpus():
    (item,) = [item for item in plan.of_ranks(8) if item.kind == "ranks_memory"]
    assert item.command.endswith("--nproc-per-node 8 source_code/benchmarks/bench_sharding.py")
    assert item.file == "ranks/sharding-x8-01.json" and item.kind in plan.OF_RANKS
