"""What lab 2 claims: the loader starves the GPU, more workers feed it, and the bound tells how much that can gain.

Its exercises: steps that wait for the loader, what is left to gain, and a loader for any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit import cases, source
from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import SMALL, seconds
from labkit.display.runs import compared, in_rounds
from labkit.display.spread import Spread, paired
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.predictions import Guess
from labkit.pretend.loader import PretendLoader
from labkit.source import kinds, sweep
from labkit.source.sweep import spare
from labkit.subjects import bounds
from labkit.subjects.bounds import idle_ms, row_ms, without
from labkit.subjects.ladder import WallClock
from labkit.subjects.unnamed import unnamed
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.idle import idle
from stepbudget.ask.iterations import step_windows, steps
from stepbudget.report import Report

# --- what it asks its reader to predict --------------------------------------------------------------------------


PREDICTIONS = {
    "times": bounds.guess(
        "the bound without waiting for the loader", "loader", "loader",
        alone="That leaves out the waiting that overlaps with GPU work.",
        idle="That keeps only the GPU's work: without the loader, the other idle time stays.",
        over="That's the epoch over the wait: divide by what is left without the wait.",
    ),
    "four": Guess(
        "an epoch with four workers", " s", lambda tried: tried.spread(4).median,
        wrong={
            "That's the ideal, a quarter of one worker's time. Workers get in each other's way.": (
                lambda tried: tried.spread(1).median / 4
            ),
        },
    ),
    "stranger": Guess(
        "the stranger's bound without waiting for the loader", "×",
        bounds.at_most("loader"),
        wrong={
            "That takes away all of its idle time, and none of that is waiting for data.": without(idle_ms),
            "That's what fewer or cheaper launches could gain. Workers don't launch kernels.": (
                bounds.at_most("cuda_graph")
            ),
        },
    ),
}  # fmt: skip


def stranger() -> Report:
    """A report that tells no more of itself than its name: whose program is it, and would more workers help?"""
    return unnamed(cases.case("digits_launch").report, "stranger")


# --- what it claims ----------------------------------------------------------------------------------------------


def proven(clock: WallClock) -> Iterator[Claim | str]:
    """The wall clock of the baseline's runs and of those with workers."""
    slow, fast = clock.runs.values()
    process, loop = paired(slow, fast), paired(slow, fast, "training_s")
    yield f"The training loop is {compared(slow, fast, 'training_s')}."
    rest_s = [median(one["process_s"] - one["training_s"] - one["test_s"] for one in side) for side in (slow, fast)]
    yield f"Neither training nor test: {rest_s[0]:.1f} s before, {rest_s[1]:.1f} s after."
    yield Claim(
        "the whole process is at least twice as fast", process.median > 2, process.median,
        because="few cores feed the GPU slowly, or a slow GPU had less to wait for",
        so=f"{rest_s[1]:.0f} s of each run are neither training nor test, and no loader shortens them",
    )  # fmt: skip
    yield Claim(
        "the training loop gains more than the whole process does", loop.median > process.median,
        f"{loop.median:.2f} and {process.median:.2f} times",
        because="the loop hardly gained, and start-up varies as much",
        so="run more rounds before you read anything into the difference",
    )  # fmt: skip


def starved(before: Report, after: Report) -> Iterator[Claim | str]:
    """The loader starved the GPU; now the same work takes a shorter epoch, and no more was gained than the bound."""
    found, made = budget(before), compare(before, after, fix="loader")
    waiting = found.ms["loader"] / found.window.duration_ms
    yield Claim(
        "the baseline spent more than half of the epoch waiting for the loader", waiting > 0.5, waiting,
        because="a slower GPU needs longer for a batch than one worker does, or there is no GPU and the CPU trains",
        so=f"no loader can gain more than {made.bounds['loader'].at_most_ms:,.0f} ms of your epoch; "
        "sb.budget(before) has the larger rows",
    )  # fmt: skip
    yield Claim(
        "the epoch is at least three times as fast", made.speedup > 3, made.speedup,
        because="few cores have few workers to spare, or the GPU's own work fills the epoch",
        so=f"the GPU still waits {made.after.ms['loader']:,.0f} ms of an epoch for the loader: "
        "lab 6 takes the loader away, labs 4 and 7 shorten the rest",
    )  # fmt: skip
    yield Claim(
        "the two reports hold the same work", made.comparable, "; ".join(made.obstacles),
        because="a training without a GPU leaves no kernels in a report",
        so="no bound is scored here; the wall clock is your proof",
    )  # fmt: skip
    if score := made.score():
        busy_ms, still_busy_ms = (idle(report).busy_ms for report in (before, after))
        yield Claim(
            "the GPU needs as long for it as before, within 15 %",
            abs(still_busy_ms - busy_ms) <= 0.15 * busy_ms,
            f"{busy_ms:,.0f} ms before, {still_busy_ms:,.0f} ms after",
            because="a GPU changes its clock rate with its load and heat, laptops most of all",
            so="compare times of kernels only between runs at one clock rate; trust the wall clock",
        )
        yield (
            f"The epoch is {score.gained_ms:,.0f} ms shorter (bound: {score.bound.at_most_ms:,.0f} ms) "
            f"and {made.speedup:.1f} times as fast (bound: {score.bound.at_most_times:.1f})."
        )
        yield Claim(
            "the gain is within its bound", score.kept,
            f"{score.gained_ms:,.0f} ms of at most {score.bound.at_most_ms:,.0f}",
            because="more than the loader changed between the two, such as the GPU's clock rate",
            so="do not credit the loader with all of it: look which other rows have shrunk",
        )  # fmt: skip


def waits(after: Report, clock: WallClock) -> Iterator[Claim | str]:
    """When the steps of an epoch wait for the loader: at its beginning, and in rounds of the workers."""
    *_, (run, *_) = clock.runs.values()
    workers = run["arguments"]["workers"]
    found = steps(after)["loader_wait_ms"].dropna()
    later = found.iloc[1:]  # the first step always waits, for a whole batch
    early_ms, late_ms = later.iloc[: len(later) // 2].sum(), later.iloc[len(later) // 2 :].sum()
    few_ms = found.nlargest(len(found) // 4).sum()
    yield Claim(
        "a quarter of the steps hold more than half of the waiting", few_ms > 0.5 * found.sum(),
        f"{few_ms:.0f} of {found.sum():.0f} ms",
        because="with one worker or two, every step waits about as long",
        so="there are no rounds to see, and the mean step tells no more than the median one",
    )  # fmt: skip
    round_steps = min(workers, len(found))
    first_ms, round_ms = (found.iloc[:number].sum() for number in (1, round_steps))
    batches = f", {round_ms:.0f} in the first {round_steps}, a batch of each worker" if workers > 1 else ""
    yield f"Waiting: {found.sum():.0f} ms, {first_ms:.0f} in the first step{batches}."
    halves = f"after the first step, {early_ms:.0f} ms in the first half of the epoch, {late_ms:.0f} in the second"
    if found.empty:
        yield "No range of this report marks the loader: nothing is known of the waits."
    elif early_ms + late_ms < 0.05 * after.window().duration_ms:
        yield f"Next to no waits after the first step ({halves}): the workers keep ahead of the GPU."
    elif late_ms < early_ms / 2:
        yield f"The waits fade ({halves}): the workers get ahead of the GPU."
    else:
        yield f"The waits do not fade ({halves}): the workers set the pace."


def workers(tried: Sweep) -> Iterator[Claim | str]:
    """What the workers that the cores allow bring, and what more of them."""
    times, most = tried.spread(1).median / tried.spread(tried.spare).median, max(tried.seconds)
    best = min(tried.seconds, key=lambda number: tried.spread(number).median)
    images = tried.images / tried.spread(best).median
    yield Claim(
        "the workers that the cores allow are at least three times as fast as one", times > 3, times,
        because="there are few cores for them to share, or the training sets the pace, not the loader",
        so=f"of the numbers tried, none trains more than {images:,.0f} images a second (--workers {best}): "
        "if the GPU still waits for the loader, the next fix is lab 6, not more workers",
    )  # fmt: skip
    if most > tried.spare:
        few, many = (tried.seconds[number] for number in (tried.spare, most))
        ratio = Spread.of([one / other for one, other in zip(few, many, strict=True)])
        yield f"{most} workers instead of {tried.spare}: {in_rounds(ratio)}."
    else:
        yield f"More than {tried.spare} workers were not tried: one quick round could not tell."
    yield f"--workers {best} has the best median: {images:,.0f} images a second."


# --- its sweep ---------------------------------------------------------------------------------------------------

SWEPT = "main_opt1.py --epochs 3 --workers {}"  # the first epoch is left out: it holds the start of the workers


@dataclass(frozen=True)
class Sweep:
    """How long an epoch takes with so many loader workers: seconds, a number a round."""

    seconds: Mapping[int, Sequence[float]]
    cores: int  # that the workers share with the training
    images: int  # in an epoch

    @property
    def spare(self) -> int:
        """The workers that the cores allow."""
        return spare(self.cores)

    @property
    def chart(self) -> Figure:
        return worker_sweep((number, self.spread(number)) for number in self.seconds)

    def spread(self, number: int) -> Spread:
        return Spread.of(list(self.seconds[number]))


def sweep_workers(clock: WallClock) -> Sweep:
    """Runs of three epochs with one worker, two, four …; ``clock``: the table of this machine's whole runs."""
    ((record, *_), *_) = clock.runs.values()
    cores = record["cpu_cores"]
    commands = {number: SWEPT.format(number) for number in sweep.worker_counts(cores)}
    once = {command: int(number in sweep.few(cores)) for number, command in commands.items()}  # or not at all
    ran = source.current().get(kinds.runs([*commands.values()], when_quick=once))
    seconds = {number: [*map(_later_epochs_s, ran[own])] for number, own in commands.items() if own in ran}
    return Sweep(seconds, cores, record["train_samples"])


def _later_epochs_s(record: dict) -> float:
    return fmean(epoch["training_s"] for epoch in record["epochs"][1:])


CLOSE = 1.3  # two points of a logarithmic axis whose labels would meet
ABOVE = {"textcoords": "offset points", "ha": "center", "va": "bottom", "size": SMALL}
BESIDE = ABOVE | {"ha": "left", "va": "center"}


def worker_sweep(points: Iterable[tuple[int, Spread]]) -> Figure:
    """Seconds an epoch against the number of loader workers, with the line on which twice the workers take half.

    ``points``: (workers, median and range in seconds). Without a worker (0) the main process loads: half a step left.
    """
    points = sorted(points, key=lambda point: point[0])
    (fewest, first), *_ = [point for point in points if point[0]]
    x = [number or fewest / 2 for number, _ in points]
    median, low, high = ([getattr(own, part) for _, own in points] for part in ("median", "low", "high"))
    parallel = [number for number in x if number >= fewest]
    ideal = [first.median * fewest / number for number in parallel]
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        ax.plot(parallel, ideal, ls=":", color=style.MUTED, lw=1.4)
        ax.annotate("ideal: 1/n", (parallel[-1], ideal[-1]), (8, 0), **BESIDE)
        ax.vlines(x, low, high, color=style.INK, lw=1.4)
        ax.plot(parallel, median[-len(parallel) :], color=style.BLUE, lw=1.8)
        ax.plot(x, median, "o", color=style.BLUE, ms=6)
        for i, (place, top, epoch_s) in enumerate(zip(x, high, median, strict=True)):
            beside = i and place / x[i - 1] < CLOSE  # no room above: write it to the right
            at, off, where = ((place, epoch_s), (9, 0), BESIDE) if beside else ((place, top), (0, 6), ABOVE)
            ax.annotate(f"{seconds(epoch_s)} s", at, off, **where)
        ax.set(xscale="log", yscale="log", xlabel="loader workers", ylabel="seconds an epoch")
        ax.set(xlim=(x[0] / 1.25, x[-1] * 1.6), ylim=(min(*ideal, *low) / 1.25, max(high) * 1.5))
        ax.set_xticks(x, [str(number) if number else "none: the main\nprocess loads" for number, _ in points])
        ax.xaxis.set_minor_locator(NullLocator())
        _plain_numbers(ax.yaxis)
        ax.grid(axis="y", which="both", lw=0.5)
        ax.set_title("An epoch of training, by number of loader workers: median and range")
    return fig


def _plain_numbers(axis: Axis) -> None:
    """2, 5, 10, 20 on a logarithmic axis instead of powers of ten."""

    def number(value: float, _: int) -> str:
        return f"{value:g}" if f"{value:.0e}"[0] in "125" else ""

    axis.set_major_formatter(number)
    axis.set_minor_formatter(number)


# --- exercises ------------------------------------------------------------------------------------------------


def _by_step(report: Report) -> pd.DataFrame:
    return budget(report).over(step_windows(report))


def _waiting_steps(report: Report) -> int:
    return int((_by_step(report).idxmax(axis=1) == "loader").sum())


WAITING_STEPS = Number(
    READ,
    "idxmax(axis=1) names the largest cause of each step; count the steps where it is 'loader'.",
    right=_waiting_steps,
    wrong={
        "those are all steps of the epoch": lambda report: len(step_windows(report)),
        "so many wait at all: in how many is it the largest cause?": lambda r: int((_by_step(r)["loader"] > 0).sum()),
        "those are milliseconds of waiting, not steps": lambda report: _by_step(report)["loader"].sum(),
        "those are the steps whose largest cause is another": lambda r: len(step_windows(r)) - _waiting_steps(r),
    },
    within=0.0,
)


LOADER_BOUND = Number(
    BOUND,
    "The epoch, over what is left of it without all the time for which the loader held the program (held_ms, and no "
    "more than all idle time): sb.bounds(after) has it.",
    right=bounds.at_most("loader"),
    wrong={
        "that takes away the budget's row, which counts only while the GPU idles: the loader holds longer": (
            without(row_ms("loader"))
        ),
        "that is the epoch over the wait: divide by what is left without it": bounds.whole_ms / row_ms("loader"),
        "that is without any idle time: the other causes stay": without(idle_ms),
        "that is the share that is left: how many times as fast is the epoch then?": 1 / bounds.at_most("loader"),
        "those are milliseconds: how many times as fast?": bounds.at_most_ms("loader"),
    },
)


def _shuffles(loader: PretendLoader) -> bool:
    """By itself, or by a sampler: each digit once, in another order than theirs, and in another one each epoch."""
    if loader.sampler is None:
        return bool(loader.shuffle)
    order, again, own = list(loader.sampler), list(loader.sampler), list(range(len(loader.dataset)))
    return order not in (own, again) and sorted(order) == own


def _try_loader(make_loader: Callable) -> str | None:
    digits = range(5000)
    for cores in (16, 4, 3, 2, 1, 64):
        most = max(1, cores - 2)
        try:
            loader = make_loader(PretendLoader, digits, cores)
        except ValueError as error:
            return f"with {cores} cores the DataLoader refuses: {error}"
        if not isinstance(loader, PretendLoader):
            return "it does not return the loader that it made"
        if loader.dataset is not digits or loader.batch_size != 1024:
            return "it changes what is trained: the same digits, in batches of 1,024"
        if not _shuffles(loader):
            return "it changes what is trained: the digits are no longer shuffled, each once and anew in each epoch"
        if loader.workers == 0:
            return f"with {cores} cores it has no worker: the training loop itself fetches every digit"
        if loader.workers > most:
            more = "leave one core for the training loop and one for the system, and one worker at least"
            return f"with {cores} cores it starts {loader.workers} workers: {more}"
        if loader.workers < most:
            return f"with {cores} cores it starts {loader.workers}, and {most} workers have a core to themselves"
        if not loader.kept:
            return "its workers end with each epoch and start anew: keep them alive"
        if loader.drop_last:
            return "it changes what is trained: the last, short batch is dropped"
    return None


def _loader(workers: Callable[[int], int], kept: bool = True, **others) -> Callable:
    options = {"batch_size": 1024, "shuffle": True, "persistent_workers": kept} | others
    return lambda DataLoader, digits, cores: DataLoader(digits, num_workers=workers(cores), **options)


ANY_MACHINE = Code(
    "num_workers and persistent_workers are the two arguments; max(1, …) keeps one worker where cores are few.",
    _try_loader,
    wrong={
        "with 16 cores it starts 1, and 14 workers": _loader(lambda cores: 1),
        "with 16 cores it starts 16 workers": _loader(lambda cores: cores),
        "with 4 cores it starts 14 workers": _loader(lambda cores: 14),
        "with 2 cores the DataLoader refuses": _loader(lambda cores: cores - 2),
        "with 2 cores it has no worker": lambda DataLoader, digits, cores: _loader(lambda n: n - 2, cores > 2)(
            DataLoader, digits, cores
        ),
        "start anew: keep them alive": _loader(spare, kept=False),
        "with 64 cores it starts 14, and 62 workers": _loader(lambda cores: min(14, spare(cores))),
        "no longer shuffled": _loader(spare, shuffle=False),
        "it changes what is trained: the digits are no longer shuffled": _loader(spare, shuffle=False, sampler=None),
        "are no longer shuffled": lambda DataLoader, digits, cores: _loader(
            spare, shuffle=False, sampler=range(len(digits))
        )(DataLoader, digits, cores),
        "in batches of 1,024": _loader(spare, batch_size=4096),
        "short batch is dropped": _loader(spare, drop_last=True),
        "does not return the loader": lambda DataLoader, digits, cores: None,
    },
)

EXERCISES = {"2.1": WAITING_STEPS, "2.2": LOADER_BOUND, "2.3": ANY_MACHINE}
