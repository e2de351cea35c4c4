"""Did each fix do what its bound promised, and what is it worth to a whole process?

A bound is of the profiled window. What is scored is the step as it was timed without a profiler, three rounds of all
fixes in turn: the bound's share of its window is taken of that step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.display import style
from labkit.display.charts.bars import SMALL, THICK, bar, bar_axes, beside, reach
from labkit.display.runs import is_beyond_noise
from labkit.display.spread import Spread, paired, spread
from labkit.errors import LabError
from labkit.labs.lab25 import mends
from labkit.labs.lab25.mends import AS_IT_WAS, Mend, budget_of, report, runs
from labkit.labs.lab25.scripts import before
from labkit.recording import plan
from stepbudget.ask import iterations
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table
from stepbudget.window import Window

WAITS_SHARE = 0.1  # of a step: what is worth a look
NOTHING = "no difference shows"
NOISE_SHARE = 0.02  # of a step: what two timings of one program may differ by, whatever their spread; see compare.NOISE
BOUND = "at best, by the report before"


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
    def promised_ms(self) -> float:
        return self.before.median * self.share

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
            return word if is_beyond_noise(self.ratio) else f"{word}, by chance perhaps"
        return NOTHING


def score(mend: Mend) -> Scored:
    """A mend's bound, from the report before it, against the timed steps before and after."""
    previous = before(mend.report)
    own, found = report(previous), budget_of(previous)
    share = min(1.0, mend.bound_ms(own, found) / found.window.duration_ms)
    return Scored(mend, runs(previous), runs(mend.report), share)


def scores(patient: str) -> list[Scored]:
    """All mends of a script, in order; LabError for a name that is none of ``mends.PATIENTS``."""
    return [score(mend) for mend in mends.mends(patient)]


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
    ends = patient, mends.mends(patient)[-1].report
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
    columns = ["by short runs s", "process s", "rounds s", "step ms", "× process", "× step", "loss"]
    formats = {"by short runs s": "{:.1f}", "process s": "{:.1f}", "step ms": "{:.1f}"}
    formats |= {"× process": "{:.2f}", "× step": "{:.2f}", "loss": "{:.4f}"}
    caption = f"{name}: whole processes of {found.steps:,} steps, medians of {found.process.n} rounds; the last loss"
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
