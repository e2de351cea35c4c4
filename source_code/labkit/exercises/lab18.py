"""The exercises of lab 18: an operator without Tensor Cores, the busy share of a trace, and energy saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, number, shown
from labkit.topics.profilers import nvml, torch_profiler

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


def _joules(programs: Sequence[dict], step: str) -> float:
    return float(nvml.energy(programs).set_index("program")["all J"][step])


def _left(programs: Sequence[dict], step: str = "main_opt4.py") -> float:
    return _joules(programs, step) / _joules(programs, "main_baseline.py")


ENERGY_SAVED = Number(
    BOUND,
    "One minus what step 4 needs over what the baseline needs, start-up and ten epochs, in per cent.",
    right=lambda programs: 100 * (1 - _left(programs)),
    wrong={
        "that is what step 4 still needs: by how much is it less?": lambda programs: 100 * _left(programs),
        "that is a share of 1: in per cent it is a hundred times as much": lambda programs: 1 - _left(programs),
        "those are joules: what share of the baseline's are they?": lambda programs: (
            _joules(programs, "main_baseline.py") - _joules(programs, "main_opt4.py")
        ),
        "that is how many times as much the baseline needs": lambda programs: 1 / _left(programs),
        "that is held against step 4, not against the baseline": lambda programs: 100 * (1 / _left(programs) - 1),
    },
)

EXERCISES = {"18.1": WITHOUT_TENSOR_CORES, "18.2": BUSY_SHARE_OF_A_TRACE, "18.3": ENERGY_SAVED}
