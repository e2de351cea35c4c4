"""The exercises of lab 24: which row of the window tells, the least that a sleep costs, and what to capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.topics.nsight import readings
from stepbudget.report import Report

# --- 18.1: a row of the window ------------------------------------------------------------------------------

ROW = Choice(
    READ,
    "Look at the drawing, straight down from the gap: which row says in which call the thread waits?",
    right=lambda: ("OS runtime libraries", "OS runtime", "osrt"),
    wrong={
        "NVTX": "that row says in which phase the thread is, not what it does there",
        "CUDA API": "a sleep is no CUDA call: that row is empty meanwhile",
        "Kernels": "that row shows the gap itself: asked is what the CPU did in it",
        "GPU Metrics": "that row shows the gap once more, sampled in the hardware",
        "Memory": "that row shows copies, on the GPU",
    },
)

# --- 18.2: the least that an epoch takes --------------------------------------------------------------------


def least_ms(before: Report, sleep_ms: float, steps: int = 0) -> float:
    """An epoch of ``before`` takes at least so long once each step sleeps: its one thread sleeps, and does its own."""
    found = readings.steps(before)
    if not found:
        raise NothingToAnswer("this report holds no training steps")
    return (found + steps) * sleep_ms + readings.own_ms(before)


LEAST = Number(
    BOUND,
    "One thread does all this, one after another: the sleeps, and every phase that is no waiting for data.",
    right=least_ms,
    wrong={
        "while the program sleeps, the workers load: the wait for data may vanish": lambda before, sleep_ms: (
            before.window().duration_ms + readings.steps(before) * sleep_ms
        ),
        "that is a bound, and a low one: the thread has its other phases, too": lambda before, sleep_ms: (
            readings.steps(before) * sleep_ms
        ),
        "one sleep: every step has one": lambda before, sleep_ms: sleep_ms + readings.own_ms(before),
        "the loader is asked once more than there are steps": lambda before, sleep_ms: least_ms(before, sleep_ms, 1),
    },
    within=0.005,
)

# --- 18.3: what to capture ----------------------------------------------------------------------------------

FIRST, AFTER = 10, 20  # captured are steps 10 to 19


def _try_capture(train: Callable) -> str | None:
    for batches in (30, AFTER, 15, 5):
        seen: list = []
        train(
            range(batches), seen.append, lambda seen=seen: seen.append("start"), lambda seen=seen: seen.append("stop")
        )
        if wrong := _wrong(seen, batches):
            return wrong
    return None


def _wrong(seen: list, batches: int) -> str | None:
    """What is wrong with the order of steps, starts and stops, where there are so many batches."""
    if [one for one in seen if isinstance(one, int)] != list(range(batches)):
        return "every batch is trained on, once and in order: `step(batch)`"
    starts, stops = seen.count("start"), seen.count("stop")
    if batches <= FIRST:
        return f"with {batches} batches it stops a capture that never began" if stops else None
    if starts != 1:
        return (
            "nothing is captured: `start` is never called"
            if not starts
            else f"it starts {starts} times: once is wanted"
        )
    if not stops:
        short = batches < AFTER
        return (
            f"the data end after {batches} steps, and the capture is still open" if short else "the capture never ends"
        )
    if stops > 1 or seen.index("stop") < seen.index("start"):
        return "it stops more than once, or before it starts"
    captured = [one for one in seen[seen.index("start") : seen.index("stop")] if isinstance(one, int)]
    wanted = list(range(FIRST, min(batches, AFTER)))
    if captured == wanted:
        return None
    if captured[:1] == [0]:
        return "the first steps are in it: they load libraries and choose algorithms"
    told = f"steps {captured[0]} to {captured[-1]}" if captured else "no steps"
    return f"captured are {told}, of {batches}: asked are {wanted[0]} to {wanted[-1]}"


def _capturing(first: int = FIRST, last: int = AFTER - 1, again: bool = False, at_end: str = "open") -> Callable:
    """A loop that starts before step ``first`` and stops after ``last``.

    ``at_end``: it stops what is ``"open"``, or wherever the data end too ``"soon"``, or ``"never"``.
    """

    def train(batches: Iterable, step: Callable, start: Callable, stop: Callable) -> None:
        is_open = False
        for number, batch in enumerate(batches):
            if number == first or (again and number > first):
                start()
                is_open = True
            step(batch)
            if number == last:
                stop()
                is_open = False
        if (at_end == "soon" and number < last) or (at_end == "open" and is_open):
            stop()

    return train


def _skips(batches, step, start, stop):
    for number, batch in enumerate(batches):
        if number == FIRST:
            start()
        if FIRST <= number < AFTER:
            step(batch)
    stop()


CAPTURE = Code(
    "Count the steps: start before step 10, stop after step 19, and remember whether a capture is open at the end.",
    _try_capture,
    wrong={
        "the first steps are in it": _capturing(first=0),
        "captured are steps 10 to 20": _capturing(last=AFTER),
        "captured are steps 11 to 19": _capturing(first=FIRST + 1),
        "the capture never ends": _capturing(last=-1, at_end="never"),
        "and the capture is still open": _capturing(at_end="never"),
        "it stops a capture that never began": _capturing(at_end="soon"),
        "it starts 20 times": _capturing(again=True),
        "every batch is trained on": _skips,
        "`start` is never called": _capturing(first=-1),
    },
)

EXERCISES = {"24.1": ROW, "24.2": LEAST, "24.3": CAPTURE}
