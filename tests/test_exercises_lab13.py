"""Lab 13: a wrong answer is told what is wrong with it."""

from __future__ import annotations

import pytest

from labkit import exercises
from labkit.source import recorded
from labkit.topics.profilers import nvml, torch_profiler


@pytest.fixture(scope="module")
def opt3():
    return torch_profiler.profile("profile_torch.py main_opt3.py --memory", show=lambda line: None)


@pytest.fixture(scope="module")
def programs():
    (record,) = recorded.records("benchmarks", "bench_nvml.py")
    return record["rows"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("aten::convolution_backward", "whose Tensor Core share is 0"),
        ("aten::fill_", "most GPU time"),
        (" ATEN::max_pool2d_with_indices_backward", "[ok] exercise 13.1"),
        (None, "no answer yet"),
    ],
)
def test_the_operator_without_tensor_cores(answer, said, opt3, capsys):
    exercises.exercise("13.1", answer, opt3)
    assert said in capsys.readouterr().out


def summed(events, categories=("kernel", "gpu_memcpy", "gpu_memset"), of=100.0):
    return sum(event["dur"] for event in events if event["cat"] in categories) / of


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (summed, "overlapping kernels count twice"),
        (lambda events: 0.3, "the copy is missing"),
        (lambda events: summed(events, ("cpu_op",)), "they run on the CPU"),
        (lambda events: 40.0, "a share lies between 0 and 1"),
        (lambda events: "40 %", "not a number"),
        (lambda events: float("nan"), "it says nan"),
        (lambda events: 0.4 if events[0]["name"].startswith("Profiler") else 0.2, "in another order"),
        (lambda events: events["kernel"], "raises TypeError"),
        (None, "no answer yet"),
    ],
)
def test_the_busy_share(answer, said, capsys):
    assert not exercises.exercise("13.2", answer)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda joules: 1 - joules["main_opt4.py"] / joules["main_baseline.py"], "units"),
        (lambda joules: 100 * joules["main_opt4.py"] / joules["main_baseline.py"], "too small"),
        (lambda joules: 100 * (1 - joules["main_opt4.py"] / joules["main_baseline.py"]), "[ok] exercise 13.3"),
    ],
)
def test_the_energy_saved(wrong, said, programs, capsys):
    exercises.exercise("13.3", wrong(nvml.energy(programs).set_index("program")["all J"]), programs)
    assert said in capsys.readouterr().out
