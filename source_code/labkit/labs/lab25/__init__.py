"""Lab 25: two scripts that somebody brings, what each fix promised, and what it brought.

Reports and runs come from the machine that the lab's text is written from, as those of the clinic do: they are case
histories, and a history has one course. Where none of the reader's bounds (stepbudget.ask.predict) is about a mend,
the bound stands here, with what it rests on.

A bound is of the profiled window. What is scored is the step as it was timed without a profiler, three rounds of all
fixes in turn: the bound's share of its window is taken of that step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit import course
from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import SMALL, THICK, bar, bar_axes, beside, reach
from labkit.display.runs import is_beyond_noise
from labkit.display.spread import Spread, paired, spread
from labkit.errors import LabError
from labkit.labs.lab25 import scripts
from labkit.labs.lab25.exercises import EXERCISES
from labkit.labs.lab25.scripts import before, fixes, pasted
from labkit.paths import RECORDED
from labkit.predictions import Guess
from labkit.recording import plan
from labkit.source import recorded
from stepbudget import kernel_names
from stepbudget.ask import iterations, predict, tensor_cores
from stepbudget.ask.budget import Budget, budget
from stepbudget.ask.launch import launch
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report, open_report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table
from stepbudget.window import Window

MACHINE = course.DEFAULT_MACHINE
AS_IT_WAS = "as it was"
PATIENTS = tuple(plan.EXAMPLES)  # the scripts, by the names of their first reports


@dataclass(frozen=True)
class Mend:
    """One change: the report after it, what it is in few words, and what it gains at most by the report before it.

    ``bound_ms``: of a report and its budget, milliseconds of the window.
    """

    report: str
    label: str
    bound_ms: Callable[[Report, Budget], float]

    @property
    def word(self) -> str:
        """``bf16``, ``workers``, …: what a prediction calls it."""
        return self.report.rpartition("_")[2].replace("amp", "bf16")


def _fix(name: str) -> Callable[[Report, Budget], float]:
    return lambda report, found: predict.bound(report, found, name).at_most_ms


def sixteen_bits_ms(report: Report, found: Budget) -> float:
    """What BF16 gains at most: the reader's bound, and half of the Tensor Core kernels that work in TF32.

    TF32 is on Tensor Cores already, so the reader's bound leaves it out; in 16 bits they multiply twice as fast, and
    half as many bytes move (NVIDIA H200 data sheet: 495 TFLOP/s in TF32, 989 in BF16, both dense).
    """
    return predict.bound(report, found, "mixed_precision").at_most_ms + tf32_ms(report, found) / 2


def tf32_ms(report: Report, found: Budget) -> float:
    """Milliseconds of Tensor Core kernels whose names say that they multiply in TF32."""
    table = tensor_cores.verdicts(report, found.window)
    used = table["tensor_core"] == kernel_names.YES
    return float(table.loc[used & table["kernel"].str.contains(kernel_names.TF32), "gpu_ms"].sum())


def optimizer_ms(report: Report, found: Budget) -> float:
    """What another optimizer gains at most: all of that phase, the CPU's time for it and its kernels' on the GPU."""
    own = phases(report, found.window).set_index("phase").loc["optimizer"]
    return float(own["cpu_ms"] + own["gpu_ms"])


def all_but_products_ms(report: Report, found: Budget) -> float:
    """What compiling gains at most: all but the matrix products on Tensor Cores, which it leaves to the libraries."""
    return found.window.duration_ms - found.ms["tensor_core_kernels"]


MENDS = {
    "train_resnet": (
        Mend("train_resnet_workers", "14 loader workers", _fix("loader")),
        Mend("train_resnet_pinned", "pinned memory, non-blocking", _fix("pinned_memory")),
        Mend("train_resnet_amp", "BF16 and channels-last", sixteen_bits_ms),
        Mend("train_resnet_log", "loss read every 10 steps", _fix("no_synchronisation")),
    ),
    "train_transformer": (
        Mend("train_transformer_amp", "BF16", sixteen_bits_ms),
        Mend("train_transformer_log", "loss read every 10 steps", _fix("no_synchronisation")),
        Mend("train_transformer_fused", "fused optimizer", optimizer_ms),
        Mend("train_transformer_compiled", "torch.compile", all_but_products_ms),
    ),
}


def mends(patient: str) -> tuple[Mend, ...]:
    """What was mended in a script of PATIENTS, in order; LabError for another name."""
    if patient not in MENDS:
        raise LabError(f"no script here is called {patient}: there are {', '.join(MENDS)}.")
    return MENDS[patient]


def report_file(name: str) -> Path:
    """Where a recorded report lies; NotRecorded where there is none of that name."""
    where = RECORDED / MACHINE
    return recorded.named("profiles", name, recorded.provenance(where)["profiles"].get(name, ""), where)


@cache
def report(name: str) -> Report:
    """A recorded report of ``plan.EXAMPLE_STEPS``; NotRecorded where there is none of that name."""
    return open_report(report_file(name))


@cache
def budget_of(name: str) -> Budget:
    return budget(report(name))


def runs(name: str, steps: int | None = None) -> list[dict]:
    """The timed runs of a report's program, one a round; ``steps``: those of so many steps, for whole processes."""
    command = plan.EXAMPLE_STEPS[name] + (f" --steps {steps}" if steps else "")
    return recorded.records("runs", command, RECORDED / MACHINE)


# --- what each fix gained -----------------------------------------------------------------------------------


WAITS_SHARE = 0.1  # of a step: what is worth a look
NOTHING = "no difference shows"
NOISE_SHARE = 0.02  # of a step: what two timings of one program may differ by, whatever their spread; see compare.NOISE
BOUND = "at best, by the bound"


@dataclass(frozen=True)
class Scored:
    """A mend, what was promised, and what came of it: milliseconds of one step.

    ``slow`` and ``fast``: the timed runs before and after it, one a round.
    """

    mend: Mend
    slow: Sequence[dict]
    fast: Sequence[dict]
    share: float  # of the window, that the bound says can go at most

    @property
    def before(self) -> Spread:
        return spread(self.slow, "step_ms")

    @property
    def after(self) -> Spread:
        return spread(self.fast, "step_ms")

    @property
    def ratio(self) -> Spread:
        """How many times as fast a step is, round by round."""
        return paired(self.slow, self.fast, "step_ms")

    @property
    def best_ms(self) -> float:
        """What a step takes at best by the report before."""
        return self.before.median * (1 - self.share)

    @property
    def gained_ms(self) -> float:
        return self.before.median - self.after.median

    @property
    def at_most_times(self) -> float:
        return self.before.median / self.best_ms if self.best_ms > 0 else float("inf")

    @property
    def kept(self) -> bool:
        """Did the gain stay within the bound, in one round at least, and but for NOISE_SHARE?"""
        return self.ratio.low <= self.at_most_times * (1 + NOISE_SHARE)

    @property
    def verdict(self) -> str:
        low, high = self.ratio.low, self.ratio.high
        if not self.kept:
            return "more than the bound"
        if low > 1 + NOISE_SHARE or high < 1 - NOISE_SHARE:
            word = "gained" if low > 1 else "lost"
            return word if is_beyond_noise(self.ratio) else f"{word}, perhaps by chance"
        return NOTHING


def score(mend: Mend) -> Scored:
    """A mend's bound, from the report before it, against the timed steps before and after."""
    previous = before(mend.report)
    own, found = report(previous), budget_of(previous)
    share = min(1.0, mend.bound_ms(own, found) / found.window.duration_ms)
    return Scored(mend, runs(previous), runs(mend.report), share)


def scores(patient: str) -> list[Scored]:
    """All mends of a script, in order; LabError for a name that is none of ``mends.PATIENTS``."""
    return [score(mend) for mend in mends(patient)]


def most(scored: Sequence[Scored]) -> str:
    """The fix that makes a step shorter by most milliseconds, by its word: the last of its report's name."""
    return max(scored, key=lambda one: one.gained_ms).mend.word


def ledger(scored: Sequence[Scored]) -> Table:
    """A row a fix: the step at best by the report before, the step as timed, round by round, and what came of it."""
    first = scored[0]
    rows = [(AS_IT_WAS, None, first.before.median, None, "", None, "")]
    for one in scored:
        rounds = f"{one.ratio.low:.2f}–{one.ratio.high:.2f}"
        factors = (one.ratio.median, rounds, one.at_most_times)
        rows.append((one.mend.label, one.best_ms, one.after.median, *factors, one.verdict))
    columns = ["fix", "at best ms", "timed ms", "× before", "rounds ×", "× at most", "verdict"]
    formats = {"at best ms": "{:.1f}", "timed ms": "{:.1f}", "× before": "{:.2f}", "× at most": "{:.2f}"}
    timed = first.slow[0]["arguments"]["steps"]
    caption = f"A step, each fix added to those before it: {first.before.n} rounds of {timed} steps, no profiler"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def steps(scored: Sequence[Scored], title: str) -> Figure:
    """Milliseconds of a step, as it was and after each fix: median, each round a dot, and where the bound lay."""
    names = [AS_IT_WAS, *(one.mend.label for one in scored)]
    taken = [scored[0].before, *(one.after for one in scored)]
    longest = max(own.high for own in taken)
    with style.house_style():
        fig, ax = bar_axes(names, title, "milliseconds a step: median, each round a dot (×: against the first row)")
        reach(ax, longest, words_in=1.3)
        marks = [0.0, *(one.best_ms for one in scored)]
        for y, (own, mark) in enumerate(zip(taken, marks, strict=True)):
            bar(ax, y, 0, own.median, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(own.values, [y] * own.n, "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            factor = f"   {taken[0].median / own.median:.2f}×" if y else ""
            beside(ax, max(own.high, mark), y, f"{own.median:.1f} ms{factor}")
            if y:
                ax.plot([mark, mark], [y - THICK / 2, y + THICK / 2], color=style.VERMILION, lw=2.4)
        look = {"color": style.VERMILION, "marker": "|", "ms": 12, "mew": 2.4, "lw": 0}
        fig.legend(handles=[Line2D([], [], label=BOUND, **look)], loc="outside lower center", fontsize=SMALL + 0.5)
    return fig


@dataclass(frozen=True)
class Whole:
    """A script as it was and with all fixes, as whole processes of so many timed steps, after the same warm-up."""

    steps: int
    before: Sequence[dict]
    after: Sequence[dict]
    predicted_s: tuple[float, float]  # of a process before and after, from runs of few steps

    @property
    def process(self) -> Spread:
        """How many times as fast the process is, round by round."""
        return paired(self.before, self.after)

    @property
    def step(self) -> Spread:
        """The same of a step in these processes."""
        return paired(self.before, self.after, "step_ms")

    @property
    def losses(self) -> tuple[float, float]:
        """The loss, before and after, at the last step at which both read it: medians over the rounds."""
        every = [one[0]["arguments"]["log_every"] for one in (self.before, self.after)]
        last = (len(self.after[0]["losses"]) - 1) * every[1]
        found = [
            [record["losses"][last // often] for record in records]
            for records, often in zip((self.before, self.after), every, strict=True)
        ]
        return tuple(map(median, found))


def whole(patient: str) -> Whole:
    """Whole processes of a script of ``mends.PATIENTS``, first as it was, then with all fixes."""
    ends = patient, mends(patient)[-1].report
    steps = plan.EXAMPLE_LONG[patient]
    predicted = (longer_s(runs(name), steps) for name in ends)
    return Whole(steps, *(runs(name, steps) for name in ends), tuple(predicted))


def whole_table(found: Whole, name: str) -> Table:
    """A script as it was and with all fixes: whole process (as short runs predict it, too), step, and the last loss."""
    rows = []
    sides = zip(
        (AS_IT_WAS, "all four fixes"), (found.before, found.after), found.predicted_s, found.losses, strict=True
    )
    for when, records, predicted_s, loss in sides:
        process, step_ms = spread(records), spread(records, "step_ms").median
        times = (found.process.median, found.step.median) if records is found.after else (None, None)
        rows.append((when, predicted_s, process.median, f"{process.low:.1f}–{process.high:.1f}", step_ms, *times, loss))
    columns = ["extrapolated s", "process s", "rounds s", "step ms", "× process", "× step", "loss"]
    formats = {"extrapolated s": "{:.1f}", "process s": "{:.1f}", "step ms": "{:.1f}"}
    formats |= {"× process": "{:.2f}", "× step": "{:.2f}", "loss": "{:.4f}"}
    caption = f"{name}: whole processes of {found.steps:,} steps, medians of {found.process.n} rounds; last loss"
    return table(pd.DataFrame(rows, columns=[name, *columns]), caption, formats)


def longer_s(short: Sequence[dict], steps: int) -> float:
    """Seconds that a process of so many steps takes, by runs of fewer: start and warm-up stay, steps are added."""
    more = steps - short[0]["arguments"]["steps"]
    return spread(short).median + more * spread(short, "step_ms").median / 1e3


def starts_s(records: Sequence[dict]) -> float:
    """Seconds of a process without its timed steps: imports, start, warm-up, compiling."""
    return longer_s(records, 0)


def pays_after(slow: Sequence[dict], fast: Sequence[dict]) -> float:
    """After how many steps a longer start is made up for by shorter steps; infinity where they are no shorter."""
    gained_s = (spread(slow, "step_ms").median - spread(fast, "step_ms").median) / 1e3
    return (starts_s(fast) - starts_s(slow)) / gained_s if gained_s > 0 else math.inf


def starved(report: Report) -> Window:
    """The steps of a report from the first one on that waits for the loader for more than a tenth of its time.

    While a profiler starts, workers fill their queues, and the first steps of a window wait for nothing. LabError where
    no step waits so long.
    """
    table = iterations.steps(report)
    waits = table["loader_wait_ms"] > WAITS_SHARE * table["duration_ms"]
    if not waits.any():
        raise LabError("no step of this report waits long for the loader.")
    first = iterations.step_windows(report)[int(waits.idxmax())]
    return replace(report.window(), start=first.start)


# --- what it claims -----------------------------------------------------------------------------------------


def loader_starves(before: Report) -> Iterator[Claim | str]:
    """The first script's GPU waits for the loader."""
    waits = budget(before).fractions["loader"]
    yield Claim(
        "the GPU waits for the loader at least a tenth of the time", waits > 0.1, waits,
        because="faster cores decode more pictures, and a slower GPU waits less for them",
        so="read the largest row of your own table; the rest is somebody else's case",
    )  # fmt: skip


def whole_process(process: Spread, losses: Sequence[float]) -> Iterator[Claim | str]:
    """All fixes in a whole process: how many times as fast it is, and its loss at the end, before and after."""
    yield Claim("in each round, a process is over twice as fast", process.low > 2)
    apart = abs(losses[0] - losses[1])
    yield Claim("the last losses differ by under 0.01 and under 20 %", apart < min(0.01, 0.2 * max(losses)), losses)


def workers_beat_the_bound(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """The workers alone gained more than their bound, and why; ``scored``: all fixes of the ResNet."""
    broken = [one.mend.word for one in scored if not one.kept]
    yield Claim("only the workers gained more than their bound, in each round", broken == ["workers"])
    first = report(scripts.before(scored[0].mend.report))
    found = bound(first, budget(first, starved(first)), "loader")
    yield f"The workers' bound from the first long wait on: at most {found.at_most_times:.2f} times as fast."
    names = [scripts.before(scored[0].mend.report), *(one.mend.report for one in scored)]
    waits = ", ".join(f"{budget_of(name).ms['synchronisation']:.0f}" for name in names)
    yield f"'Synchronisation' in ten steps, at first and after each fix: {waits} ms."


def within_bounds(scored: Sequence[Scored]) -> Iterator[Claim | str]:
    """No fix of the transformer beat its bound in every round; what its reports say of the last three."""
    yield Claim("each fix stayed within its bound in some round", all(one.kept for one in scored))
    log, fused, compiled = scored[1:]
    took = [_optimizer_ms(one.mend.report) for one in (log, fused)]
    cpu, gpu = (f"{old:.1f} → {new:.1f} ms" for old, new in zip(*took, strict=True))
    yield f"A step's optimizer phase, fused: {cpu} on the CPU, {gpu} on the GPU."
    found = {one.mend.report: launch(report(one.mend.report)) for one in scored[1:]}
    counted = ", ".join(f"{own.launches / _steps(name):.0f}" for name, own in found.items())
    verdicts = ", ".join(dict.fromkeys(own.verdict for own in found.values()))
    yield f"Launches a step, recorded after each of the last three fixes: {counted}. Verdict: {verdicts}."
    watched_ms = budget_of(compiled.mend.report).window.duration_ms / _steps(compiled.mend.report)
    yield f"Compiled, a step takes {watched_ms:.0f} ms under the profiler, {compiled.after.median:.0f} ms without it."
    later_s = starts_s(compiled.fast) - starts_s(compiled.slow)
    steps = pays_after(compiled.slow, compiled.fast)
    yield f"Compiled, the short runs start {later_s:.0f} s later; that pays off after {steps:,.0f} steps."


def _optimizer_ms(name: str) -> tuple[float, float]:
    """Milliseconds of the optimizer's phase in a step: of the CPU's time, and of its kernels."""
    own = phases(report(name)).set_index("phase").loc["optimizer"]
    return own["cpu_ms"] / own["count"], own["gpu_ms"] / own["count"]


def _steps(name: str) -> int:
    return int(phases(report(name)).set_index("phase").loc["optimizer", "count"])


# --- what it asks before it shows ---------------------------------------------------------------------------


A_STEP = "That's a step. A process also starts up and warms up, which no fix made shorter."

PREDICTIONS = {
    "whole": Guess(
        "ResNet, the whole process",
        "×",
        lambda whole: whole.process.median,
        wrong={A_STEP: lambda whole: whole.step.median},
    ),
    "workers": Guess(
        "ResNet, a step with 14 workers",
        "×",
        lambda scored: scored[0].ratio.median,
        wrong={
            "That's the bound of these ten steps. Are they typical?": lambda scored: scored[0].at_most_times,
            "Seven times as many workers only shorten the time that the GPU waits for them.": lambda scored: 14 / 2,
        },
    ),
    "best": Guess("ResNet, the fix that saves most", "", most),
    "times": Guess(
        "transformer, the whole process",
        "×",
        lambda whole, scored: whole.process.median,
        wrong={
            A_STEP: lambda whole, scored: whole.step.median,
            "That's the bound of BF16 alone, for one step: a best case.": lambda whole, scored: scored[0].at_most_times,
        },
    ),
}
