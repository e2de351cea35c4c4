"""The exercises of lab 18: an operator without Tensor Cores, the busy share of a trace, a faster operator's bound."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.numbers import NotANumber, number, shown
from labkit.topics.profilers import torch_profiler
from stepbudget import intervals

# A step of 100 µs: two kernels that overlap, a copy apart from them, and what runs on the CPU.
PRETEND_TRACE = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#9", "ts": 1000.0, "dur": 100.0},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1000.0, "dur": 90.0},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1002.0, "dur": 5.0},
    {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1010.0, "dur": 20.0},
    {"ph": "X", "cat": "kernel", "name": "fill", "ts": 1020.0, "dur": 20.0},
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1060.0, "dur": 10.0},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1030.0},
]
BUSY_SHARE = 0.4


def _without_tensor_cores(profile: torch_profiler.Profile) -> str:
    found = torch_profiler.operators(profile.report)
    return next(iter(found.loc[found["tensor_core_share"] == 0, "operator"]), "none of them")


WITHOUT_TENSOR_CORES = Choice(
    READ,
    "Of the operators whose Tensor Core share is 0, the one with most GPU time.",
    right=_without_tensor_cores,
    wrong={
        "aten::convolution_backward": "that one does use Tensor Cores, for part of its time: its share is not 0",
        "aten::cudnn_convolution": "that one does use Tensor Cores: its share is not 0",
        "aten::fill_": "its share is 0, and many operators with more GPU time have that share, too",
        "aten::add_": "its share is 0, and another operator has more GPU time and a share of 0, too",
    },
)


def _try_busy_share(busy_share: Callable) -> str | None:
    given = busy_share([dict(event) for event in PRETEND_TRACE])
    try:
        found = number(given)
    except NotANumber:
        return f"it returns {shown(given)}, not a number"
    said = {
        0.5: "overlapping kernels count twice: merge their times first",
        0.3: "the copy is missing: it keeps the GPU busy, too",
        0.2: "that is one kernel: all of them, and the copy, keep the GPU busy",
        0.6: "it counts from the first event to the last: between them the GPU waits",
        0.9: "it counts operators: they run on the CPU",
        40.0: "40 is the busy time, or per cent: a share lies between 0 and 1",
    }
    for wrong, why in said.items():
        if abs(found - wrong) < 1e-6:
            return why
    again = number(busy_share(list(reversed(PRETEND_TRACE))))
    if not (isclose(found, BUSY_SHARE, abs_tol=1e-6) and isclose(again, BUSY_SHARE, abs_tol=1e-6)):
        return f"a step of 100 µs whose GPU works for 40 µs: it says {found:.3g}, and {again:.3g} in another order"
    outside = [*PRETEND_TRACE, {"ph": "X", "cat": "kernel", "name": "next", "ts": 1095.0, "dur": 15.0}]
    if not isclose(cut := number(busy_share(outside)), BUSY_SHARE + 0.05, abs_tol=1e-6):
        return f"a kernel goes on after the step: only the part inside counts (0.45, and it says {cut:.3g})"
    return None


GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def _summed(categories: tuple[str, ...], factor: float = 1.0) -> Callable:
    return lambda events: factor * sum(event["dur"] for event in events if event["cat"] in categories) / 100


def _merged(categories: tuple[str, ...] = GPU_WORK, factor: float = 1.0, in_order: bool = True) -> Callable:
    """The length of the union, over the step's; ``in_order``: of times that were put in order first."""

    def busy_share(events):
        spans = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["cat"] in categories]
        busy, until = 0.0, 0.0
        for start, end in sorted(spans) if in_order else spans:
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return factor * busy / 100

    return busy_share


def _from_first_to_last(events):
    own = [event for event in events if event["cat"] in GPU_WORK]
    return (max(one["ts"] + one["dur"] for one in own) - min(one["ts"] for one in own)) / 100


BUSY_SHARE_OF_A_TRACE = Code(
    "Cut each event to the step, put them in order, and add only what reaches beyond those before.",
    _try_busy_share,
    wrong={
        "overlapping kernels count twice": _summed(GPU_WORK),
        "the copy is missing": _merged(("kernel",)),
        "they run on the CPU": _summed(("cpu_op",)),
        "a share lies between 0 and 1": _merged(factor=100),
        "it counts from the first event to the last": _from_first_to_last,
        "in another order": _merged(in_order=False),
        "only the part inside counts": _merged(),
        "that is one kernel": lambda events: next(one["dur"] for one in events if one["cat"] == "kernel") / 100,
        "it returns nan, not a number": lambda events: float("nan"),
        "it returns '40 %', not a number": lambda events: "40 %",
    },
)


def _largest(profile: torch_profiler.Profile) -> dict:
    """The operator with most GPU time of its own, as the lab's table has it."""
    found = profile.operators
    own = found[~found["on_gpu"] & ~found["range"]].nlargest(1, "self_gpu_ms").iloc[0]
    if not own["self_gpu_ms"]:
        raise NothingToAnswer("no GPU worked here")
    return own.to_dict()


def _without(profile: torch_profiler.Profile, ms: float) -> float:
    """How many times as fast the recorded steps would be if they were so many milliseconds shorter."""
    return profile.window.duration_ms / (profile.window.duration_ms - ms)


def _busy_ms(profile: torch_profiler.Profile) -> float:
    return intervals.total(torch_profiler.busy(profile.report, profile.window)) / 1e6


OPERATOR_FOR_NOTHING = Number(
    BOUND,
    "The steps cannot get shorter by more than the operator's own GPU time: divide what they last by what is left.",
    right=lambda profile: _without(profile, _largest(profile)["self_gpu_ms"]),
    wrong={
        "that is held against the GPU's work alone: the steps last longer than that": lambda profile: (
            _busy_ms(profile) / (_busy_ms(profile) - _largest(profile)["self_gpu_ms"])
        ),
        "that is its share of the steps: how many times as fast are they without it?": lambda profile: (
            _largest(profile)["self_gpu_ms"] / profile.window.duration_ms
        ),
        "that is the steps over its time: what is left of them stays": lambda profile: (
            profile.window.duration_ms / _largest(profile)["self_gpu_ms"]
        ),
        "that takes one step's kernels away from all the steps": lambda profile: _without(
            profile, _largest(profile)["self_gpu_ms"] / len(profile.report.steps)
        ),
        "that is its time on the CPU, which it would still take": lambda profile: _without(
            profile, _largest(profile)["self_cpu_ms"]
        ),
    },
)

EXERCISES = {"18.1": WITHOUT_TENSOR_CORES, "18.2": BUSY_SHARE_OF_A_TRACE, "18.3": OPERATOR_FOR_NOTHING}
