"""What lab 1 claims: a clock has to wait for the GPU, phases are told by process, and a budget leaves nothing out.

Its exercises: a share of the budget, a clock that waits for the GPU, and the least that a product takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.checks import Claim
from labkit.display.runs import compared
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.numbers import NotANumber, number, shown
from stepbudget.ask.budget import WORK, Budget, budget
from stepbudget.ask.idle import idle
from stepbudget.ask.phases import phases
from stepbudget.report import Report
from stepbudget.window import Window


def clocks(ms: Mapping[str, float]) -> Iterator[Claim | str]:
    """Which clocks see the product, and what the first call takes; ``ms``: of one product, by the clock."""
    first, launched = ms["first call, to the end"], ms["launch only, 50 times"]
    done, by_events = ms["to the end, 50 times"], ms["CUDA events, 50 times"]
    yield Claim(
        "a clock that does not wait sees less than a tenth of the time", launched < 0.1 * done, launched / done,
        because="a slow or busy CPU takes long to launch, and a fast GPU little time for the product",
        so=f"it still misses {100 * (1 - launched / done):.0f} % of the time: wrong, if less so",
    )  # fmt: skip
    agree = by_events / done
    yield Claim(
        "waiting for the GPU and asking its own clock agree within 10 %", abs(agree - 1) < 0.1, agree,
        because="the GPU changed its clock rate, or was shared, between the two series",
        so="compare only what ran in turn, and more often than here",
    )  # fmt: skip
    yield Claim(
        "the first call is more than three times as slow as the later ones", first > 3 * done, first / done,
        because="the product takes so long on a slow GPU that loading the libraries adds little to it",
        so=f"a warm-up saves your timing {first - done:.0f} ms of {first:.0f}",
    )  # fmt: skip


def annotating(plain: Sequence[dict], named: Sequence[dict]) -> Iterator[Claim | str]:
    """The script with ranges in its source takes no longer; both: records of runs."""
    yield f"Round by round, the annotated script is {compared(plain, named)}."
    slower = 1 / paired(plain, named).median - 1
    yield Claim(
        "annotating costs less than 15 %, if anything", slower < 0.15, slower,
        because="the machine was busy in some rounds, or there was one round only",
        so="run more rounds before you blame the ranges: without --profile they do nothing",
    )  # fmt: skip


def backward(report: Report) -> Iterator[Claim | str]:
    """Counted by thread the backward pass is missed; by process it takes most of the GPU's time."""
    if report.kernels.empty:
        yield "This report holds no kernels: no phase is robbed of any."
        return
    right, wrong = (phases(report, by=by).set_index("phase")["gpu_ms"] for by in ("process", "thread"))
    yield Claim(
        "by thread, nearly all of the backward pass is missed",
        wrong.get("backward", 0.0) < 0.05 * right.get("backward", 0.0),
    )
    yield Claim(
        "by process, the backward pass is the largest consumer of GPU time",
        right.idxmax() == "backward", right.idxmax(),
        because="another library picks other kernels, and may have a slow one for the forward pass",
        so=f"the phase to look at first is {right.idxmax()}",
    )  # fmt: skip


def nothing_left_out(found: Budget, report: Report) -> Iterator[Claim | str]:
    """The causes of the epoch's budget add up, to the whole and to what the GPU idles."""
    yield Claim("the shares add up to 1", abs(sum(found.fractions.values()) - 1) < 1e-9)
    by_clock = idle(report).idle_ms  # the epoch less all kernels and copies
    yield Claim("the idle causes add up to the GPU's idle time", abs(found.idle_ms - by_clock) < 1e-6, by_clock)


def in_words(report: Report) -> Iterator[Claim | str]:
    """Why the GPU stands still for most of the epoch, and what the waits for it cost."""
    if report.kernels.empty:
        yield "No GPU took part: the causes say what the CPU did."
        return
    found = budget(report)
    top = found.table().nlargest(1, "share_of_idle").iloc[0]
    percent = 100 * found.idle_ms / found.window.duration_ms
    yield (
        f"The GPU stands still for {percent:.0f} % of the epoch, and the largest cause "
        f"of it is '{top['cause']}', with {100 * top['share_of_idle']:.0f} % of that time."
    )
    yield (
        f"The program waited for the GPU for {found.held_ms.get('synchronisation', 0.0):.1f} ms; "
        f"because of it the GPU stood still for {found.ms['synchronisation']:.1f} ms."
    )


# --- exercises ------------------------------------------------------------------------------------------------


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
