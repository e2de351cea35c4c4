"""More GPUs: what the runs say, what collectives take on paper, and what the model makes of both."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import LabError, NotRecorded
from labkit.subjects.scaling import beside, model, readings, tables
from labkit.subjects.scaling.collectives import NDR, TURNS, Cost, Link, Network, fitted
from labkit.subjects.scaling.model import Job, exposure, step

LINK = Link(5e-6, 100e9)
NETWORK = Network(LINK, Link(20e-6, 50e9), per_host=8)
KNOWN = readings.MACHINE_FOLDER

# Collectives on paper


@pytest.mark.parametrize("function", TURNS)
def test_one_gpu_talks_to_nobody(function):
    assert NETWORK.cost(function, 1e9, 1) == Cost(0, 0)
    assert LINK.trees(1e9, 1) == Cost(0, 0)


def test_two_gpus_in_a_ring():
    assert NETWORK.cost("AllReduce", 1e8, 2).total_s == pytest.approx(2 * 5e-6 + 1e8 / 100e9)
    assert NETWORK.cost("AllGather", 1e8, 2).total_s == pytest.approx(5e-6 + 0.5e8 / 100e9)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_long_messages_take_what_the_bandwidth_says_and_short_ones_the_latency(n):
    long, short = NETWORK.cost("AllReduce", 1e15, n), NETWORK.cost("AllReduce", 1, n)
    assert long.total_s * 100e9 / 1e15 == pytest.approx(2 * (n - 1) / n, rel=1e-6)
    assert short.total_s == pytest.approx(2 * (n - 1) * 5e-6, rel=1e-3)


def test_a_latency_that_is_paid_once():
    """On two GPUs it costs the same, as its fit demands; among more, no step of a ring inside a host adds to it."""
    once = NETWORK.once
    for function in TURNS:
        assert once.cost(function, 1e6, 2).total_s == pytest.approx(NETWORK.cost(function, 1e6, 2).total_s)
        assert once.cost(function, 8, 8).latency_s == pytest.approx(TURNS[function] * 5e-6)
    assert once.cost("AllGather", 8, 1024).latency_s == pytest.approx(5e-6 + 127 * 20e-6)
    assert once.cost("AllGather", 8, 1) == Cost()


@pytest.mark.parametrize("n", [2, 8])
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(n):
    both = NETWORK.cost("ReduceScatter", 1e12, n) + NETWORK.cost("AllGather", 1e12, n)
    assert both.total_s == pytest.approx(NETWORK.cost("AllReduce", 1e12, n).total_s)


def test_over_hosts_each_gpu_has_its_part_to_share_with_its_peers():
    """Four hosts of eight, by hand: inside 14 steps of an eighth; between them rings, or trees."""
    inside = 14 * (5e-6 + 1e9 / 8 / 100e9)
    ring, trees = 6 * (20e-6 + 1e9 / 8 / 4 / 50e9), 4 * 20e-6 + 2 * 1e9 / 8 / 50e9
    assert ring < trees and NETWORK.cost("AllReduce", 1e9, 32).total_s == pytest.approx(inside + ring)
    gathered = (
        28 * 5e-6 + 3 * 20e-6 + 31 / 32 * 1e9 / 100e9
    )  # one ring; eight links of a host carry more than one GPU's
    assert NETWORK.cost("AllGather", 1e9, 32).total_s == pytest.approx(gathered)


def test_trees_take_few_steps_among_many_hosts():
    """A short message over 128 hosts: 2·log2(128) steps between them, where a ring has 254."""
    assert NETWORK.cost("AllReduce", 8, 1024).latency_s == pytest.approx(14 * 5e-6 + 14 * 20e-6)
    assert NETWORK.cost("AllGather", 8, 1024).latency_s == pytest.approx(896 * 5e-6 + 127 * 20e-6), (
        "NCCL's ring has none"
    )


def test_gpus_fill_their_hosts():
    with pytest.raises(LabError, match="12 GPUs do not fill hosts of 8"):
        NETWORK.cost("AllReduce", 1e6, 12)


def test_the_link_between_hosts_is_400_gigabits():
    assert NDR.bytes_per_s == 50e9 and Network(LINK).between == NDR


def sent(link: Link, *messages: tuple[str, int, int]) -> pd.DataFrame:
    rows = [(*one, 1e6 * link.ring(one[0], one[2], one[1]).total_s) for one in messages]
    return pd.DataFrame(rows, columns=["function", "ranks", "bytes", "us"])


MESSAGES = (("AllReduce", 2, 75_776), ("AllReduce", 4, 5_000_000), ("AllGather", 2, 25_000_000))


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-7, 1e-4), st.floats(1e9, 1e12))
def test_a_link_is_found_again_in_its_messages(latency_s, bytes_per_s):
    found = fitted(sent(Link(latency_s, bytes_per_s), *MESSAGES))
    assert found.latency_s == pytest.approx(latency_s, rel=1e-4, abs=1e-12)
    assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-4)


def test_messages_that_tell_no_link_are_refused():
    with pytest.raises(LabError, match="two sizes"):
        fitted(sent(LINK, MESSAGES[0]))
    with pytest.raises(LabError, match="no bandwidth"):
        fitted(pd.DataFrame({"function": "AllReduce", "ranks": 2, "bytes": [1e3, 1e9], "us": [10.0, 9.0]}))


def test_no_latency_is_below_zero():
    table = pd.DataFrame({"function": "AllReduce", "ranks": 2, "bytes": [1e6, 1e8], "us": [1.0, 1000.0]})
    found = fitted(table)
    assert found.latency_s == 0 and 1e11 < found.bytes_per_s < 1e12


# What is hidden


def test_what_is_hidden_of_messages():
    four, edge = [Cost(0.0, 1.0)] * 4, [Cost(0.0, 1.0)]
    assert exposure(four, edge, over_s=100).total_s == 1, "the last has nothing to hide behind"
    assert exposure(four, edge, over_s=0).total_s == 4
    assert exposure(four, edge, over_s=2).total_s == pytest.approx(4 - 2 * 3 / 4)
    assert exposure([], [], over_s=1) == Cost() == exposure([Cost()], [Cost()], over_s=1)
    split = exposure([Cost(1.0, 3.0)] * 4, [Cost(1.0, 3.0)], over_s=0)
    assert (split.latency_s, split.transfer_s) == (4, 12)


JOB = Job("text_ddp", 64, work_s=0.1, fixed_s=0.01, cpu_s=0.025, buckets=(10**8,) * 4)
SHARDED = Job(
    "text_fsdp", 64, work_s=0.1, fixed_s=0.01, cpu_s=0.02, gathered=(10**6, 10**8, 10**8),
    scattered=(10**8, 10**8, 10**6),
)  # fmt: skip


@pytest.mark.parametrize("job", [JOB, SHARDED])
@pytest.mark.parametrize("scaling", model.SCALINGS)
def test_on_one_gpu_a_step_is_its_work(job, scaling):
    found = step(job, scaling, 1, NETWORK)
    assert (found.step_s, found.communication, found.exposed, found.binds) == (0.1, Cost(), Cost(), "compute")
    assert model.efficiency(found, found) == 1


def test_strong_scaling_shares_the_samples_and_not_the_optimizer():
    found = step(JOB, "strong", 2, NETWORK)
    last_s = 2 * 5e-6 + 1e8 / 100e9
    assert found.share == 32 and found.work_s == pytest.approx(0.09 / 2 + 0.01)
    assert found.exposed.total_s == pytest.approx(last_s) and found.communication.total_s == pytest.approx(4 * last_s)
    assert step(SHARDED, "strong", 2, NETWORK).work_s == pytest.approx(0.1 / 2), "a shard has its share of it too"


def test_weak_scaling_leaves_each_gpu_its_work():
    found = step(JOB, "weak", 8, NETWORK)
    assert found.share == 64 and found.work_s == pytest.approx(0.1) and found.exposed.total_s < 0.01


def test_fsdp_gathers_blocks_twice_and_scatters_them_once():
    found = step(SHARDED, "weak", 2, NETWORK)
    gathers, scatters = 10**6 + 4 * 10**8, 10**6 + 2 * 10**8
    assert found.communication.latency_s == pytest.approx(8 * 5e-6)
    assert found.communication.transfer_s == pytest.approx((gathers + scatters) / 2 / 100e9)
    edges = Cost(3 * 5e-6, (10**6 + 10**8 + 10**6) / 2 / 100e9)
    assert found.exposed.total_s == pytest.approx(edges.total_s)


def test_kernels_are_slower_beside_a_collective_and_a_step_waits_for_the_slowest_rank():
    slow = dataclasses.replace(NETWORK, slowed=0.2, spread=0.01)
    plain, found = (step(JOB, "weak", 8, network) for network in (NETWORK, slow))
    hidden_s = plain.communication.total_s - plain.exposed.total_s
    assert found.beside_s == pytest.approx(0.2 * hidden_s) and plain.beside_s == 0 < hidden_s
    assert found.work_s == pytest.approx(plain.work_s * (1 + 0.01 * beside.latest(8)))
    assert found.step_s == pytest.approx(found.work_s + found.beside_s + found.exposed.total_s)
    assert step(JOB, "weak", 1, slow).step_s == step(JOB, "weak", 1, NETWORK).step_s


def test_the_latest_of_many():
    """Against 20,000 draws; of one, and of two by the exact 1/√π, to five per cent."""
    assert beside.latest(1) == 0 and beside.latest(2) == pytest.approx(1 / math.sqrt(math.pi), rel=0.05)
    drawn = np.random.default_rng(1).standard_normal((20_000, 64)).max(axis=1).mean()
    assert beside.latest(64) == pytest.approx(drawn, rel=0.02) and beside.latest(1024) > 3


def test_a_known_slow_down_is_found_again():
    """Two places in a step, of 100 and 1,000 ns; each second beside a collective costs a quarter of one."""
    rows = [
        {"rank": rank, "step": number, "name": "kernel", "place": place, "beside_ns": over, "ns": long + over / 4}
        for rank in (0, 1)
        for number in range(3)
        for place, long in ((0, 100.0), (1, 1000.0))
        for over in [40.0 * place * number if rank else 0.0]
    ]
    table = pd.DataFrame(rows)
    assert beside.slow_down(table) == pytest.approx(0.25)
    assert beside.slow_down(table[table["beside_ns"] == 0]) == 0, "nothing to compare"
    assert beside.slow_down(table[(table["rank"] == 1) & (table["step"] > 0) & (table["place"] == 1)]) == 0


@pytest.mark.parametrize("program", ["ddp_on_gpu", "text_fsdp"])
def test_without_the_slow_down_both_ranks_have_the_same_work(program):
    """The rank that waits has longer kernels, by as much as its collectives ran beside them."""
    found = readings.profiled(program, 2)
    alone = [work - found.slowed * over for work, over in zip(found.works_ms, found.hidden_ms, strict=True)]
    assert max(found.works_ms) / min(found.works_ms) > 1.05 and max(alone) / min(alone) < 1.02
    assert 0.1 < found.slowed < 0.3 and 0 < found.spread < 0.02
    assert found.alone_ms == pytest.approx(sum(alone) / 2)


def test_what_binds():
    by = {n: step(JOB, "strong", n, NETWORK) for n in (1, 4, 8, 64, 128)}
    assert [one.binds for one in by.values()] == ["compute", "compute", "CPU", "CPU", "batch"]
    assert by[8].step_s == 0.025 > by[8].gpu_s and by[8].binds_gpu == "compute"
    heavy = Job("text_ddp", 64, work_s=0.1, fixed_s=0.01, cpu_s=1.0, buckets=(10**9,) * 4)
    assert (step(heavy, "strong", 64, NETWORK).binds, step(heavy, "strong", 64, NETWORK).binds_gpu) == (
        "CPU", "bandwidth"
    )  # fmt: skip
    small = Job("ddp", 64, 1e-4, 1e-5, cpu_s=1e-6, buckets=(8,) * 50)
    assert step(small, "strong", 8, NETWORK).binds == "latency"
    loaded = Job("ddp", 64, 1e-4, 1e-5, cpu_s=2e-3, loader_s=8e-3, buckets=(8,), samples=500)
    assert [step(loaded, "strong", n, NETWORK).binds for n in (1, 2, 8)] == ["loader", "loader", "CPU"]
    assert [step(loaded, "weak", n, NETWORK).binds for n in (4, 8)] == ["loader", "batch"], (
        "an epoch has a step at least"
    )


@pytest.mark.parametrize(("scaling", "n"), [("sideways", 2), ("strong", 0)])
def test_a_step_that_nobody_can_make(scaling, n):
    with pytest.raises(LabError, match="strong or weak"):
        step(JOB, scaling, n, NETWORK)


# What the runs say


def digits(program: str, scaling: list[str], batch: int, *epochs_of_ranks: list[float]) -> dict:
    epochs = [{"training_s": seconds, "test_accuracy_pct": 98.0} for seconds in epochs_of_ranks[0]]
    row = {"program": f"{program} --epochs 3", "scaling": scaling, "arguments": {"batch_size": batch}}
    row |= {"train_samples": 60_000, "epochs": epochs, "peak_gpu_memory_mb": 100.0}
    of_each = [{"training_s": own, "peak_memory_mb": 100.0 + rank} for rank, own in enumerate(epochs_of_ranks)]
    return row | ({} if "opt" in program else {"of_each_rank": of_each})


def text(share: str, scaling: list[str], batch: int, *steps_of_ranks: list[float]) -> dict:
    rows = [{"step_s": own, "peak_memory_mb": 10.0 * rank} for rank, own in enumerate(steps_of_ranks)]
    program = f"main_fsdp.py --steps 3 --share {share} --batch-size {batch}"
    return {"program": program, "scaling": scaling, "arguments": {"batch_size": batch}, "rows": rows}


def written(folder: Path, **rows: list[dict]) -> Path:
    """``x2_1``: of two GPUs, round 1."""
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    for name, own in rows.items():
        size, number = name[1:].split("_")
        file = folder / "ranks" / f"scaling-x{size}-{int(number):02d}.json"
        file.write_text(json.dumps({"gpus": 2, "rows": own}))
    return folder


BOTH = ["strong", "weak"]


@pytest.fixture
def runs(tmp_path):
    """Two rounds; in the second all takes twice as long. DDP on one GPU takes 4 s, without DDP 3 s; on two 2 s."""
    rounds = {}
    for number, slow in ((1, 1), (2, 2)):
        rounds[f"x1_{number}"] = [
            digits("main_opt4.py", [], 1024, [99, 3 * slow, 3 * slow]),
            digits("main_ddp_on_gpu.py", BOTH, 1024, [99, 4 * slow, 4 * slow]),
            text("fsdp", BOTH, 64, [0.1 * slow, 0.1 * slow, 0.9]),
        ]
        rounds[f"x2_{number}"] = [
            digits("main_ddp_on_gpu.py", ["strong"], 1024, [1, 1, 1], [99, 2 * slow, 2 * slow]),
            text("fsdp", ["strong"], 64, [0.04 * slow] * 3, [0.05 * slow] * 3),
            text("fsdp", ["weak"], 128, [0.125 * slow] * 3, [0.1 * slow] * 3),
        ]
    return written(tmp_path / "host", **rounds)


def test_known_gains_are_found_again_round_by_round(runs):
    found = readings.frame(readings.records(runs))
    gains = {
        (program, scaling): readings.gained(found, program, scaling, 2)
        for program, scaling in (("ddp_on_gpu", "strong"), ("text_fsdp", "strong"), ("text_fsdp", "weak"))
    }
    assert {key: (gain.median, gain.n) for key, gain in gains.items()} == {
        ("ddp_on_gpu", "strong"): (pytest.approx(1.5), 2),  # held against 3 s, without DDP
        ("text_fsdp", "strong"): (pytest.approx(2), 2),
        ("text_fsdp", "weak"): (pytest.approx(1.6), 2),
    }
    assert all(gain.low == pytest.approx(gain.high) for gain in gains.values()), "a slow round is slow for both"


def test_a_step_is_that_of_the_slowest_rank_without_the_first_epoch(runs):
    found = readings.frame(readings.records(runs)).set_index(["program", "scaling", "ranks", "round"])
    on_two = found.loc["ddp_on_gpu", "strong", 2, 1]
    assert (on_two["epoch_ms"], on_two["peak_memory_mb"], on_two["accuracy_pct"]) == (2000, 101, 98)
    assert on_two["step_ms"] == pytest.approx(2000 / 59) and on_two["samples_per_s"] == 30_000
    assert found.loc["text_fsdp", "strong", 1, 1]["step_ms"] == pytest.approx(100), "the median of its steps"
    assert found.loc["text_fsdp", "weak", 2, 1]["step_ms"] == pytest.approx(125)
    assert found.loc["ddp_on_gpu", "alone", 1, 1]["epoch_ms"] == 3000


def test_rounds_that_differ_have_a_spread(runs):
    written(runs, x2_2=[text("fsdp", ["strong"], 64, [0.2])])
    gain = readings.gained(readings.frame(readings.records(runs)), "text_fsdp", "strong", 2)
    assert (gain.low, gain.median, gain.high) == pytest.approx((1, 1.5, 2))


def test_what_was_not_recorded_is_said(runs):
    (runs / "ranks" / "scaling-x1-02.json").unlink()
    found = readings.frame(readings.records(runs))
    assert readings.gained(found, "text_fsdp", "strong", 2).n == 1, "a round without its partner tells nothing"
    assert readings.gained(found, "text_fsdp", "strong", 4) is None
    with pytest.raises(NotRecorded, match="no runs on several GPUs were recorded on elsewhere"):
        readings.records(runs.parent / "elsewhere")
    with pytest.raises(NotRecorded, match="text_ddp was not recorded on one GPU"):
        readings.baseline(found, "text_ddp")
    with pytest.raises(NotRecorded, match=r"main_fsdp_x2_rank0\.sqlite\.xz was not recorded on host"):
        readings.profiled("text_fsdp", 2, runs)


def test_a_program_that_is_not_known_is_passed_over(runs):
    written(runs, x1_1=[*readings.records(runs)[1, 1]["rows"], digits("main_else.py", ["strong"], 1, [1, 1])])
    assert set(readings.frame(readings.records(runs))["program"]) == {"ddp_on_gpu", "text_fsdp"}


# The recorded host


def test_the_model_knows_the_messages_that_were_sent():
    """FSDP's from the network's size, DDP's from its own record, and the reports' from NCCL."""
    known = model.jobs()
    text_fsdp, ddp = readings.profiled("text_fsdp", 2), readings.profiled("ddp_on_gpu", 2)
    for function, sizes in (
        ("AllGather", known["text_fsdp"].gathered),
        ("ReduceScatter", known["text_fsdp"].scattered),
    ):
        told = text_fsdp.messages.loc[text_fsdp.messages["function"] == function, "bytes"]
        assert sorted(set(sizes)) == sorted(told)
    assert sorted(known["ddp_on_gpu"].buckets) == sorted(ddp.messages["bytes"])
    gathers, scatters = len(known["text_fsdp"].gathered), len(known["text_fsdp"].scattered)
    assert (2 * gathers - 1 + scatters) * text_fsdp.steps == text_fsdp.messages["count"].sum()
    assert sum(known["text_ddp"].buckets) == 2 * sum(known["text_fsdp"].gathered), "FP32 and BF16, of the same weights"


def test_every_step_on_two_gpus_is_predicted_within_15_per_cent():
    found = model.scored().set_index(["program", "scaling"])
    assert {program for program, _ in found.index} == set(readings.PROGRAMS) and len(found) == 9
    assert (found["off_pct"].abs() <= 15).all()
    by_cpu = found[found["binds"] == "CPU"]
    assert {*by_cpu.index} == {
        ("ddp_on_gpu", "strong"), ("ddp_on_gpu", "weak"), ("ddp", "strong"), ("text_fsdp", "strong")
    }  # fmt: skip
    assert (found.drop(by_cpu.index)["binds"] == "compute").all()
    assert (by_cpu["gpu_ms"] < 0.9 * by_cpu["low_ms"]).all(), "without the host, all of them would be too fast"


def test_without_what_a_second_rank_costs_the_cpu_the_steps_that_it_binds_are_too_fast():
    known, off = model.jobs(), model.scored().set_index(["program", "scaling"])["measured_ms"]
    alone = dataclasses.replace(model.network(), beside=1.0)
    for program in ("ddp_on_gpu", "text_fsdp"):
        assert 1e3 * step(known[program], "strong", 2, alone).step_s < 0.95 * off[program, "strong"]
        assert model.network(programs=[program]).beside > 1.05


@pytest.mark.parametrize("network", ["digits", "transformer"])
def test_nothing_of_a_network_is_fitted_to_its_own_runs_on_two_gpus(tmp_path, network):
    """They take three times as long: its predictions stay what they are, and the other network's may not."""
    folder = tmp_path / "host"
    (folder / "ranks").mkdir(parents=True)
    (folder / "profiles").symlink_to(KNOWN / "profiles")
    own = {name for name, program in readings.PROGRAMS.items() if program.network == network}
    for file in [*(KNOWN / "ranks").glob("scaling-*.json"), *(KNOWN / "ranks").glob("graphs-*.json")]:
        record = json.loads(file.read_text())
        for row in record["rows"]:
            if row.get("on", record["ranks"]) == 2 and readings.program_of(row) in own:
                for rank in row.get("rows", row.get("of_each_rank", ())):
                    for name in {"step_s", "training_s"} & {*rank}:
                        rank[name] = [3 * seconds for seconds in rank[name]]
        (folder / "ranks" / file.name).write_text(json.dumps(record))
    ours, altered = (model.scored(where).set_index(["program", "scaling"]).loc[sorted(own)] for where in (None, folder))
    assert altered["predicted_ms"].tolist() == pytest.approx(ours["predicted_ms"].tolist())
    assert altered["measured_ms"].tolist() == pytest.approx((3 * ours["measured_ms"]).tolist())


def test_a_networks_score_rests_on_the_other_networks_collectives():
    found, known = model.scored().set_index(["program", "scaling"])["gpu_ms"], model.jobs()
    for program, other in (("text_ddp", "ddp_on_gpu"), ("text_fsdp", "ddp_on_gpu"), ("ddp_on_gpu", "text_fsdp")):
        by_other = step(known[program], "strong", 2, model.network(programs=[other]))
        assert found[program, "strong"] == pytest.approx(1e3 * by_other.gpu_s, rel=1e-9)
        assert by_other.gpu_s != pytest.approx(step(known[program], "strong", 2, model.network()).gpu_s, rel=1e-6)


def test_the_model_says_what_it_lacks(runs):
    with pytest.raises(NotRecorded, match=r"starts: digits by DDP, data on the GPU; digits by DDP, loader; transform"):
        model.jobs(runs)


def test_fsdp_with_few_samples_waits_for_its_cpus():
    found = readings.profiled("text_fsdp", 2)
    assert max(found.works_ms) < 0.5 * found.step_ms
    alone = model.step(model.jobs()["text_fsdp"], "strong", 2, model.network())
    assert alone.exposed.total_s < 0.01 * alone.step_s, "so it is not the links"


def test_two_batches_tell_the_cpu_from_the_loader(tmp_path):
    """5 ms a step, and 0.2 ms a sample in a loader's process: 59 steps of 1,024, or 118 of 512."""
    rounds = {}
    for number, slow in ((1, 1), (2, 2)):
        many, few = 59 * 5e-3 + 1024 * 2e-4, 118 * 5e-3 + 512 * 2e-4
        rounds[f"x1_{number}"] = [
            digits("main_ddp.py", [kind], batch, [99, slow * epoch_s, slow * epoch_s])
            for kind, batch, epoch_s in (("strong", 1024, many), (readings.FEW, 512, few))
        ]
    runs = readings.frame(readings.records(written(tmp_path / "host", **rounds)))
    found = model.loading(runs, 60_000)
    assert found["cpu_s"].tolist() == pytest.approx([5e-3, 10e-3])
    assert found["loader_s"].tolist() == pytest.approx([1024 * 2e-4 / 59, 1024 * 4e-4 / 59])


def test_few_samples_are_no_rival(runs):
    """They take less time a step; what two GPUs have to beat is the same batch on one."""
    found = readings.records(runs)
    of_few = digits("main_ddp_on_gpu.py", [readings.FEW], 512, [99, 0.1, 0.1])
    written(runs, **{f"x1_{number}": [*found[1, number]["rows"], of_few] for number in (1, 2)})
    gain = readings.gained(readings.frame(readings.records(runs)), "ddp_on_gpu", "strong", 2)
    assert gain.median == pytest.approx(1.5)


def test_beside_another_rank_a_cpu_takes_longer():
    slowed = dataclasses.replace(NETWORK, beside=1.2)
    bound = dataclasses.replace(JOB, cpu_s=0.2, loader_s=0.1)
    assert [step(bound, "weak", n, slowed).step_s for n in (1, 2)] == pytest.approx([0.3, 0.2 * 1.2 + 0.1])


def test_a_graph_on_two_gpus_is_faster_than_on_one():
    found = readings.graphs()
    assert {size for size, _ in found} == {1, 2} and {number for _, number in found} == {1, 2, 3}
    runs = readings.frame(found)
    gains = {program: readings.gained(runs, program, "strong", 2) for program in readings.LAUNCHES}
    assert gains["ddp_on_gpu"].high < 1.1 and gains["ddp_graph"].low > 1.5 and gains["ddp_graph"].n == 3
    shown = str(tables.gains("strong", found, readings.LAUNCHES))
    assert f"{gains['ddp_graph'].median:.2f}" in shown and "digits, main_opt5" in shown
    with pytest.raises(NotRecorded, match="no graphs on several GPUs were recorded on h200"):
        readings.graphs(readings.RECORDED / "h200")


def test_a_host_without_graphs_has_the_other_jobs(tmp_path):
    folder = tmp_path / "host"
    (folder / "ranks").mkdir(parents=True)
    (folder / "profiles").symlink_to(KNOWN / "profiles")
    for file in (KNOWN / "ranks").glob("scaling-*.json"):
        (folder / "ranks" / file.name).symlink_to(file)
    assert set(readings.PROGRAMS) - set(model.jobs(folder)) == {"ddp_graph"} and len(model.scored(folder)) == 7


def test_a_thousand_gpus_are_never_worth_more_than_a_thousand():
    found = model.ahead()
    of_one = {(one.job.program, one.scaling): one for one in found if one.n == 1}
    for one in found:
        share = model.efficiency(one, of_one[one.job.program, one.scaling])
        assert 0 < share <= 1 + 1 / 50, "the optimizer's work is shared out by FSDP, no more"
        assert one.exposed.total_s <= one.communication.total_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", model.SCALINGS)
def test_tables_show_what_was_measured(kind):
    shown = str(tables.gains(kind))
    runs = readings.frame(readings.records())
    gain = readings.gained(runs, "text_ddp", kind, 2)
    assert f"{gain.median:.2f}" in shown and f"{gain.low:.2f}–{gain.high:.2f}" in shown and "nan" not in shown
    assert ("DDP, loader" in shown) == (kind == "strong")


def test_the_table_on_paper_brackets_what_a_latency_costs():
    shown = tables.on_paper()
    assert (
        set(shown.frame["GPUs"]) == set(tables.FAR) and (shown.frame["efficiency %"] <= shown.frame["α once %"]).all()
    )
    ahead = str(shown)
    assert "1,024" in ahead and "compute" in ahead and "nan" not in ahead and "inf" not in ahead
    far = shown.frame.set_index(["program", "scaling", "GPUs"]).loc["transformer by FSDP", "weak", 1024]
    assert far["binds"] == "latency" and far["efficiency %"] < 50 < far["α once %"]
