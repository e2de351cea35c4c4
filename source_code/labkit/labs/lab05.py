"""What lab 5 claims: which of three fixes brought the factor, why the others did not show, and what is still idle.

Its predictions: PyTorch's own example, mixed precision alone, a program without a name. Its exercises: an epoch without
idle time, what comes after the loader, and rounds that are compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd
from matplotlib.figure import Figure

from labkit import course
from labkit.checks import Claim
from labkit.display import charts
from labkit.display.runs import compared, in_rounds, is_beyond_noise
from labkit.display.spread import Spread, paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, Quantity, number, shown
from labkit.predictions import Guess
from labkit.recording import plan
from labkit.source import recorded
from labkit.subjects import windows
from labkit.subjects.bounds import at_most
from labkit.subjects.unnamed import unnamed
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.idle import idle
from stepbudget.ask.predict import FIXES, bounds
from stepbudget.report import Report
from stepbudget.show.table import Table, table

STEPS = {step.script: step.label for step in course.ladder()}
LOOP = "training_s"
MADE = ("loader", "pinned_memory", "mixed_precision")  # the three fixes, in the order in which they were made
RESNET = ("train_resnet", "train_resnet_workers", "train_resnet_pinned", "train_resnet_amp")  # the same three in it
CPU_WORK = "the CPU's own work"
LEFT = {  # what part 2 treats, and the causes that it has
    "the loader": ("loader",),
    "waits for the GPU": ("synchronisation",),
    CPU_WORK: ("launch_overhead", "python", "optimizer"),
}


def ladder(runs: Mapping[str, Sequence[dict]]) -> Figure:
    """The wall-clock table as bars; ``runs``: records of each step, by its script, the baseline first."""
    return charts.ladder({STEPS[script]: own for script, own in runs.items()})


def rung_by_rung(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What each fix brought, and all of them; ``runs`` as for ``ladder``."""
    first, *_, last = runs.values()
    gains, medians = {}, {}
    for before, after in pairwise(runs):
        yield f"{STEPS[after]}: the training loop is {compared(runs[before], runs[after], LOOP)}"
        ratio = paired(runs[before], runs[after], LOOP)
        medians[STEPS[after]] = ratio.median
        gains[STEPS[after]] = ratio.median if is_beyond_noise(ratio) else 1.0
    yield f"all three: the whole process is {compared(first, last)}"
    (_, workers), *others = gains.items()
    most = max(medians, key=medians.__getitem__)
    yield Claim(
        "in the loop, the workers gained more than the other two together",
        workers > math.prod(gain for _, gain in others),
        {name: f"{gain:.2f}" if gain != 1 else "not beyond chance" for name, gain in gains.items()},
        because="two rounds hardly tell a gain from chance; with few cores, workers gain little",
        so=f"the largest median is that of {most}: {medians[most]:.2f} times (LAB_LIVE=full runs more rounds)",
    )  # fmt: skip


def scores(reports: Mapping[str, Report], runs: Mapping[str, Sequence[dict]]) -> Table:
    """Each fix scored on the rows that it treats, beside the timed loop and a program in which it pays.

    ``reports``: of each step, by its name; ``runs``: their records; both in order, the baseline first.
    """
    rows = []
    resnet = [recorded.records("runs", plan.EXAMPLE_STEPS[name]) for name in RESNET]
    for fix, (before, after), (slow, fast), elsewhere in zip(
        MADE, pairwise(reports), pairwise(runs.values()), pairwise(resnet), strict=True
    ):
        made = compare(reports[before], reports[after], fix=fix)
        first_ms = sum(made.first.ms[cause] for cause in FIXES[fix].causes)
        treated_ms = [first_ms, first_ms - made.removed_ms(fix)]
        score, step_ms = made.score(), [f"{spread(own, 'step_ms').median:.1f}" for own in elsewhere]
        share = 100 * score.share if score else None
        row = (after, *treated_ms, made.bounds[fix].at_most_ms, share, _times(paired(slow, fast, LOOP)))
        rows.append((*row, " → ".join(step_ms)))
    columns = ["its rows before ms", "its rows after ms", "gains at most ms", "% of the bound"]
    frame = pd.DataFrame(rows, columns=["fix", *columns, "training loop, timed", "a ResNet's step, timed: ms"])
    caption = "Each fix on the rows that it treats; without a profiler, on our loop and a ResNet (recorded)"
    return table(frame, caption, dict.fromkeys(columns, "{:,.0f}"))


def _times(ratio: Spread) -> str:
    return f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"


def promised(scored: pd.DataFrame) -> Iterator[Claim | str]:
    """Each fix did what it is for; ``scored``: the rows of ``scores``."""
    shrank = scored["its rows after ms"] < scored["its rows before ms"]
    yield Claim(
        "each fix shrank the rows that it treats", bool(shrank.all()), list(scored["fix"][~shrank]),
        because="each step has one profile, and the loader's wait differs between profiles",
        so="profile this step again before you judge the fix",
    )  # fmt: skip


def straw_man() -> tuple[list[dict], list[dict]]:
    """Runs of our baseline, and of PyTorch's own example, in rounds: recorded, on a day of their own."""
    return recorded.records("reference", "main_baseline.py"), recorded.records("reference", plan.REFERENCE)


def no_straw_man(own: Sequence[dict], example: Sequence[dict]) -> Iterator[Claim | str]:
    """Our baseline is about as fast as PyTorch's own example; runs of both, in rounds."""
    ratio = paired(example, own)
    yield f"PyTorch's example: {spread(example).text()}, our baseline: {spread(own).text()}."
    yield f"our baseline, against the example: {in_rounds(ratio)}"
    yield Claim(
        "our baseline runs at 0.95 times the example's speed or better", ratio.median >= 0.95, ratio.median,
        because="the example pins its batches and keeps its worker: both pay where a loader is fast",
        so=f"speedups over our baseline flatter the fixes by {1 / ratio.median:.2f} times",
    )  # fmt: skip


def still_idle(last: Report) -> Iterator[Claim | str]:
    """What the GPU of the last step still waits for: the loader first, then the CPU's own work."""
    ms, found = budget(last).ms, idle(last)
    if found.busy_ms > 0:
        yield f"with no idle time at all, an epoch would be at most {_times_busy(last):.1f} times as fast"
    left = {name: sum(ms[cause] for cause in causes) for name, causes in LEFT.items()}
    for name, own_ms in sorted(left.items(), key=lambda one: -one[1]):
        share = 100 * own_ms / max(found.idle_ms, 1e-6)
        yield f"{name}: {own_ms:.0f} ms, {share:.0f} % of the idle time"
    first = max(left, key=left.__getitem__)
    yield Claim(
        "the loader is the largest cause of the idle time that is left", first == "the loader", first,
        because="enough cores, or a slower GPU, keep a batch ready at all times",
        so=f"first on this machine: {first}, with {left[first]:.0f} ms of an epoch",
    )  # fmt: skip


median_step = windows.usual_step


def stranger() -> Report:
    """The profile of a program that the page doesn't name."""
    return unnamed("train_transformer_amp", "stranger")


# --- predictions ----------------------------------------------------------------------------------------------


@Quantity
def _times_busy(report: Report) -> float:
    found = idle(report)
    return found.window.duration_ms / found.busy_ms if found.busy_ms > 0 else math.inf


def _alone(reports: Mapping[str, Report]) -> float:
    first, *_ = reports.values()
    found = idle(first)
    return found.window.duration_ms / max(found.idle_ms, 1e-6)


def _shorter_kernels(reports: Mapping[str, Report]) -> float:
    *_, before, after = (idle(report).busy_ms for report in reports.values())
    return before / after


def _gained_most(report: Report) -> str:
    found = bounds(report, budget(report))
    return max(found, key=lambda fix: found[fix].at_most_ms)


PREDICTIONS = {
    "example_times": Guess(
        "PyTorch's own MNIST example",
        "×",
        lambda own, example, runs: paired(own, example).median,
        wrong={
            "That's what many workers gained. The example has one, like our baseline.": lambda own, example, runs: (
                paired(*list(runs.values())[:2]).median
            ),
        },
    ),
    "alone_times": Guess(
        "the baseline with a GPU that takes no time",
        "×",
        _alone,
        wrong={
            "That takes away the idle time and keeps the GPU's work. Here it's the other way round.": lambda reports: (
                _times_busy(next(iter(reports.values())))
            ),
            "That's how much shorter mixed precision made the GPU's work, not the epoch.": _shorter_kernels,
        },
    ),
    "stranger": Guess("the fix with most to gain in a stranger's program", "", _gained_most),
}


# --- exercises ------------------------------------------------------------------------------------------------


_idle_share = Quantity(lambda report: idle(report).idle_share)

IDLE_BOUND = Number(
    BOUND,
    "If the GPU never idled, the epoch would last as long as the GPU is busy now.",
    right=_times_busy,
    wrong={
        "that is the share of time the GPU works: invert it": 1 / _times_busy,
        "that is the idle share, in per cent": 100 * _idle_share,
        "that is the epoch over the idle time: use the busy time": 1 / _idle_share,
        "that is idle over busy time: the epoch includes both": _times_busy - 1,
        "that removes the loader's wait alone": at_most("loader"),
        "those are milliseconds: how many times as fast?": lambda report: idle(report).busy_ms,
    },
)


def _next_fix(report: Report) -> str:
    found = {fix: bound.at_most_ms for fix, bound in bounds(report, budget(report)).items() if fix != "loader"}
    return max(found, key=found.__getitem__)


NEXT_AFTER_LOADER = Choice(
    READ,
    "Compare what each fix gains at most.",
    right=_next_fix,
    wrong={
        "loader": "leave the loader aside: which fix comes after it?",
        "pinned_memory": "this step's copies are pinned already, and their row is short",
        "no_synchronisation": "waiting for the GPU is a short row here: compare what each fix gains at most",
        "mixed_precision": "much of its work uses Tensor Cores already: compare what each fix gains at most",
        "cuda_graph": "launches and Python are not largest here: compare what each fix gains at most",
    },
)

ROUNDS = (  # seconds before and after, and what is to be said of them
    ([10.0, 30.0, 12.0], [8.0, 20.0, 10.0], 1.25),  # one round of a busy hour
    ([10.0, 20.0, 30.0], [5.0, 10.0, 15.0], 2.0),  # ranges that overlap, ratios that agree
    ([10.0, 10.0, 10.0], [9.0, 11.0, 9.5], None),  # faster, slower, faster
    ([10.0, 10.0, 10.0], [20.0, 12.5, 16.0], 0.625),  # slower each time
    ([10.0, 9.0, 11.0], [10.0, 8.0, 9.0], None),  # one round knows no difference
    ([10.0, 9.0, 11.0], [10.0, 10.0, 12.0], None),  # nor here
    ([10.0, 10.0, 10.0, 10.0, 10.0], [8.0, 5.0, 4.0, 2.5, 2.0], 2.5),  # five rounds
    ([10.0, 10.0, 10.0, 10.0], [8.0, 5.0, 4.0, 2.5], 2.25),  # four: the mean of the two in the middle
)


def _try_gain(gain: Callable) -> str | None:
    for before_s, after_s, wanted in ROUNDS:
        given = gain(list(before_s), list(after_s))
        of = f"{before_s} s and {after_s} s"
        if wanted is None:
            if given is not None:
                return f"the rounds {of} disagree on which is faster, or have a tie: None is wanted, not {shown(given)}"
            continue
        if given is None:
            return f"the rounds {of} agree on which is faster, but it returns None"
        try:
            found = number(given)
        except NotANumber as wrong:
            return str(wrong)
        if math.isclose(found, wanted, rel_tol=1e-6):
            continue
        times = _ratios(before_s, after_s)
        for value, why in (
            (1 / wanted, "upside down: 2 means twice as fast"),
            *(
                (of(before_s) / of(after_s), f"that divides {what}: divide in each round")
                for of, what in ((statistics.median, "medians"), (statistics.fmean, "means"), (min, "best runs"))
            ),
            (statistics.fmean(times), "the mean of the ratios: one odd round skews it, take the median"),
        ):
            if math.isclose(found, value, rel_tol=1e-6):
                return f"for {of} it says {found:.3g}: {why}"
        of_four = ", and of four that is the mean of the two in the middle" if len(times) == 4 else ""
        return f"for {of} it says {found:.3g}: the median of the rounds' ratios is wanted{of_four}"
    return None


def _ratios(before_s: Sequence[float], after_s: Sequence[float]) -> list[float]:
    return [before / after for before, after in zip(before_s, after_s, strict=True)]


def _middle(before_s: Sequence[float], after_s: Sequence[float]) -> float:
    return statistics.median(_ratios(before_s, after_s))


def _agree(before_s: Sequence[float], after_s: Sequence[float]) -> bool:
    ratios = _ratios(before_s, after_s)
    return min(ratios) > 1 or max(ratios) < 1


def _claimed(middle: Callable = _middle, where: Callable = _agree) -> Callable:
    return lambda before_s, after_s: middle(before_s, after_s) if where(before_s, after_s) else None


GAIN = Code(
    "zip() pairs each round's runs; use statistics.median; rounds agree if all ratios are above 1, or all below.",
    _try_gain,
    wrong={
        "disagree on which is faster": _middle,
        "upside down": _claimed(lambda b, a: _middle(a, b)),
        "that divides medians": _claimed(lambda b, a: statistics.median(b) / statistics.median(a)),
        "that divides means": _claimed(lambda b, a: statistics.fmean(b) / statistics.fmean(a)),
        "that divides best runs": _claimed(lambda b, a: min(b) / min(a)),
        "the mean of the ratios": _claimed(lambda b, a: statistics.fmean(_ratios(b, a))),
        "agree on which is faster, but it returns None": _claimed(
            where=lambda b, a: min(b) > max(a) or max(b) < min(a)
        ),
        "s and [20.0, 12.5, 16.0] s agree on which": _claimed(where=lambda b, a: min(_ratios(b, a)) > 1),
        "is not one number": _claimed(_ratios),
    },
)

EXERCISES = {"5.1": IDLE_BOUND, "5.2": NEXT_AFTER_LOADER, "5.3": GAIN}
