"""What lab 8 claims: a compiler makes fewer and shorter kernels of an epoch, and pays for itself after many epochs.

Its exercises: when a compiler has paid for itself, a layer that moves less memory, and the lowest line.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit import course
from labkit.checks import Claim, Note
from labkit.display import style
from labkit.display.charts.results import median_run
from labkit.display.runs import epoch_ms
from labkit.display.spread import paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.predictions import Guess
from labkit.pretend.watched import operations
from labkit.subjects import accuracy, bounds
from labkit.subjects.ladder import WallClock, epoch_times
from stepbudget.ask.budget import Budget, budget
from stepbudget.ask.idle import idle
from stepbudget.ask.tensor_cores import verdicts
from stepbudget.kernel_names import NO, is_product
from stepbudget.report import Report
from stepbudget.show.table import Table, table

BEST = ("the compiler's", "LeanNet")  # whose kernels, which network


def others_take_most(before: Budget) -> Iterator[Claim | str]:
    """Most of the GPU's time goes to kernels without Tensor Cores; ``before``: of the epoch that is one launch."""
    others_ms = _others_ms(before)
    of_ms, work_ms = before.window.duration_ms, before.ms["tensor_core_kernels"] + others_ms
    yield Claim(
        "kernels without Tensor Cores, or unknown, take more than half of the GPU's time",
        others_ms > work_ms / 2, others_ms,
        because="the products take longer on this GPU's Tensor Cores, or no GPU worked",
        so=f"others take {others_ms:.0f} of {work_ms:.0f} ms of kernels: that is all there is to fuse",
    )  # fmt: skip
    if before.ms["tensor_core_kernels"]:  # else products are among the others, and no compiler fuses these away
        yield (
            f"They take {others_ms:.0f} of {of_ms:.0f} ms. If all of them vanished, an epoch "
            f"would be {of_ms / (of_ms - others_ms):.1f} times as fast."
        )


def fewer_and_shorter(sizes: Table) -> Iterator[Claim | str]:
    """Compiled, an epoch has fewer kernels and shorter ones; ``sizes``: a row before the compiler, a row with it."""
    own = sizes.frame.set_index("step")
    shrunk = own.iloc[1] / own.iloc[0]
    differs = {
        "because": "another compiler version fuses otherwise, or has no Triton for this GPU",
        "so": f"an epoch keeps {100 * shrunk['kernels']:.0f} % of its kernels and "
        f"{100 * shrunk['GPU ms']:.0f} % of their time",
    }
    yield Claim(
        "compiled, an epoch has fewer than three quarters of the kernels",
        shrunk["kernels"] < 0.75, shrunk["kernels"], **differs,
    )  # fmt: skip
    yield Claim("and they take less than two thirds of the time", shrunk["GPU ms"] < 2 / 3, shrunk["GPU ms"], **differs)


def shortest_epoch(ways: Table) -> Iterator[Claim | str]:
    """Of all ways to make an epoch of whole batches, which is the shortest, and what a graph brings it."""
    found = ways.frame
    full = found[found["digits a step"] == found["digits a step"].max()].set_index(["kernels", "network"])
    best = full["graph"].idxmin()
    yield Claim(
        "the shortest epoch has the compiler, LeanNet and a graph", best == BEST, best,
        because="another version of the compiler, or none for this GPU, makes other kernels",
        so=f"here {best[1]} with {best[0]} kernels is the one to take",
    )  # fmt: skip
    plain, lean = (full["times as fast"][one] for one in (("PyTorch's", "Net"), best))
    yield (
        f"With PyTorch's kernels a graph makes an epoch {plain:.2f} times as fast, "
        f"with those of the shortest epoch {lean:.2f} times."
    )


def fastest_loop(runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """The compiled epoch against the graph's, and whose process is the longest; ``runs``: of opt4, opt5, opt6."""
    _, graph, compiled = runs.values()
    epochs = ", ".join(f"{name} {epoch_ms(own):.0f} ms" for name, own in runs.items())
    yield f"A training epoch without the profiler: {epochs}."
    faster = epoch_times(graph, compiled)
    yield Claim(
        "opt6's epoch is at least twice as fast as opt5's", faster.median > 2, faster.median,
        because="another version of the compiler, or none for this GPU, makes other kernels",
        so=f"the compiler's kernels are worth {faster.median:.2f} times here",
    )  # fmt: skip
    loops_s, processes_s = (
        {name: spread(own, field).median for name, own in runs.items()} for field in ("training_s", "process_s")
    )
    quickest, slowest = min(loops_s, key=loops_s.__getitem__), max(processes_s, key=processes_s.__getitem__)
    yield f"The shortest training loop: {quickest}. The longest process of the three: {slowest}."


def imports_take_longest(own_s: Mapping[str, float]) -> Iterator[Claim]:
    """A start is modules more than anything else; ``own_s``: seconds of each stage of it, by its name."""
    extra_s = own_s["an optimizer is made"] + own_s["torch.compile is imported"]
    torch_s, device_s = own_s["PyTorch is imported"], own_s["the device starts"]
    digits_s = own_s["the digits are read and sent"]
    yield Claim(
        "importing PyTorch takes longer than starting the GPU", torch_s > device_s, torch_s,
        because="the driver sleeps between processes (no persistence mode), or wakes many GPUs",
        so=f"of a start, {device_s:.1f} s are the GPU's: keep the driver awake (nvidia-smi -pm 1)",
    )  # fmt: skip
    yield Claim(
        "the compiler's modules take longer than reading all the digits", extra_s > digits_s, extra_s,
        because="the disk is slow, or the file system is on the network",
        so=f"your digits take {digits_s:.1f} s: copy them to a local disk first",
    )  # fmt: skip


def investment(costs: Mapping[str, Cost], runs: Mapping[str, Sequence[dict]]) -> Iterator[Claim | str]:
    """Compiling costs seconds first and saves some in each epoch; whose process is the shortest, and what an end costs.

    ``costs``: opt4, opt5, opt6, and opt6 cold if run; ``runs``: their records.
    """
    first, _, compiled, *cold = costs.values()
    warm_epochs, cold_epochs = (epochs_until_even(first, own) for own in (compiled, [compiled, *cold][-1]))
    differs = {
        "because": "nothing is compiled here, the compiler saves little on a slow GPU, or no cold run was recorded",
        "so": f"compiling has caught up with opt4 {in_words(warm_epochs)} here",
    }
    dearer_s = compiled.fixed_s - first.fixed_s
    yield Claim(
        "the compiled process costs over a second more beside its epochs", dearer_s > 1, dearer_s, **differs
    )  # fmt: skip
    yield Claim(
        "and less for each of them", compiled.epoch_s < first.epoch_s, compiled.epoch_s / first.epoch_s, **differs
    )
    yield Claim(
        "with a cold cache it catches up with opt4 after a fifth more epochs, or later",
        cold_epochs > 1.2 * warm_epochs, cold_epochs, **differs,
    )  # fmt: skip
    for epochs in (10, 100):
        seconds = {name: line.seconds(epochs) for name, line in costs.items()}
        shortest = min(seconds, key=seconds.__getitem__)
        others = ", ".join(f"{name} {own_s:.1f} s" for name, own_s in seconds.items() if name != shortest)
        yield f"{epochs} epochs: the shortest process is {shortest}, {seconds[shortest]:.1f} s; {others}."
    first_runs, _, compiled_runs, *_ = runs.values()
    end_more_s = end_s(compiled_runs) - end_s(first_runs)
    ends_alike = Cost(compiled.fixed_s - end_more_s, compiled.epoch_s)
    without, now = (in_words(epochs_until_even(first, own)) for own in (ends_alike, compiled))
    sooner = f": without them opt6 catches up {without}, not {now}" if without != now else ""
    if end_more_s > 0.1:
        yield f"{end_more_s:.1f} s of the {dearer_s:.1f} s are a longer end, not compilation{sooner}."
    else:
        yield f"opt6 ends {-end_more_s:.1f} s sooner." if end_more_s < -0.1 else "Both take about as long to end."


def accuracy_kept(baseline: Sequence[float], compiled: Sequence[float]) -> Iterator[Claim | str]:
    """The compiled step passes the gate: test accuracies of both, one a seed."""
    yield accuracy.passes("opt6", baseline, compiled)


def products_stay(stranger: Report) -> Iterator[str]:
    """What of a program's kernels a compiler could fuse, and what it leaves alone."""
    own = budget(stranger)
    yield (
        f"Without Tensor Cores, or unknown: {_others_ms(own):.0f} of {own.window.duration_ms:.0f} ms. Not products: "
        f"{_fusable_ms(stranger):.0f} ms of them."
    )


def hardly_idle(last: Report, timed: Sequence[dict]) -> Iterator[Claim | str]:
    """Idleness is no longer worth a fix; ``timed``: runs of the same step without the profiler."""
    busy, profiled_ms = 1 - idle(last).idle_share, last.window().duration_ms
    yield Note(f"opt6: the GPU works for {100 * busy:.0f} % of an epoch of {profiled_ms:.0f} ms.")
    yield Claim(
        "no fix against idleness can make this epoch 1.3 times as fast", busy > 1 / 1.3, busy,
        because="the kernels are so short that tracing each of them leaves gaps",
        so=f"{100 * (1 - busy):.0f} % of the profiled epoch are gaps; without the profiler it "
        f"takes {epoch_ms(timed):.0f} ms",
    )  # fmt: skip


# --- predictions ----------------------------------------------------------------------------------------------


@Quantity
def _fusable_ms(report: Report) -> float:
    """What kernels take that use no Tensor Cores and are no products: a compiler leaves products to the library."""
    kernels = verdicts(report, report.window())
    others = kernels[kernels["tensor_core"] == NO]
    return float(others.loc[~others["kernel"].map(is_product).astype(bool), "gpu_ms"].sum())


OTHERS = ("other_kernels", "unknown_kernels")  # the budget's rows of kernels without Tensor Cores


def _others_ms(before: Budget) -> float:
    return sum(before.ms[row] for row in OTHERS)


def _opt4_and_compiled(costs: Mapping[str, Cost]) -> tuple[Cost, Cost]:
    first, _, compiled, *_ = costs.values()
    return first, compiled


def _epoch_s(which: int) -> Quantity:
    return Quantity(lambda costs: _opt4_and_compiled(costs)[which].epoch_s)


@Quantity
def _dearer_s(costs: Mapping[str, Cost]) -> float:
    first, compiled = _opt4_and_compiled(costs)
    return compiled.fixed_s - first.fixed_s


PREDICTIONS = {
    "times": Guess(
        "an epoch, compiled",
        " times",
        lambda _, graph, compiled: epoch_times(graph, compiled).median,
        wrong={
            "That's the epoch over the time that goes: divide by what is left.": lambda before, *_: (
                before.window.duration_ms / _others_ms(before)
            ),
            "That's the whole process, with the compiler's own seconds in it.": lambda _, graph, compiled: (
                paired(graph, compiled).median
            ),
        },
    ),
    "epochs": Guess(
        "epochs until compiling has paid off",
        " epochs",
        lambda costs: epochs_until_even(*_opt4_and_compiled(costs)),
        wrong={
            "That's the extra seconds over a whole epoch of opt4: divide by what an epoch saves.": (
                _dearer_s / _epoch_s(0)
            ),
            "Those are the seconds it starts behind: how many epochs make up for them?": _dearer_s,
            "That's the extra seconds over a compiled epoch: divide by what an epoch saves.": _dearer_s / _epoch_s(1),
        },
    ),
    "stranger": Guess(
        "a stranger's transformer, fused",
        " times",
        bounds.without(_fusable_ms),
        wrong={
            "That fuses the FP32 matrix products as well, but a compiler leaves products to the library.": (
                bounds.without(bounds.row_ms(*OTHERS))
            ),
            "That's what mixed precision could gain: it treats the products, and fusion doesn't.": (
                bounds.at_most("mixed_precision")
            ),
        },
    ),
}


# --- its readings, tables and chart ---------------------------------------------------------------------------


def kernel_sizes(reports: Mapping[str, Report]) -> Table:
    """How many kernels has a training epoch, how long is one, and how long are all of them? A row a report."""
    rows = []
    for name, report in reports.items():
        window, kernels = report.window(), report.kernels
        own = kernels[kernels["start"].between(window.start, window.end)]
        took_ms = (own["end"] - own["start"]) / 1e6
        rows.append((name, len(own), 1e3 * took_ms.mean(), took_ms.sum()))
    found = pd.DataFrame(rows, columns=["step", "kernels", "mean µs", "GPU ms"])
    measured = ["mean µs", "GPU ms"]
    return table(found, "Kernels of one training epoch", dict.fromkeys(measured, "{:,.1f}"))


SMALL = 8.5  # points
LOOKS = [
    (style.MUTED, "-"),
    (style.BLUE, "-"),
    (style.GREEN, "-"),
    (style.GREEN, "--"),
    (style.PINK, "-"),
    (style.ORANGE, "-"),
]
# fmt: off
WORDS = {
    "textcoords": "offset points", "ha": "left", "va": "top", "size": SMALL, "color": style.INK,
    "bbox": {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8},
}
# fmt: on


@dataclass(frozen=True)
class Cost:
    """A whole process as a straight line: seconds that it takes anyway, and seconds for each epoch (training, test)."""

    fixed_s: float
    epoch_s: float

    def seconds(self, epochs: float) -> float:
        """How long a process of so many epochs takes."""
        return self.fixed_s + epochs * self.epoch_s


def cost(records: Sequence[dict]) -> Cost:
    """The line through a step's whole-process runs: medians over its runs.

    An epoch is an epoch after the first; what the first takes longer is part of what the process takes anyway, and
    so are start-up, warm-up and the end of the process.
    """
    lines = []
    for record in records:
        epoch_s = statistics.median(epoch["training_s"] + epoch["test_s"] for epoch in record["epochs"][1:])
        lines.append((record["process_s"] - len(record["epochs"]) * epoch_s, epoch_s))
    return Cost(*map(statistics.median, zip(*lines, strict=True)))


def epochs_until_even(slow: Cost, fast: Cost) -> float:
    """After how many epochs a process of ``fast`` has caught up with one of ``slow``: 0 at once, infinity never."""
    ahead_s, gains_s = fast.fixed_s - slow.fixed_s, slow.epoch_s - fast.epoch_s
    if ahead_s <= 0:
        return 0.0 if gains_s >= 0 else inf
    return ahead_s / gains_s if gains_s > 0 else inf


def in_words(epochs: float) -> str:
    """What ``epochs_until_even`` found, for a sentence: ``at once``, ``after 60 epochs``, ``never``."""
    return "at once" if epochs == 0 else "never" if epochs == inf else f"after {epochs:.0f} epochs"


def end_s(records: Sequence[dict]) -> float:
    """Seconds from the last line of a script to the end of its process: the median over its runs."""
    return statistics.median(record["process_s"] - record["wall_s"] for record in records)


def own_s(stages: Table) -> dict[str, float]:
    """What each stage of a start takes by itself, of ``ledger.startup``'s table: seconds by its name."""
    return stages.frame.set_index("one thing more")["takes s"].to_dict()


def ends_table(runs: Mapping[str, Sequence[dict]]) -> Table:
    """Seconds of whole processes before the first epoch and after the last, a row a step: of its median run."""
    rows = []
    for name, records in runs.items():
        run = median_run(records)
        rows.append((name, run["startup_s"], run["extras"].get("warm_up_s", 0.0), end_s([run]), run["process_s"]))
    columns = ["step", "start-up s", "warm-up s", "end s", "process s"]
    caption = "Before the first epoch and after the last (the median run; the rest are the epochs)"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:], "{:.1f}"))


def lines_table(costs: Mapping[str, Cost]) -> Table:
    """Each step as a line, and after how many epochs it has caught up with the first."""
    name, first = next(iter(costs.items()))
    crossings = {other: epochs_until_even(first, own) for other, own in costs.items()} | {name: None}
    rows = [(other, own.fixed_s, 1e3 * own.epoch_s, crossings[other]) for other, own in costs.items()]
    caught_up = f"caught up with {name.partition(':')[0]} after epochs"
    columns = ["step", "fixed s", "ms an epoch, with its test", caught_up]
    formats = {"fixed s": "{:.1f}"} | dict.fromkeys(columns[2:], "{:.0f}")
    return table(pd.DataFrame(rows, columns=columns), "Each step as a line", formats)


def rungs(clock: WallClock) -> dict[str, Sequence[dict]]:
    """The runs of a wall clock but for its baseline's, by what each step is called here: ``opt6: compiled``."""
    _, *steps = clock.runs
    return {f"opt{course.step(command).label}": clock.runs[command] for command in steps}


def lines_chart(costs: Mapping[str, Cost], ran: int = 10) -> Figure:
    """Seconds of a whole process against its epochs; the runs themselves had ``ran``.

    A dot marks where a line falls below that of the first step, if it was above; the epochs go on past the last of
    them. At most six steps.
    """
    if len(costs) > len(LOOKS):
        raise ValueError(f"{len(costs)} steps, and {len(LOOKS)} looks")
    first = next(iter(costs.values()))
    latest = max(filter(isfinite, (epochs_until_even(first, own) for own in costs.values())))
    most_epochs = max(MANY_EPOCHS + 50, 50 * ceil((1.3 * latest + 10) / 50))
    epochs = np.array([0, most_epochs])
    with style.house_style():
        fig = style.figure(3.9)
        ax = fig.subplots()
        for (name, own), (colour, line) in zip(costs.items(), LOOKS, strict=False):
            ax.plot(epochs, own.seconds(epochs), line, color=colour, lw=1.8, label=name)
            crossing = epochs_until_even(first, own)
            if 0 < crossing <= most_epochs:
                ax.plot([crossing], [own.seconds(crossing)], "o", ms=6, mfc=style.PAPER, mec=colour, mew=1.6)
                at_left = crossing < most_epochs / 10  # no room beside the axis: write it to the right
                note = {"ha": "left", "va": "top"} if at_left else {"ha": "right", "va": "bottom"}
                place = (7, -3) if at_left else (-6, 4)
                ax.annotate(f"{crossing:.0f} epochs", (crossing, own.seconds(crossing)), place, **WORDS | note)
        ax.axvline(ran, color=style.MUTED, lw=1, ls=":")
        ax.annotate(f"our {ran} epochs", (ran, 1), (4, -2), xycoords=("data", "axes fraction"), **WORDS)
        highest = max(own.seconds(most_epochs) for own in costs.values())
        ax.set(xlim=(0, most_epochs), ylim=(0, 1.05 * highest), xlabel="epochs", ylabel="seconds")
        ax.grid(axis="y")
        ax.set_title("Whole process, by number of epochs (a line: medians of a step's runs)")
        ax.legend(fontsize=SMALL, loc="lower right", handlelength=2.6)
    return fig


# --- exercises ------------------------------------------------------------------------------------------------


def _lines(runs: Sequence[dict], cold: dict | None) -> tuple[Cost, Cost]:
    if cold is None:
        raise NothingToAnswer("there is no run with a cold cache here")
    return cost(runs), cost([cold])


@Quantity
def _ahead_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return compiled.fixed_s - plain.fixed_s


@Quantity
def _gained_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return plain.epoch_s - compiled.epoch_s


COLD_BREAK_EVEN = Number(
    BOUND,
    "What it takes longer before and beside the epochs, over what it saves in each.",
    right=lambda runs, cold: epochs_until_even(*_lines(runs, cold)),
    wrong={
        "the whole processes differ by their epochs, too: compare what they cost without any": (
            _ahead_s / _gained_s - Quantity(lambda runs, _: len(runs[0]["epochs"]))
        ),
        "that is over what a compiled epoch takes, not over what it saves": (
            _ahead_s / Quantity(lambda _, cold: cost([cold]).epoch_s)
        ),
        "that is over what an epoch took before, not over what it saves": (
            _ahead_s / Quantity(lambda runs, _: cost(runs).epoch_s)
        ),
        "those are the seconds that it begins later: how many epochs make up for them?": _ahead_s,
    },
    within=0.03,  # whole epochs are an answer too
)

SIZES = ((3, 4, 12), (2, 3, 8))  # images, channels, pixels a side


def _written(work: Callable[[], object]) -> tuple[object, dict[str, int]]:
    """What ``work`` returns, and how many floating-point numbers each operation wrote (a view: none)."""
    from torch.utils._pytree import tree_leaves

    result, seen = operations(work)
    written: dict[str, int] = {}
    for func, _, made in seen:
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith("empty"):
            tensors = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
            numbers = max([0, *(one.numel() for one in tensors if one.is_floating_point())])
            written[name] = written.get(name, 0) + numbers
    return result, written


def _try_layer_end(layer_end: Callable) -> str | None:
    return next(filter(None, (_layer_end_trouble(layer_end, *sizes) for sizes in SIZES)), None)


def _layer_end_trouble(layer_end: Callable, images: int, channels: int, side: int) -> str | None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, side, side, generator=generator)
    scale = torch.rand(channels, 1, 1, generator=generator) + 0.5
    shift = torch.randn(channels, 1, 1, generator=generator)
    given, right = x.clone(), torch.nn.functional.max_pool2d(torch.nn.functional.relu(x * scale + shift), 2)
    made, written = _written(lambda: layer_end(x, scale, shift))
    if not torch.equal(x, given):
        return "it changes x itself: whoever needs x for the gradients finds another"
    if not isinstance(made, torch.Tensor) or made.shape != right.shape:
        return f"for this x the result is a tensor of the shape {tuple(right.shape)}"
    if not torch.allclose(made, right, atol=1e-6):
        return "other results: the same operations are wanted, each of them, in another order"
    for name, numbers in written.items():
        if numbers >= x.numel():
            return f"the results are right, but `{name}` writes {numbers:,} numbers, all that x has: pool before it"
    return None


def _pooled(x, stride: int = 2):
    return torch.nn.functional.max_pool2d(x, 2, stride)


LAYER_END = Code(
    "The largest of four stays the largest when all are scaled by a positive number, shifted, and cut off at zero.",
    _try_layer_end,
    wrong={
        "`mul` writes 1,728 numbers, all that x has": lambda x, scale, shift: _pooled((x * scale + shift).relu()),
        "but `mul` writes": lambda x, scale, shift: _pooled(x * scale + shift).relu(),
        "but `add` writes": lambda x, scale, shift: (_pooled(x + shift / scale) * scale).relu(),
        "other results": lambda x, scale, shift: _pooled(x.relu()) * scale + shift,
        "each of them": lambda x, scale, shift: (_pooled(x) * scale).relu(),
        "in another order": lambda x, a, b: (torch.nn.functional.avg_pool2d(x, 2) * a + b).relu(),
        "of the shape (3, 4, 6, 6)": lambda x, scale, shift: (_pooled(x, 1) * scale + shift).relu(),
        "it changes x itself": lambda x, scale, shift: _pooled(x.mul_(scale).add_(shift).relu_()),
    },
)

MANY_EPOCHS = 200


def _lowest(costs: Mapping[str, Cost]) -> str:
    return min(costs, key=lambda name: costs[name].fixed_s + MANY_EPOCHS * costs[name].epoch_s)


LOWEST_LINE = Choice(
    READ,
    f"Go up from {MANY_EPOCHS} on the lower axis: which line do you meet first?",
    right=_lowest,
    wrong={
        "opt4: data on the GPU": "it begins low and rises the most: at 200 epochs another line lies below it",
        "opt5: one launch": "it begins low, and pays for each epoch: at 200 another line lies below it",
        "opt6: compiled": "its epochs are short, and its start is not paid for yet at 200",
        "opt6, cache cold": "its start is not paid for yet at 200: another line still lies below it",
    },
)

EXERCISES = {"8.1": COLD_BREAK_EVEN, "8.2": LAYER_END, "8.3": LOWEST_LINE}
