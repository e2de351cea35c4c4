"""The clinic's programs: each runs, learns, and does what its fault says; each case can be recorded."""

from __future__ import annotations

import argparse
import gc
import shlex

import pytest
import torch
from support.scripts import script

import forked
from labkit import cases
from labkit.cases import CASES
from labkit.paths import SOURCE_CODE
from labkit.recording import plan
from labkit.source import command
from stepbudget.ask.budget import CAUSES

CLINIC = SOURCE_CODE / "clinic"
TINY = {
    "text": "--dim 16 --heads 2 --layers 1 --vocabulary 64 --batch 2 --length 64 --warmup 1 --steps 3 --objects 100",
    "digits": "--batch 32 --size 16 --hidden 32 --batches 2 --warmup 2 --steps 2",
    "images": "--batch 4 --size 32 --stored 16 --files 8 --workers 0 --warmup 1 --steps 1",
    "two_gpus": "--batch 8 --features 16 --dim 16 --layers 2 --warmup 1 --steps 2",
}


PROGRAMS = {name: script(f"clinic/{name}.py") for name in TINY}


def arguments(name: str, flags: str = "") -> argparse.Namespace:
    return PROGRAMS[name].parse_args(f"{TINY[name]} --device cpu {flags}".split())


def counted(monkeypatch, owner: object, name: str) -> list:
    """Each call of a function is noted, with what it was called with, and made."""
    calls, real = [], getattr(owner, name)

    def noted(*args, **more):
        calls.append((args, more))
        return real(*args, **more)

    monkeypatch.setattr(owner, name, noted)
    return calls


# The catalogue


def test_every_fault_has_a_case_and_every_program_a_healthy_one():
    for name, program in PROGRAMS.items():
        own = [case for case in CASES if case.script == f"clinic/{name}.py"]
        planted = {
            shlex.split(case.flags)[shlex.split(case.flags).index("--fault") + 1] for case in own if case.planted
        }
        assert planted == set(program.FAULTS), name
        assert any(case.is_healthy for case in own), name
    assert len({case.name for case in CASES}) == len(CASES) >= 10 and sum(case.is_healthy for case in CASES) >= 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_knows_its_right_answers_and_its_program_takes_its_flags(case):
    script, *flags = shlex.split(case.program)
    args = PROGRAMS[script.removeprefix("clinic/").removesuffix(".py")].parse_args([*flags, "--device", "cuda"])
    assert args.profile and (args.fault is None) == case.is_healthy == (not case.right)
    assert set(case.right) <= {*CAUSES, *cases.OTHER_CAUSES}
    assert [why == cases.PLANTED for why in case.right.values()] == [True, *[False] * (len(case.right) - 1)][
        : len(case.right)
    ]
    assert (case.gpus > 1) == script.endswith("two_gpus.py") and (case.late is None or case.planted)
    assert cases.case(case.report) is cases.case(case.name) is case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_recorded_as_the_labs_record(case):
    (item,) = [item for item in plan.plan() if item.label == case.report]
    words = command.check(item.command)
    assert (item.kind, item.how, item.file) == ("clinic", "case", f"profiles/clinic_{case.name}.sqlite.xz")
    assert all(flag in words for flag in command.PROFILE_FLAGS)
    split = words.index("python3")
    assert words[split:][-1 - len(shlex.split(case.program)) + 1] == f"source_code/{case.script}"
    assert ("--nproc-per-node 2" in item.command) == (case.gpus == 2)
    assert ("--cuda-graph-trace" in words[:split]) == case.graph
    assert ("--gpu-metrics-frequency" in words[:split]) == (case.metrics_hz is not None)


def test_the_programs_are_strangers():
    for name in TINY:
        assert "labkit" not in (CLINIC / f"{name}.py").read_text(), name


# text.py


def train(name: str, flags: str = "") -> list[float]:
    program, args = PROGRAMS[name], arguments(name, flags)
    losses = program.train(args)
    assert len(losses) == args.warmup + args.steps and all(loss == loss for loss in losses)
    return losses


def test_text_learns():
    losses = train("text", "--fault fp32 --lr 0.02 --steps 30")
    assert losses[-1] < losses[0] - 1


def test_item_is_read_for_each_gradient_in_each_step(monkeypatch):
    read = counted(monkeypatch, torch.Tensor, "item")
    train("text")
    assert not read
    train("text", "--fault item")
    parameters = len(list(PROGRAMS["text"].make(arguments("text"))[0].parameters()))
    assert len(read) == 4 * parameters


@pytest.mark.parametrize("fault", ["", "--fault anomaly"])
def test_anomaly_mode_is_on_only_where_it_was_left_on(monkeypatch, fault):
    seen = []
    monkeypatch.setattr(
        PROGRAMS["text"].Model, "forward", lambda self, tokens, real=PROGRAMS["text"].Model.forward: (
            seen.append(torch.is_anomaly_enabled()) or real(self, tokens)
        )
    )  # fmt: skip
    train("text", fault)
    torch.autograd.set_detect_anomaly(False)
    assert seen == [bool(fault)] * 4


def test_ranges_for_operators_are_left_on_only_by_their_fault():
    for fault in (None, "nvtx", "item"):
        found = PROGRAMS["text"].operators_named(argparse.Namespace(device="cuda", fault=fault))
        assert found.enabled == (fault == "nvtx") and found.record_shapes


def test_the_slow_optimizer_loops_and_the_usual_one_is_fused():
    for flags, how in (("", (None, True)), ("--fault optimizer", (False, False))):
        group = PROGRAMS["text"].make(arguments("text", flags))[1].param_groups[0]
        assert (group["foreach"], group["fused"]) == how


def test_fp32_is_fp32_and_odd_sizes_are_odd():
    model = PROGRAMS["text"].make(arguments("text", "--fault fp32"))[0]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.get_float32_matmul_precision() == "highest"
    model = PROGRAMS["text"].make(arguments("text", "--fault odd"))[0]
    assert model.head.out_features % 2 == model.blocks[0].mlp[0].out_features % 2 == 1
    assert PROGRAMS["text"].parse_args(["--fault", "odd"]).vocabulary == 50257
    for healthy in (PROGRAMS["text"].make(arguments("text"))[0],):
        assert {parameter.dtype for parameter in healthy.parameters()} == {torch.bfloat16}
        assert all(size % 8 == 0 for parameter in healthy.parameters() for size in parameter.shape)


def test_new_lengths_are_compiled_for_and_the_same_one_once():
    from torch._dynamo.utils import counters

    graphs = []
    for flags in ("--compile", "--fault recompile"):
        torch._dynamo.reset()
        counters.clear()
        train("text", f"{flags} --backend eager --steps 4")
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 3], "steps 1 and 4 after the warm-up bring a new length"


def test_garbage_is_collected_in_each_step(monkeypatch):
    collected = counted(monkeypatch, gc, "collect")
    train("text")
    usual = len(collected)
    train("text", "--fault gc")
    assert len(collected) - usual >= 4 > usual


# digits.py


@pytest.mark.parametrize("flags", ["", "--graph", "--fault pageable", "--fault launch"])
def test_digits_learn(flags):
    losses = train("digits", f"{flags} --steps 16")
    assert sum(losses[-4:]) < sum(losses[:4])


def test_pageable_copies_wait_and_the_usual_ones_do_not(monkeypatch):
    copied = counted(monkeypatch, torch.Tensor, "to")
    for flags, waits in (("", False), ("--fault pageable", True)):
        copied.clear()
        train("digits", flags)
        told = [more["non_blocking"] for _, more in copied if "non_blocking" in more]
        assert told == [not waits] * 8


def test_small_batches_are_small():
    assert PROGRAMS["digits"].parse_args(["--fault", "launch"]).batch == 16 < PROGRAMS["digits"].parse_args([]).batch


# images.py


def test_one_worker_decodes_or_many():
    for flags, workers in (([], 14), (["--fault", "workers"], 1)):
        args = PROGRAMS["images"].parse_args([*flags, "--files", "1", "--device", "cpu"])
        assert PROGRAMS["images"].make_loader(args).num_workers == workers


def test_a_worker_hands_over_pictures_and_the_main_process_augments_only_by_its_fault(monkeypatch):
    changed = counted(monkeypatch, PROGRAMS["images"], "recoloured")
    train("images", "--warmup 0")
    assert not changed
    train("images", "--warmup 0 --workers 1 --fault augmentation")
    assert len(changed) == 1
    ((images,), _) = changed[0]
    assert images.shape == (4, 3, 16, 16) and images.dtype == torch.uint8
    other = PROGRAMS["images"].recoloured(images)
    assert other.shape == images.shape and other.dtype == torch.uint8 and not torch.equal(other, images)


# two_gpus.py


@pytest.fixture
def alone():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("fault", "function", "late"), [("backward", "look_at_spectrum", 1), ("log", "histogram", 0)])
def test_one_rank_does_more_and_the_other_does_not(alone, monkeypatch, fault, function, late):
    program = PROGRAMS["two_gpus"]
    more = counted(monkeypatch, program, function)
    for rank in (0, 1):
        more.clear()
        program.train(arguments("two_gpus", f"--fault {fault}"), rank)
        assert len(more) == (3 if rank == late else 0)
    more.clear()
    program.train(arguments("two_gpus"), late)
    assert not more


def test_the_look_at_the_spectrum_leaves_the_gradient_as_it_is():
    gradient = torch.randn(8, 8)
    assert torch.equal(PROGRAMS["two_gpus"].look_at_spectrum(gradient.clone()), gradient)


def test_one_rank_s_disk_is_slow(monkeypatch):
    slept = []
    monkeypatch.setattr(PROGRAMS["two_gpus"].time, "sleep", slept.append)
    for flags in ("", "--fault loader"):
        for rank in (0, 1):
            data, label = PROGRAMS["two_gpus"].Vectors(arguments("two_gpus", flags), rank)[0]
            assert data.shape == (8, 16) and label.shape == (8,)
    assert slept == [0.0, 0.0, 0.0, 0.1]


def test_two_processes_train_together():
    words = [CLINIC / "two_gpus.py", *TINY["two_gpus"].split(), "--device", "cpu", "--fault", "log"]
    ended = forked.ranks(2, words)
    assert not any(one.returncode for one in ended), ended[0].stderr[-2000:]
    said = [line.split(":")[0] for one in ended for line in one.stdout.splitlines() if "loss" in line]
    assert said == ["rank 0", "rank 1"]
