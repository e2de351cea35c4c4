"""The exercises of lab 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose

from labkit.checks import answer_choice, answer_function, answer_number
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


def _without_tensor_cores(number: str, answer: str | None, profile: torch_profiler.Profile) -> bool:
    found = torch_profiler.operators(profile.report)
    without = found[found["tensor_core_share"] == 0]
    hint = "Of the operators whose Tensor Core share is 0, the one with most GPU time."
    return answer_choice(number, answer, next(iter(without["operator"]), "none of them"), hint)


def _busy_share(number: str, answer: Callable | None) -> bool:
    def trial(busy_share: Callable) -> str | None:
        found = busy_share([dict(event) for event in PRETEND_TRACE])
        if not isinstance(found, (int, float)) or isinstance(found, bool):
            return f"it returns {found!r}, not a number"
        said = {
            0.5: "overlapping kernels count twice: merge their times first",
            0.3: "the copy is missing: it keeps the GPU busy, too",
            0.9: "it counts operators: they run on the CPU",
            40.0: "40 is the busy time, or per cent: a share lies between 0 and 1",
        }
        for wrong, why in said.items():
            if abs(found - wrong) < 1e-6:
                return why
        again = busy_share(list(reversed(PRETEND_TRACE)))
        if not (isclose(found, BUSY_SHARE, abs_tol=1e-6) and isclose(again, BUSY_SHARE, abs_tol=1e-6)):
            return f"a step of 100 µs whose GPU works for 40 µs: it says {found:.3g}, and {again:.3g} in another order"
        return None

    return answer_function(number, answer, trial)


def _energy_saved(number: str, answer: float | None, programs: Sequence[dict]) -> bool:
    found = nvml.energy(programs).set_index("program")["all J"]
    right = 100 * (1 - found["main_opt4.py"] / found["main_baseline.py"])
    hint = "One minus what step 4 needs over what the baseline needs, start-up and ten epochs, in per cent."
    return answer_number(number, answer, right, hint)


EXERCISES = {"13.1": _without_tensor_cores, "13.2": _busy_share, "13.3": _energy_saved}
