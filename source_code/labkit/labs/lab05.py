"""What lab 5 claims: which of three fixes brought the factor, why the others did not show, and what is still idle.

Its exercises: an epoch without idle time, what comes after the loader, and rounds that are compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from labkit.checks import Claim
from labkit.display.charts.results import median_run
from labkit.display.runs import compared, in_rounds, is_beyond_noise
from labkit.display.spread import paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, number, shown
from labkit.subjects import accuracy
from stepbudget.ask.budget import CAUSES, Budget, budget
from stepbudget.ask.compare import compare
from stepbudget.ask.idle import idle
from stepbudget.ask.launch import launch
from stepbudget.ask.predict import bound, bounds
from stepbudget.report import Report

PARTS = {"starting up": "startup_s", "the training loop": "training_s", "the test": "test_s"}  # of a process
CPU_WORK = "the CPU's own work"
LEFT = {  # what part 2 treats, and the causes that it has
    "the loader": ("loader",),
    "waits for the GPU": ("synchronisation",),
    CPU_WORK: ("launch_overhead", "python", "optimizer"),
}


def rung_by_rung(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What each fix brought, and all of them: ``runs`` of each step, by its name, the baseline first."""
    first, *_, last = runs.values()
    yield f"Each run: {len(first[0]['epochs'])} epochs."
    for before, after in pairwise(runs):
        for part, field in {"training loop": "training_s", "whole process": "process_s"}.items():
            yield f"{after}: the {part} is {compared(runs[before], runs[after], field)}"
    yield f"all three: the whole process is {compared(first, last)}"
    first_s, last_s = (spread(own).median for own in (first, last))
    yield f"Here {first_s:.0f} s, then {last_s:.0f} s; an older course: 113 s, then 85 s (1.3 times)."


def workers_gained_most(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """Most of what the three fixes gain is the workers' gain; ``runs`` as for ``rung_by_rung``."""
    first, *_, last = runs.values()
    total = paired(first, last)
    yield Claim(
        "with all three fixes the process is at least twice as fast as the baseline", total.median > 2, total.median,
        because="few cores feed the GPU hardly faster than one does, or starting up takes longest",
        so="the bars below say what the time goes to now; lab 6 takes the loader away altogether",
    )  # fmt: skip
    gains = {}
    for before, after in pairwise(runs):
        ratio = paired(runs[before], runs[after])
        gains[after.partition(": ")[2]] = ratio.median if is_beyond_noise(ratio) else 1.0
    others, most = gains["pinned copies"] * gains["mixed precision"], max(gains, key=gains.__getitem__)
    yield Claim(
        "the workers gained more than the other two together", gains["workers"] > others,
        {name: f"{gain:.2f}" if gain != 1 else "no difference" for name, gain in gains.items()},
        because="few cores leave little to gain from workers, a slow GPU much from shorter kernels",
        so=f"what matters most here: {most if gains[most] > 1 else 'none of the three'}",
    )  # fmt: skip


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


def largest_part(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """What the first step's median run and the last one's spend most of their time on."""
    first, *_, last = runs
    for name in (first, last):
        run = median_run(runs[name])
        largest = max(PARTS, key=lambda part: run[PARTS[part]])
        share = run[PARTS[largest]] / run["process_s"]
        yield f"{name}: the largest part is {largest}, {100 * share:.0f} % of the process"


def idle_for(budgets: Mapping[str, Budget], reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """How much of its epoch each step's GPU idles, and what for; ``budgets``: of the ``reports``, in their order."""
    for name, own in budgets.items():
        cause = max(own.idle_causes, key=own.ms.__getitem__)
        share = 100 * own.idle_ms / own.window.duration_ms
        idles = f"the GPU idles for {share:.0f} % of the epoch" if round(share, 6) < 100 else "no GPU worked"
        yield f"{name}: {idles}, above all {CAUSES[cause]} ({own.ms[cause]:,.0f} ms)"
    both = zip(budgets.values(), reports.values(), strict=True)
    off_ms = [abs(sum(own.ms.values()) - report.window().duration_ms) for own, report in both]
    yield Claim("the rows of each budget add up to its epoch", max(off_ms) < 1e-3, off_ms)


def faster_kernels_more_idle(
    reports: Mapping[str, Report], runs: Mapping[str, Sequence[dict]]
) -> Iterator[Claim | str]:
    """What the last step, mixed precision, did to the GPU's own work, and what to the epoch."""
    *_, before, after = reports
    fp32, amp = (idle(reports[name]) for name in (before, after))
    loop = in_rounds(paired(runs[before], runs[after], "training_s"))
    yield Claim(
        "mixed precision makes the GPU's own work at least 1.3 times as fast", fp32.busy_ms > 1.3 * amp.busy_ms,
        [round(one.busy_ms, 1) for one in (fp32, amp)],
        because="the GPU has no Tensor Cores for FP16, or its kernels mostly move bytes",
        so=f"no more than {max(0, fp32.busy_ms - amp.busy_ms):.0f} ms an epoch can come from it",
    )  # fmt: skip
    yield Claim(
        "mixed precision leaves the GPU idle for a larger share of the epoch", amp.idle_share > fp32.idle_share,
        [round(one.idle_share, 3) for one in (fp32, amp)],
        because="a slower GPU, or a faster CPU, leaves the kernels in charge",
        so=f"what counts is the clock: the training loop is {loop}",
    )  # fmt: skip
    if fp32.busy_ms:
        yield f"the GPU works {fp32.busy_ms:.0f} ms an epoch before, {amp.busy_ms:.0f} ms after"
    yield f"the training loop: {loop}"


def predictions(reports: Mapping[str, Report], scores: pd.DataFrame) -> Iterator[Claim | str]:
    """The bounds held; ``scores``: the table of them, a row a fix, that of the workers first."""
    obstacles = [why for one, other in pairwise(reports.values()) for why in compare(one, other).obstacles]
    yield Claim(
        "the same work in each profile: GPU, steps, bytes copied", not obstacles, obstacles,
        because="a profile was made without a GPU, or with other digits",
        so="do not read the table's last two columns: the epochs are not of the same work",
    )  # fmt: skip
    past_ms = scores["the epoch shrank ms"] - scores["gains at most ms"]
    yield Claim(
        "each fix gained at most its bound, give or take a tenth of the epoch",
        bool((past_ms < 0.1 * scores["epoch before ms"]).all()),
        past_ms.round(1).tolist(),
        because="these are single profiles, and the loader's time differs from one to the next",
        so=f"beside '{scores['fix'][past_ms.idxmax()]}' something else changed: trust the timed rounds",
    )
    reached = scores["% of the bound"][0]
    yield Claim(
        "the workers gained more than half of their bound", reached > 50, reached,
        because="there are too few cores for as many workers as the GPU could empty",
        so="the loader still sets the pace: lab 6 does its work on the GPU instead",
    )  # fmt: skip


def amp_alone(baseline: Report) -> Iterator[Claim | str]:
    """What a faster GPU could gain in the baseline, where one works."""
    found = idle(baseline)
    most = found.window.duration_ms / max(found.idle_ms, 1e-6)
    alone = bound(baseline, budget(baseline), "mixed_precision")
    if found.busy_ms:
        yield f"with kernels that take no time, the baseline's epoch: {most:.2f} times as fast"
        yield Claim(
            "no GPU, however fast, can make the baseline's epoch 1.5 times as fast", most < 1.5, most,
            because="a slow GPU works for a large part of the epoch, even with one worker",
            so=f"mixed precision alone could make it {alone.at_most_times:.2f} times as fast, at most",
        )  # fmt: skip


def accuracy_kept(baseline: Sequence[float], amp: Sequence[float]) -> Iterator[Claim | str]:
    """Mixed precision passes the gate: test accuracies of both, one a seed."""
    yield accuracy.keeps("mixed precision", baseline, amp)


def launches(last: Report) -> Iterator[Claim | str]:
    """Is the last step launch-bound?"""
    found = launch(last)
    if found.launches:
        empty = f"{100 * found.starved_share:.0f} % of {found.launches:,} launches"
        yield f"in mixed precision {empty} found the GPU with nothing to do: {found.verdict}"
    else:
        yield "no GPU worked: read this lab with LAB_MODE=recorded"


def still_idle(last: Report) -> Iterator[Claim | str]:
    """What the GPU of the last step still waits for: the loader first, then the CPU's own work."""
    ms, found = budget(last).ms, idle(last)
    if found.busy_ms:
        times = found.window.duration_ms / found.busy_ms
        yield f"with no idle time at all, an epoch would be at most {times:.1f} times as fast"
    left = {name: sum(ms[cause] for cause in causes) for name, causes in LEFT.items()}
    for name, own_ms in sorted(left.items(), key=lambda one: -one[1]):
        share = 100 * own_ms / max(found.idle_ms, 1e-6)
        yield f"{name}: {own_ms:.0f} ms, {share:.0f} % of the idle time"
    first, launches_ms = max(left, key=left.__getitem__), left[CPU_WORK]
    yield Claim(
        "the loader is the largest cause of the idle time that is left", first == "the loader", first,
        because="enough cores, or a slower GPU, keep a batch ready at all times",
        so=f"first on this machine: {first}, with {left[first]:.0f} ms of an epoch",
    )  # fmt: skip
    yield Claim(
        "the CPU's own work is more than 5 % of the idle time that is left", launches_ms > 0.05 * found.idle_ms,
        launches_ms,
        because="launches hide behind long kernels, or a starved GPU waits far longer for data",
        so=f"fewer launches can gain {launches_ms:.0f} ms of an epoch at most: lab 7 can wait",
    )  # fmt: skip


# --- exercises ------------------------------------------------------------------------------------------------


def _times_busy(report: Report) -> float:
    found = idle(report)
    return found.window.duration_ms / found.busy_ms if found.busy_ms else math.inf


IDLE_BOUND = Number(
    BOUND,
    "If the GPU never idled, the epoch would last as long as the GPU is busy now.",
    right=_times_busy,
    wrong={
        "that is the share for which the GPU works: turn it over": lambda report: 1 / _times_busy(report),
        "that is the share for which it idles, in per cent": lambda report: 100 * idle(report).idle_share,
        "that is the epoch over the idle time: the work is what is left": lambda report: 1 / idle(report).idle_share,
        "that is idle time over work: the epoch holds the work, too": lambda report: _times_busy(report) - 1,
        "that takes away the loader's wait alone": lambda r: bounds(r, budget(r))["loader"].at_most_times,
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
        "loader": "the loader is left aside here: which comes after it?",
        "pinned_memory": "the copies of this step are pinned already, and its row of copies is short",
        "no_synchronisation": "waiting for the GPU is a short row here: compare what each fix gains at most",
        "mixed_precision": "much of its work uses Tensor Cores already: compare what each fix gains at most",
        "cuda_graph": "launches and Python are not what is largest here: compare what each fix gains at most",
    },
)

ROUNDS = (  # seconds before and after, and what is to be said of them
    ([10.0, 12.0, 30.0], [8.0, 10.0, 20.0], 1.25),  # one round of a busy hour
    ([10.0, 20.0, 30.0], [5.0, 10.0, 15.0], 2.0),  # ranges that overlap, ratios that agree
    ([10.0, 10.0, 10.0], [9.0, 11.0, 9.5], None),  # faster, slower, faster
    ([10.0, 10.0, 10.0], [12.5, 20.0, 16.0], 0.625),  # slower each time
    ([10.0, 9.0, 11.0], [10.0, 8.0, 9.0], None),  # one round knows no difference
    ([10.0, 10.0, 10.0, 10.0, 10.0], [8.0, 5.0, 4.0, 2.5, 2.0], 2.5),  # five rounds
)


def _try_gain(gain: Callable) -> str | None:
    for before_s, after_s, wanted in ROUNDS:
        given = gain(list(before_s), list(after_s))
        of = f"{before_s} s and {after_s} s"
        if wanted is None:
            if given is not None:
                return f"the rounds {of} do not agree which is the faster: None is wanted, not {shown(given)}"
            continue
        if given is None:
            return f"the rounds {of} agree which is the faster, and it claims nothing"
        try:
            found = number(given)
        except NotANumber as wrong:
            return str(wrong)
        if math.isclose(found, wanted, rel_tol=1e-6):
            continue
        times = [one / other for one, other in zip(before_s, after_s, strict=True)]
        for value, why in (
            (1 / wanted, "upside down: 2 means twice as fast"),
            (
                statistics.median(before_s) / statistics.median(after_s),
                "these are medians divided: divide in each round",
            ),
            (statistics.fmean(before_s) / statistics.fmean(after_s), "these are means divided: divide in each round"),
            (min(before_s) / min(after_s), "these are the best runs divided: divide in each round"),
            (statistics.fmean(times), "the mean of the rounds: one odd round draws it away, take the median"),
        ):
            if math.isclose(found, value, rel_tol=1e-6):
                return f"for {of} it says {found:.3g}: {why}"
        return f"for {of} it says {found:.3g}: the median of the rounds' ratios is wanted"
    return None


def _ratios(before_s: Sequence[float], after_s: Sequence[float]) -> list[float]:
    return [before / after for before, after in zip(before_s, after_s, strict=True)]


def _agreed(middle: Callable) -> Callable:
    def gain(before_s, after_s):
        ratios = _ratios(before_s, after_s)
        agree = min(ratios) > 1 or max(ratios) < 1
        return middle(before_s, after_s) if agree else None

    return gain


def _only_if_faster(before_s, after_s):
    ratios = _ratios(before_s, after_s)
    return statistics.median(ratios) if min(ratios) > 1 else None


def _only_if_ranges_part(before_s, after_s):
    apart = min(before_s) > max(after_s) or max(before_s) < min(after_s)
    return statistics.median(_ratios(before_s, after_s)) if apart else None


GAIN = Code(
    "zip() gives the two runs of a round; statistics.median is there; all ratios above 1, or all below it, agree.",
    _try_gain,
    wrong={
        "do not agree which is the faster": lambda b, a: statistics.median(_ratios(b, a)),
        "upside down": _agreed(lambda b, a: statistics.median(_ratios(a, b))),
        "these are medians divided": _agreed(lambda b, a: statistics.median(b) / statistics.median(a)),
        "these are means divided": _agreed(lambda b, a: statistics.fmean(b) / statistics.fmean(a)),
        "these are the best runs divided": _agreed(lambda b, a: min(b) / min(a)),
        "the mean of the rounds": _agreed(lambda b, a: statistics.fmean(_ratios(b, a))),
        "agree which is the faster, and it claims nothing": _only_if_ranges_part,
        "s and [12.5, 20.0, 16.0] s agree which": _only_if_faster,
        "is not one number": _agreed(_ratios),
    },
)

EXERCISES = {"5.1": IDLE_BOUND, "5.2": NEXT_AFTER_LOADER, "5.3": GAIN}
