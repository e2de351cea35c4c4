"""What lab 3 claims: pinned copies are fast and free the program, and a run gains no more than their bound.

Its exercises: what overlap hides, copies that nobody waits for, a bar that is read off, and a report in which pinning
gains nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from labkit import course
from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import SMALL, THICK, bar, beside
from labkit.display.runs import compared
from labkit.display.spread import paired, spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import Quantity
from labkit.paths import RECORDED
from labkit.predictions import Guess
from labkit.pretend.loader import PretendLoader
from labkit.recording import plan
from labkit.source import recorded
from labkit.subjects import bounds, windows
from labkit.subjects.bounds import row_ms
from labkit.subjects.unnamed import unnamed
from stepbudget.ask.compare import compare
from stepbudget.ask.copies import copies
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table


def by_the_clock(before: Report, plain: Sequence[dict], pinned: Sequence[dict]) -> Iterator[Claim | str]:
    """Whole runs without pinned copies and with them: what the profile's bound allows, and what the rounds say."""
    run_s, bound_s = spread(plain), _bound_s(before, plain)
    apart_s = max(one.high - one.low for one in (run_s, spread(pinned)))
    noise = f"; runs of the same script differ by up to {apart_s:.1f} s" if apart_s else ""
    yield f"The bound, for a whole run with its tests: at most {bound_s:.1f} of {run_s.median:.1f} s{noise}."
    yield f"With pinning the training loop is {compared(plain, pinned, 'training_s')}."
    yield f"The whole run is {compared(plain, pinned)}."


def copies_are_pinned(before: Report, after: Report) -> Iterator[Claim | str]:
    """Batches come from pinned memory, hardly hold the program, and are copied faster."""
    was, now = _to_the_gpu(before), _to_the_gpu(after)
    held_ms, held_now_ms = was["api_ms"].sum(), now["api_ms"].sum()
    yield Claim("no batch is copied from pageable memory", "pageable" not in set(now["host_memory"]))
    yield Claim(
        "the copies hold the program for less than a fifth as long as before", held_now_ms < held_ms / 5,
        f"{held_ms:.1f} ms before, {held_now_ms:.1f} ms after",
        because="the GPU reads pageable memory by itself (GH200), or there is none to copy to",
        so=f"they held it for {held_ms:.0f} ms of an epoch, and hold it for {held_now_ms:.0f} now",
    )  # fmt: skip
    if was.empty or now.empty:
        yield "No copies to a GPU to compare: the CPU trains."
        return
    faster = (now["mb"].sum() / now["gpu_ms"].sum()) / (was["mb"].sum() / was["gpu_ms"].sum())
    yield Claim(
        "the copies have at least twice the bandwidth", faster > 2, faster,
        because="a narrow link is as slow as the extra copy was, and shared memory needed none",
        so=f"the copies themselves take {now['gpu_ms'].sum():.0f} of {was['gpu_ms'].sum():.0f} ms",
    )  # fmt: skip


def loader_varies(
    before: Report, after: Report, timed_before: Sequence[dict], timed_after: Sequence[dict]
) -> Iterator[Claim | str]:
    """What the epoch gained outside the loader's row, and how much epochs differ; ``timed_…``: without the profiler."""
    made = compare(before, after)
    others_ms, bound_ms = made.gained_ms - made.shrank_ms["loader"], made.bounds["pinned_memory"].at_most_ms
    yield f"All rows but the loader's: {-others_ms:+.1f} ms. The bound was {-bound_ms:.1f} ms."
    was, now = (_second_epochs_ms(records) for records in (timed_before, timed_after))
    yield f"Second epochs, no profiler: {was} ms with pageable copies, {now} ms with pinned ones."


def cost_of_pinning(rows: Sequence[dict]) -> Iterator[Claim | str]:
    """What it takes to pin a new buffer, beside copying it from pageable memory; ``rows``: of ``medians``."""
    large = {(row["memory"], row["non_blocking"]): row for row in rows if row["size_mb"] == LARGE_MB}
    pin_ms, slow_ms = large["pinned", False]["first_pin_ms"], large["pageable", False]["done_us"] / 1e3
    yield (
        f"Pinning a new {LARGE_MB:g} MB buffer takes {pin_ms / slow_ms:.1f} times as long as the slow copy: "
        f"{pin_ms:.0f} ms with the CPU's copy, against {slow_ms:.0f} ms."
    )


def pinning_pays(case: Case) -> Iterator[Claim | str]:
    """In the ResNet, what of the bound came true, step by step and in the whole process."""
    was, now = _to_the_gpu(case.before), _to_the_gpu(case.after)
    yield (
        f"{was['mb'].sum():.0f} MB in {STEPS_PROFILED} steps: at {was['gb_per_s'].iloc[0]:.1f} GB/s before, "
        f"at {now['gb_per_s'].iloc[0]:.1f} GB/s after."
    )
    made = compare(case.before, case.after, fix="pinned_memory")
    score = made.score()
    beside = max(score.beside, key=score.beside.__getitem__)
    yield f"{score}. Beside these, '{made.before.label(beside)}' shrank most: {-score.beside[beside]:+.1f} ms."
    times = paired(case.slow, case.fast, "step_ms")
    yield Claim("a step is faster in each round", times.low > 1, times.low)
    yield Claim("and in no round by more than the bound allows", times.high <= _at_most_times(case.before), times.high)
    more_s = spread(case.fast).median - spread(case.slow).median
    steps = 1e3 * more_s / (spread(case.slow, "step_ms").median - spread(case.fast, "step_ms").median)
    yield f"The whole process, start included, takes {more_s:.1f} s longer; {steps:.0f} more steps pay that back."


# --- a program in which it pays -------------------------------------------------------------------------------

STEPS_PROFILED = 10


@dataclass(frozen=True)
class Case:
    """A program before and after pinning: its reports, and its timed runs, one a round."""

    before: Report
    after: Report
    slow: Sequence[dict]
    fast: Sequence[dict]


def resnet() -> Case:
    """The ResNet of lab 25 with enough workers, and then pinned: a case of the default machine, wherever it is read."""
    names = "train_resnet_workers", "train_resnet_pinned"
    where = RECORDED / course.DEFAULT_MACHINE
    timed = (recorded.records("runs", plan.EXAMPLE_STEPS[name], where) for name in names)
    return Case(*(unnamed(name, name) for name in names), *timed)


def timed_steps(case: Case) -> Table:
    """A row a side: its step without a profiler, how many times as fast, and what the bound allowed."""
    times = paired(case.slow, case.fast, "step_ms").median
    rows = []
    for name, records, ratios in (
        ("pageable", case.slow, (None, None)),
        ("pinned, non-blocking", case.fast, (times, _at_most_times(case.before))),
    ):
        step, process = spread(records, "step_ms"), spread(records)
        rows.append((name, step.n, step.median, f"{step.low:.1f}–{step.high:.1f}", *ratios, process.median))
    columns = ["copies", "n", "step ms", "range ms", "× step", "× at most", "process s"]
    formats = {"step ms": "{:.1f}", "× step": "{:.2f}", "× at most": "{:.2f}", "process s": "{:.1f}"}
    steps = case.slow[0]["arguments"]["steps"]
    caption = f"ResNet-50 with 14 workers: {steps} steps after a warm-up, no profiler, in turn (medians)"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def stranger() -> Report:
    """A report that does not say whose it is: in it pinning gains nothing."""
    return unnamed("train_transformer_amp", "stranger")


usual_step = windows.usual_step
_at_most_times = bounds.at_most("pinned_memory")


def _to_the_gpu(report: Report) -> pd.DataFrame:
    """The copies of the epoch's batches, a row a kind of memory."""
    found = copies(report)
    return found[found["direction"] == "host to device"]


def _to_gpu_ms(column: str) -> Quantity:
    return Quantity(lambda report: float(_to_the_gpu(report)[column].sum()))


def _bound_s(before: Report, plain: Sequence[dict]) -> float:
    """What pinned copies save a whole run at most: in all its epochs, and of the test's digits, too."""
    run = plain[0]
    digits = (run["train_samples"] + run["test_samples"]) / run["train_samples"]
    return len(run["epochs"]) * digits * bounds.at_most_ms("pinned_memory")(before) / 1e3


def _second_epochs_ms(records: Sequence[dict]) -> str:
    """The epoch that the profiler sees, of all runs: ``661, 800 and 817``."""
    *most, last = (f"{1e3 * epoch['training_s']:,.0f}" for own in records for epoch in own["epochs"][1:2])
    return f"{', '.join(most)} and {last}" if most else last


# --- predictions ----------------------------------------------------------------------------------------------

PREDICTIONS = {
    "gain": Guess(
        "ms that pinned copies gain in an epoch at most",
        " ms",
        bounds.at_most_ms("pinned_memory"),
        wrong={
            "That's the copying itself. The program is held as well, and comes late to all it launches next.": (
                _to_gpu_ms("gpu_ms")
            ),
            "That's how long the program is held. The time for which the GPU copies would go, too.": (
                _to_gpu_ms("api_ms")
            ),
            "That's the wait for the loader. Faster copies don't bring a batch any sooner.": row_ms("loader"),
        },
    )
}


# --- its chart -------------------------------------------------------------------------------------------------


TRANSFERS = {  # memory, non_blocking → words, colour, line
    ("pageable", False): ("pageable", style.VERMILION, "-"),
    ("pageable", True): ("pageable, non_blocking", style.VERMILION, "--"),
    ("pinned", False): ("pinned", style.BLUE, "-"),
    ("pinned", True): ("pinned, non_blocking", style.BLUE, "--"),
}
BATCH_MB, LARGE_MB = 3.2, 256  # 1,024 digits; large enough for the link's full speed


def medians(transfers: Sequence[dict]) -> list[dict]:
    """A row a size and kind of copy: the medians over the records of the benchmark."""
    rows = pd.DataFrame([row for record in transfers for row in record["rows"]])
    kinds = ["size_mb", "memory", "non_blocking"]
    return rows.groupby(kinds, as_index=False).median(numeric_only=True).to_dict("records")


def transfer_grid(rows: Sequence[dict]) -> Figure:
    """Copies to the GPU. Left, of a batch: µs until the call returns and until the copy is done. Right: GB/s by size.

    ``rows``: one dict a size and kind of copy with ``size_mb``, ``memory``, ``non_blocking``, ``returned_us``,
    ``done_us``.
    """
    found = {(row["size_mb"], row["memory"], row["non_blocking"]): row for row in rows}
    sizes = sorted({row["size_mb"] for row in rows})
    with style.house_style():
        fig = style.figure(3.9)
        left, right = fig.subplots(1, 2, width_ratios=(1.2, 1))
        _returned_and_done(left, {kind: found[(BATCH_MB, *kind)] for kind in TRANSFERS})
        for kind, (words, colour, line) in TRANSFERS.items():
            gb_per_s = [1e3 * size / found[(size, *kind)]["done_us"] for size in sizes]
            right.plot(sizes, gb_per_s, line, color=colour, marker="o", ms=4, label=words)
        right.set(xscale="log", xlabel="MB a copy (medians)", title="GB/s until the copy is done")
        right.set_xticks(sizes, [f"{size:g}" for size in sizes])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_ylim(0, None)
        right.grid(axis="y")
        shades = {"until the call returns": style.INK, "until the copy is done": tint(style.INK, 0.3)}
        patches = [Patch(facecolor=shade, label=words, linewidth=0) for words, shade in shades.items()]
        look = {"fontsize": SMALL, "handlelength": 2.4, "columnspacing": 2.2}
        fig.legend(handles=[*right.lines, *patches], loc="outside lower center", ncols=3, **look)
    return fig


def _returned_and_done(ax: Axes, rows: Mapping[tuple, dict]) -> None:
    """For each kind of copy a pale bar until it is done, and in it a dark one until the call returned."""
    longest = max(row["done_us"] for row in rows.values())
    for y, (kind, row) in enumerate(rows.items()):
        colour = TRANSFERS[kind][1]
        bar(ax, y, 0, row["done_us"], tint(colour, 0.3))
        ax.barh(y, row["returned_us"], THICK / 2, color=colour, linewidth=0)
        beside(ax, max(row["done_us"], row["returned_us"]), y, f"{row['returned_us']:,.0f} / {row['done_us']:,.0f} µs")
    ax.set(xlim=(0, 1.45 * longest), ylim=(len(rows) - 0.45, -0.55), xlabel="µs, medians")
    ax.set_yticks(range(len(rows)), [TRANSFERS[kind][0].replace(", ", ",\n") for kind in rows])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_title(f"A copy of {BATCH_MB:g} MB: µs until returned / done")


# --- exercises ------------------------------------------------------------------------------------------------


HIDDEN_COPIES = Number(
    BOUND,
    "Overlap hides what the copies take with no kernel beside them: a row of the budget.",
    right=row_ms("copies"),
    wrong={
        "that is the wait for the loader: a second stream hides copies, not the loader": row_ms("loader"),
        "those are seconds: milliseconds are asked for": row_ms("copies") / 1e3,
        "that is all idle time: the GPU waits for other things than copies, too": bounds.idle_ms,
        "that is how long the copies held the program: how long does the GPU copy?": _to_gpu_ms("api_ms"),
        "that is one copy: an epoch has one for each batch": _to_gpu_ms("longest_gpu_us") / 1e3,
        "that is the whole epoch": bounds.whole_ms,
    },
    within=0.15,  # the row counts memory fills too
)


class PretendBatch:
    """A tensor that notes in ``said`` how it was copied, for machines without a GPU."""

    def __init__(self, said: dict, pinned: bool = False, device: str = "cpu") -> None:
        self.said, self.device, self._pinned = said, device, pinned

    def pin_memory(self, *_: object) -> PretendBatch:
        self.said["pinned in the loop"] = True
        return PretendBatch(self.said, True)

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, device: object = None, *_: object, non_blocking: bool = False, **__: object) -> PretendBatch:
        self.said.update(pinned=self._pinned, non_blocking=non_blocking)
        return PretendBatch(self.said, device=str(device))

    def cuda(self, device: object = "cuda", non_blocking: bool = False) -> PretendBatch:
        return self.to(device, non_blocking=non_blocking)


class PretendBatches(PretendLoader):
    """A loader of three batches, pinned ahead of time if it is told so; ``made`` are all that were."""

    made: list[PretendBatches]

    def __init__(self, *given, **named) -> None:
        super().__init__(*given, **named)
        self.made.append(self)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[PretendBatch, PretendBatch]]:
        for said in self.dataset:
            yield tuple(PretendBatch(said[part] | {"part": part}, self.pinned) for part in ("data", "target"))


def _says_that_there_is_a_gpu(epoch: Callable) -> ExitStack:
    """Where the function asks PyTorch for a GPU (``pin_memory=torch.cuda.is_available()``), there is one meanwhile."""
    pretended = ExitStack()
    asks = "torch" in getattr(getattr(epoch, "__code__", None), "co_names", ())
    torch = importlib.import_module("torch") if asks else sys.modules.get("torch")
    for name in ("cuda", "accelerator"):
        if hasattr(torch, name):  # torch.accelerator is younger
            pretended.enter_context(patch.object(getattr(torch, name), "is_available", lambda: True))
    return pretended


class PretendDevice(str):
    """A device that is compared and printed like its name, and has what a ``torch.device`` has besides."""

    type, index = "cuda", 1


def _try_epoch(epoch: Callable) -> str | None:
    batches, trained, device = [{"data": {}, "target": {}} for _ in range(3)], [], PretendDevice("cuda:1")
    loader = type("DataLoader", (PretendBatches,), {"made": []})
    with _says_that_there_is_a_gpu(epoch):
        epoch(loader, batches, device, lambda data, target: trained.append((data, target)))
    for own in loader.made:
        if own.dataset is not batches or own.batch_size != 1024:
            return "it changes what is trained: the same digits, in batches of 1,024"
        if not own.shuffle:
            return "it changes what is trained: the digits are no longer shuffled"
        if own.drop_last:
            return "it changes what is trained: the last, short batch is dropped"
        if not own.workers:
            return "without a worker no thread pins ahead of time: the loop itself pins each batch"
    if len(trained) != len(batches):
        return f"train_step is called {len(trained)} times for {len(batches)} batches"
    for data, target in trained:
        for name, given in (("data", data), ("target", target)):
            if not isinstance(given, PretendBatch):
                return f"train_step gets no batch as {name}: hand it the copies"
            if given.said["part"] != name:
                return f"train_step gets the {given.said['part']} as {name}"
            if given.device == "cpu":
                return f"train_step gets the {name} that still lies with the CPU: hand it the copy"
            if given.device != device:
                return f"the {name} is copied to {given.device}, not to the device that was given"
            if given.said.get("pinned in the loop"):
                return (
                    "pin_memory() in the loop makes the CPU copy every batch once more before the GPU may fetch it: "
                    "let the loader pin ahead of time"
                )
            if not given.said["pinned"]:
                return f"the {name} is copied from pageable memory: the loader can pin its batches"
            if not given.said["non_blocking"]:
                return f"the copy of the {name} still waits: the call has to be told not to block"
    if len({id(data.said) for data, _ in trained}) < len(trained):
        return "train_step gets one batch more than once"
    return None


def _epoch(pin: bool = True, copy: Callable | None = None, labels: Callable | None = None, **changed) -> Callable:
    copy = copy or (lambda batch, device: batch.to(device, non_blocking=True))
    options = {"batch_size": 1024, "shuffle": True, "num_workers": 2, "pin_memory": pin} | changed

    def epoch(DataLoader, digits, device, train_step):
        for data, target in DataLoader(digits, **options):
            train_step(copy(data, device), (labels or copy)(target, device))

    return epoch


def _copies_and_trains_on_the_old(DataLoader, digits, device, train_step):
    for data, target in DataLoader(digits, batch_size=1024, shuffle=True, num_workers=2, pin_memory=True):
        data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        train_step(data, target)


def _swapped(DataLoader, digits, device, train_step):
    _epoch()(DataLoader, digits, device, lambda data, target: train_step(target, data))


def _the_first_each_time(DataLoader, digits, device, train_step):
    trained = []
    _epoch()(DataLoader, digits, device, lambda *batch: (trained.append(batch), train_step(*trained[0])))


UNNOTICED_COPIES = Code(
    "Two switches: one for the DataLoader, one for the copies; both tensors are copied.",
    _try_epoch,
    wrong={
        "the data is copied from pageable memory": _epoch(pin=False),
        "the copy of the data still waits": _epoch(copy=lambda batch, device: batch.to(device)),
        "the copy of the target still waits": _epoch(labels=lambda batch, device: batch.to(device)),
        "let the loader pin ahead of time": _epoch(
            False, lambda b, device: b.pin_memory().to(device, non_blocking=True)
        ),
        "not to the device that was given": _epoch(copy=lambda batch, device: batch.to("cuda", non_blocking=True)),
        "still lies with the CPU": _copies_and_trains_on_the_old,
        "the same digits, in batches of 1,024": _epoch(batch_size=1),
        "the digits are no longer shuffled": _epoch(shuffle=False),
        "the last, short batch is dropped": _epoch(drop_last=True),
        "the loop itself pins each batch": _epoch(num_workers=0),
        "gets the target as data": _swapped,
        "one batch more than once": _the_first_each_time,
        "gets no batch as data": _epoch(copy=lambda batch, device: None),
        "is called 0 times": lambda DataLoader, digits, device, train_step: None,
    },
)


def done_and_returned_us(transfers: Sequence[dict], memory: str, non_blocking: bool) -> tuple[float, float]:
    """µs until a batch's copy is done, and until its call returns: medians."""
    [own] = [row for row in medians(transfers) if [*row.values()][:3] == [BATCH_MB, memory, non_blocking]]
    return own["done_us"], own["returned_us"]


def _free_pct(transfers: Sequence[dict], memory: str = "pinned", non_blocking: bool = True) -> float:
    done_us, returned_us = done_and_returned_us(transfers, memory, non_blocking)
    return 100 * (1 - returned_us / done_us)


FREE_SHARE = Number(
    READ,
    "The dark part of the bar is the call, the pale part what is left of the copy: its share of the whole bar.",
    right=_free_pct,
    wrong={
        "that is the share for which the program is held": lambda transfers: 100 - _free_pct(transfers),
        "that is the bar of a pinned copy that blocks": lambda transfers: _free_pct(transfers, non_blocking=False),
        "that is the bar of a pageable copy": lambda transfers: _free_pct(transfers, "pageable"),
        "that is a share of 1: in per cent it is a hundred times as much": lambda transfers: _free_pct(transfers) / 100,
    },
    within=0.05,  # read off a picture
)

NOTHING_TO_GAIN = Choice(
    READ,
    "How many MB are copied, for how many ms is the program held, and how long are the ten steps together?",
    right=lambda: "bytes",
    wrong={
        "pinned": "look at *host memory*: the batches come from pageable memory",
        "overlap": "*beside kernels ms* is zero: no copy is hidden behind a kernel",
        "loader": "that was this lab's epoch: here the largest share is CPU code",
        "busy": "the GPU is idle for more than half of the time, so a busy GPU hides nothing",
    },
)

EXERCISES = {"3.1": HIDDEN_COPIES, "3.2": UNNOTICED_COPIES, "3.3": FREE_SHARE, "3.4": NOTHING_TO_GAIN}
