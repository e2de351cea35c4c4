"""The benchmark of a process's start: its programs run, and each holds what it is said to come after."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_startup


@pytest.mark.parametrize("stage", bench_startup.STAGES)
def test_each_stage_is_its_own_lines_after_all_those_before(stage):
    before, lines = bench_startup.STAGES[stage]
    whole = bench_startup.program(stage, torch.device("cpu"))
    compile(whole, stage, "exec")
    assert whole.endswith(lines.strip() + "\n")
    assert before is None or whole.startswith(bench_startup.program(before, torch.device("cpu")))


def test_a_stage_runs_as_a_process_of_its_own_and_its_failure_is_seen():
    cpu = torch.device("cpu")
    shorter = bench_startup.seconds(bench_startup.program("Python starts and ends", cpu), cpu)
    longer = bench_startup.seconds(bench_startup.program("an optimizer is made", cpu), cpu)
    assert 0 < shorter < longer
    with pytest.raises(bench_startup.subprocess.CalledProcessError):
        bench_startup.seconds("raise SystemExit(1)", cpu)


@pytest.mark.parametrize("work", ["import torchvision", "torch.optim.Adadelta([torch.zeros(1)])"])
def test_torchvision_and_an_optimizer_import_the_compilers_modules_alike(work):
    """So their times do not add, as lab 11 says: whoever comes first pays."""
    lines = (
        f"import sys, torch\nassert 'torch._dynamo' not in sys.modules\n{work}\nassert 'torch._dynamo' in sys.modules"
    )
    assert bench_startup.seconds(lines, torch.device("cpu")) > 0
