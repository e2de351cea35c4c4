"""The exercises of lab 1: a share of the budget, and a clock that waits for the GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from labkit.checks import answer_function, answer_number
from stepbudget.ask.budget import budget
from stepbudget.report import Report
from stepbudget.window import Window


def _busy_share(number: str, answer: float | None, report: Report, window: Window) -> bool:
    found = budget(report, window)
    hint = "The stretch less its idle time, as a share of the stretch."
    return answer_number(number, answer, 100 * (1 - found.idle_ms / window.duration_ms), hint)


def _stopwatch(number: str, answer: Callable | None) -> bool:
    def trial(measure: Callable) -> str | None:
        gpu = PretendGPU()
        gpu.launch(0.2)  # somebody else's work is still running
        seconds = measure(lambda: gpu.launch(0.05), gpu.synchronize)
        if not isinstance(seconds, float) or not math.isfinite(seconds):
            return f"it returns {seconds!r}, not seconds"
        if seconds < 0.04:
            return f"it says {seconds:.3f} s for 0.05 s of work: the clock stops before the GPU has finished"
        if seconds > 40:
            return f"it says {seconds:.0f} for 0.05 s of work: did you return milliseconds?"
        if seconds > 0.15:
            return f"it says {seconds:.3f} s for 0.05 s of work: it counts work that was there before the clock started"
        return None

    return answer_function(number, answer, trial)


class PretendGPU:
    """Asynchronous like a GPU: ``launch`` returns at once, ``synchronize`` returns when the work is done."""

    def __init__(self) -> None:
        self._free_at = time.perf_counter()

    def launch(self, seconds: float) -> None:
        self._free_at = max(self._free_at, time.perf_counter()) + seconds

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._free_at - time.perf_counter()))


EXERCISES = {"1.1": _busy_share, "1.2": _stopwatch}
