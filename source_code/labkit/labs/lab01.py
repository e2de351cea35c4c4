"""What lab 1 claims: a clock has to wait for the GPU, and the GPU waits for the loader. What it shows and asks besides.

Its exercises: a share of the budget, a clock that waits for the GPU, and the least that a product takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from labkit.checks import Claim, Note
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.numbers import NotANumber, Quantity, number, shown
from labkit.predictions import Guess
from labkit.subjects.unnamed import unnamed
from labkit.subjects.windows import printing_step as a_step
from stepbudget.ask.budget import WORK, Budget, budget
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.predict import bound
from stepbudget.report import Report
from stepbudget.show.table import Table, table
from stepbudget.show.timeline import Timeline, timeline
from stepbudget.window import Window

LONG_MS = 6  # from a step's copy to its end, on the GPU
FLOP = 2 * 4096**3  # of the product that the benchmark times


# --- the trainer's profile ------------------------------------------------------------------------------------


def six_ms(report: Report) -> Window:
    """Six milliseconds of that step, from where its batch is there: the copy, and what follows."""
    step = a_step(report)
    copied = report.ranges[report.ranges["name"] == "copy to device"]["start"]
    start = int(min(copied[copied.between(step.start, step.end)], default=step.start))
    end = min(start + LONG_MS * 1_000_000, report.window().end)
    return replace(report.window(), start=start, end=end, name=f"{step.name}, from its copy on")


def blame(found: Budget) -> Iterator[Claim | str]:
    """The loader holds the GPU up; what it costs that the program waits for the GPU."""
    if found.device is None or found.idle_ms == found.window.duration_ms:
        yield "No GPU took part: the causes say what the CPU did."
        return
    loader = found.ms["loader"] / found.idle_ms
    yield Claim(
        "the GPU waits longer for the loader than for all the rest", loader > 0.5, loader,
        because="the machine's CPU cores are fast, or its GPU is slow",
        so="go on with lab 2 all the same: each lab builds on the one before",
    )  # fmt: skip
    yield (
        f"The program waited for the GPU for {found.held_ms.get('synchronisation', 0.0):.1f} ms; "
        f"that left the GPU idle for {found.ms['synchronisation']:.1f} ms."
    )


# --- stopwatches ----------------------------------------------------------------------------------------------


def by_clock(timed: Sequence[dict]) -> dict[str, float]:
    """Milliseconds of one product, by the clock."""
    return {row["timed"]: row["median_ms"] for row in timed[0]["rows"]}


def clocks_table(timed: Sequence[dict]) -> Table:
    """One product by each clock: the median, the least and the most, in milliseconds."""
    columns = {"timed": "clock", "median_ms": "median ms", "low_ms": "least ms", "high_ms": "most ms", "n": "n"}
    frame = pd.DataFrame(timed[0]["rows"])[[*columns]].rename(columns=columns)
    formats = dict.fromkeys([name for name in frame if name.endswith("ms")], "{:.3f}")
    return table(frame, "One product of two 4096 × 4096 matrices in FP32", formats)


def clocks(ms: Mapping[str, float]) -> Iterator[Claim | str]:
    """Which clocks see the product, what rate each would mean, and what the first call takes; ``ms``: by the clock."""
    first, launched = ms["first call, to the end"], ms["launch only, 50 times"]
    done, by_events = ms["to the end, 50 times"], ms["CUDA events, 50 times"]
    yield Note("Operations a second, by two clocks:")
    by_launch, rate = (FLOP / one / 1e9 for one in (launched, done))
    yield f"Launch only would mean {by_launch:,.0f} TFLOP/s; to the end, it's {rate:,.0f} TFLOP/s."
    yield Claim(
        "a clock that doesn't wait sees less than a tenth of the time", launched < 0.1 * done, launched / done,
        because="a slow or busy CPU takes long to launch, and a fast GPU little time for the product",
        so=f"it still misses {100 * (1 - launched / done):.0f} % of the time: wrong, if less so",
    )  # fmt: skip
    agree = by_events / done
    yield Claim(
        "timing to the end and CUDA events agree within 10 %", abs(agree - 1) < 0.1, agree,
        because="the GPU changed its clock rate, or was shared, between the two series",
        so="compare only what ran in turn, and more often than here",
    )  # fmt: skip
    yield Claim(
        "the first call is more than three times as slow as the later ones", first > 3 * done, first / done,
        because="the product takes so long on a slow GPU that loading the libraries adds little to it",
        so=f"a warm-up saves your timing {first - done:.0f} ms of {first:.0f}",
    )  # fmt: skip


# --- before you go --------------------------------------------------------------------------------------------


def stranger() -> Report:
    """A report without a name, in which the program waits for most of a step, and the GPU works meanwhile."""
    return unnamed("train_resnet_pinned", "a_stranger")


def _two_steps(report: Report) -> Window:
    first, second = step_windows(report, report.window())[4:6]
    return replace(report.window(), start=first.start, end=second.end, name="two steps")


def two_steps(report: Report) -> Timeline:
    """Two of its steps: phases, calls and kernels."""
    window = _two_steps(report)
    title = f"Two steps of a stranger's trainer ({window.duration_ms:.0f} ms)"
    return timeline(report, window, ["phases", "calls", "kernels"], title)


def _without_waits_ms(report: Report) -> float:
    """How long the two steps last at best, if the program never waits for the GPU."""
    return bound(report, budget(report, _two_steps(report)), "no_synchronisation").best_ms


def _without_the_call_ms(report: Report) -> float:
    """The two steps less all of their waiting, as if the GPU had nothing to do meanwhile."""
    found = budget(report, _two_steps(report))
    return found.window.duration_ms - found.held_ms["synchronisation"]


# --- exercises ------------------------------------------------------------------------------------------------


@Quantity
def _busy_share(report: Report, window: Window | None = None) -> float:
    found = budget(report, window)
    return 1 - found.idle_ms / found.window.duration_ms


@Quantity
def _kernels_share(report: Report, window: Window) -> float:
    found = budget(report, window)
    return sum(found.ms[cause] for cause in WORK if cause != "copies") / window.duration_ms


BUSY_SHARE = Number(
    READ,
    "The stretch less its idle time, as a share of the stretch.",
    right=100 * _busy_share,
    wrong={
        "that is the share of the time for which it idles": 100 * (1 - _busy_share),
        "that is a share of 1: in per cent it is a hundred times as much": _busy_share,
        "that is the whole epoch: give the budget the stretch, too": lambda r, w: 100 * _busy_share(r),
        "those are milliseconds: divide by the length of the stretch": lambda r, w: w.duration_ms * _busy_share(r, w),
        "kernels alone: copies are the GPU's work, too": 100 * _kernels_share,
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
        time.sleep(0.02)  # to launch it takes the CPU some time

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
        return f"it says {seconds:.3f} s for 0.05 s: the clock stops before the GPU has finished, or starts late"
    if seconds > 40:
        return f"it says {seconds:.0f} for 0.05 s of work: did you return milliseconds?"
    if seconds > 0.15:
        return f"it says {seconds:.3f} s for 0.05 s of work: it counts work that was there before the clock started"
    return None


def _stopwatch(waits_before: bool = True, waits_after: bool = True, unit: float = 1, warm_up: bool = False) -> Callable:
    """A stopwatch that waits on both sides of the work, but for what is said otherwise; ``unit``: in seconds."""

    def measure(work, synchronize):
        if warm_up:
            work()
        if waits_before:
            synchronize()
        start = time.perf_counter()
        work()
        if waits_after:
            synchronize()
        return (time.perf_counter() - start) / unit

    return measure


STOPWATCH = Code(
    "Wait, read the clock, work, wait, read the clock: time.perf_counter() is one.",
    _try_stopwatch,
    wrong={
        "the clock stops before the GPU has finished": _stopwatch(waits_after=False),
        "it counts work that was there before the clock started": _stopwatch(waits_before=False),
        "did you return milliseconds?": _stopwatch(unit=1e-3),
        "the reading after the work, less the one before it": _stopwatch(unit=-1),
        "it does the work 2 times": _stopwatch(warm_up=True),
        "it never does the work": lambda work, synchronize: 0.05,
        "it returns nan, not seconds": lambda work, synchronize: (work(), math.nan)[1],
        "it returns something of type NoneType, not seconds": lambda work, synchronize: work(),
    },
)

PEAK_TFLOPS = 67  # of an H200 in FP32, by its data sheet


@Quantity
def _least_ms(timed: Sequence[dict]) -> float:
    return 1e3 * timed[0]["flop"] / (PEAK_TFLOPS * 1e12)


def _measured_ms(clock: str = "to the end, 50 times") -> Callable[[Sequence[dict]], float]:
    return lambda timed: by_clock(timed)[clock]


LEAST_TIME = Number(
    BOUND,
    "Operations, over operations a second: 2 · 4096³ over 67 · 10¹². That is seconds.",
    right=_least_ms,
    wrong={
        "those are seconds: a thousand of them make milliseconds": _least_ms / 1e3,
        "each of the 4096³ products is added, too: two operations": _least_ms / 2,
        "that was measured: the bound comes from the data sheet alone": _measured_ms(),
        "a matrix has 4096² numbers, their product takes 4096³ steps": _least_ms / 4096,
    },
    within=0.05,  # rounded to a digit after the point
)

EXERCISES = {"1.1": BUSY_SHARE, "1.2": STOPWATCH, "1.3": LEAST_TIME}

PREDICTIONS = {
    "busy": Guess(
        "the share of an epoch for which the GPU works", " %",
        100 * _busy_share,
        {
            "For about that share it stands still.": 100 * (1 - _busy_share),
            "That's a share of 1: in per cent it's a hundred times as much.": _busy_share,
        },
    ),
    "product": Guess(
        "the product of 4096 × 4096", " ms", _measured_ms(),
        {
            "That's when the line returns. The product is only queued.": _measured_ms("launch only, 50 times"),
            "That's the very first call, in which the libraries are loaded.": _measured_ms("first call, to the end"),
            "That's the data sheet's best. A real product doesn't reach it.": _least_ms,
        },
    ),
    "without_waits": Guess(
        "two steps without the waits, at best", " ms", _without_waits_ms,
        {
            "That takes the whole wait away. But the GPU works all through it, and that work remains.":
                _without_the_call_ms,
        },
    ),
}  # fmt: skip
