"""The exercises of lab 1: a share of the budget, a clock that waits for the GPU, and the least that a product takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.numbers import NotANumber, number, shown
from stepbudget.ask.budget import WORK, budget
from stepbudget.report import Report
from stepbudget.window import Window


def _busy_share(report: Report, window: Window | None = None) -> float:
    found = budget(report, window)
    return 1 - found.idle_ms / found.window.duration_ms


def _kernels_share(report: Report, window: Window) -> float:
    found = budget(report, window)
    return sum(found.ms[cause] for cause in WORK if cause != "copies") / window.duration_ms


BUSY_SHARE = Number(
    READ,
    "The stretch less its idle time, as a share of the stretch.",
    right=lambda report, window: 100 * _busy_share(report, window),
    wrong={
        "that is the share of the time for which it idles": lambda r, w: 100 * (1 - _busy_share(r, w)),
        "that is a share of 1: in per cent it is a hundred times as much": _busy_share,
        "that is the whole epoch: give the budget the stretch, too": lambda r, w: 100 * _busy_share(r),
        "those are milliseconds: divide by the length of the stretch": lambda r, w: w.duration_ms * _busy_share(r, w),
        "kernels alone: copies are the GPU's work, too": lambda r, w: 100 * _kernels_share(r, w),
    },
)


class PretendGPU:
    """Asynchronous like a GPU: ``launch`` returns at once, ``synchronize`` returns when the work is done."""

    def __init__(self) -> None:
        self._free_at = time.perf_counter()

    def launch(self, seconds: float) -> None:
        self._free_at = max(self._free_at, time.perf_counter()) + seconds

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._free_at - time.perf_counter()))


def _try_stopwatch(measure: Callable) -> str | None:
    gpu, launched = PretendGPU(), 0

    def work() -> None:
        nonlocal launched
        launched += 1
        gpu.launch(0.05)

    gpu.launch(0.2)  # somebody else's work is still running
    given = measure(work, gpu.synchronize)
    try:
        seconds = number(given)
    except NotANumber:
        return f"it returns {shown(given)}, not seconds"
    if launched != 1:
        return f"it does the work {launched} times: once is wanted" if launched else "it never does the work"
    if not math.isfinite(seconds) or seconds < 0:
        return f"it says {seconds:g} s: the reading after the work, less the one before it"
    if seconds < 0.04:
        return f"it says {seconds:.3f} s for 0.05 s of work: the clock stops before the GPU has finished"
    if seconds > 40:
        return f"it says {seconds:.0f} for 0.05 s of work: did you return milliseconds?"
    if seconds > 0.15:
        return f"it says {seconds:.3f} s for 0.05 s of work: it counts work that was there before the clock started"
    return None


def _never_waits(work, synchronize):
    synchronize()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _waits_afterwards_only(work, synchronize):
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def _in_milliseconds(work, synchronize):
    synchronize()
    return 1e3 * _waits_afterwards_only(work, synchronize)


def _backwards(work, synchronize):
    synchronize()
    return -_waits_afterwards_only(work, synchronize)


def _warms_up(work, synchronize):
    work()
    synchronize()
    return _waits_afterwards_only(work, synchronize)


STOPWATCH = Code(
    "Wait, read the clock, work, wait, read the clock: time.perf_counter() is one.",
    _try_stopwatch,
    wrong={
        "the clock stops before the GPU has finished": _never_waits,
        "it counts work that was there before the clock started": _waits_afterwards_only,
        "did you return milliseconds?": _in_milliseconds,
        "the reading after the work, less the one before it": _backwards,
        "it does the work 2 times": _warms_up,
        "it never does the work": lambda work, synchronize: 0.05,
        "it returns nan, not seconds": lambda work, synchronize: (work(), math.nan)[1],
        "it returns something of type NoneType, not seconds": lambda work, synchronize: work(),
    },
)

PEAK_TFLOPS = 67  # of an H200 in FP32, by its data sheet


def _least_ms(timed: Sequence[dict]) -> float:
    return 1e3 * timed[0]["flop"] / (PEAK_TFLOPS * 1e12)


def _measured_ms(timed: Sequence[dict]) -> float:
    return next(row["median_ms"] for row in timed[0]["rows"] if row["timed"] == "to the end, 50 times")


LEAST_TIME = Number(
    BOUND,
    "Operations, over operations a second: 2 · 4096³ over 67 · 10¹². That is seconds.",
    right=_least_ms,
    wrong={
        "those are seconds: a thousand of them make milliseconds": lambda timed: _least_ms(timed) / 1e3,
        "each of the 4096³ products is added, too: two operations": lambda timed: _least_ms(timed) / 2,
        "that was measured: the bound comes from the data sheet alone": _measured_ms,
        "a matrix has 4096² numbers, their product takes 4096³ steps": lambda timed: _least_ms(timed) / 4096,
    },
    within=0.05,  # rounded to a digit after the point
)

EXERCISES = {"1.1": BUSY_SHARE, "1.2": STOPWATCH, "1.3": LEAST_TIME}
