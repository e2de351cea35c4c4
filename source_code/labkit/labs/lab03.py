"""What lab 3 claims: pinned copies are fast and free the program, and a run gains no more than their bound.

Its exercises: what overlap hides, copies that nobody waits for, and a bar that is read off.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from unittest.mock import patch

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.checks import Claim
from labkit.display import style
from labkit.display.charts.bars import SMALL, THICK, bar, beside, key
from labkit.display.runs import compared
from labkit.display.spread import spread
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.subjects.ladder import epoch_noise_ms
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.copies import copies
from stepbudget.ask.phases import phases
from stepbudget.ask.predict import bound
from stepbudget.report import Report
from stepbudget.show.palette import tint

Kind = tuple[str, bool]  # of a copy: from which memory, and whether with non_blocking


def from_which_memory(report: Report) -> Iterator[Claim | str]:
    """From which kind of memory the batches are copied, how fast, and how much of that beside kernels."""
    found = _to_the_gpu(report)
    if found.empty:
        yield "No batch is copied: there is no GPU here, and tables of copies stay empty."
    for kind in found.itertuples():
        beside = 100 * kind.overlap_ms / kind.gpu_ms
        yield f"From {kind.host_memory} memory: {kind.gb_per_s:.1f} GB/s, {beside:.0f} % of the time beside kernels."


def four_kinds(done_us: Mapping[Kind, float], returned_us: Mapping[Kind, float]) -> Iterator[Claim | str]:
    """Pinning makes a large copy fast, and only with ``non_blocking`` does it free the program.

    ``done_us``, ``returned_us``: when the copy is done, and when its call returns.
    """
    faster = done_us["pageable", False] / done_us["pinned", True]
    held, free = (returned_us[memory, True] / done_us[memory, True] for memory in ("pageable", "pinned"))
    yield Claim(
        "pinned copies of 256 MB are at least 1.5 times as fast as pageable ones", faster > 1.5, faster,
        because="a narrow link is slower than the extra copy, and a GPU that shares memory needs none",
        so=f"pinning makes your copies {faster:.2f} times as fast; what is left is the freed program",
    )  # fmt: skip
    yield Claim(
        "non_blocking from pageable memory: held for more than half of the copy", held > 0.5, held,
        because="the GPU can read pageable memory by itself (GH200, or Linux with HMM)",
        so="non_blocking alone helps you; the rule of both together is for other machines",
    )  # fmt: skip
    yield Claim(
        "non_blocking from pinned memory: held for less than a tenth of it", free < 0.1, free,
        because="a call takes long to reach the GPU through a virtual machine or Windows",
        so=f"the program is still held for {100 * free:.0f} % of the copy",
    )  # fmt: skip


def cost_of_pinning(large: pd.DataFrame) -> Iterator[Claim | str]:
    """What it takes to pin a new buffer; ``large``: copies of 256 MB, by memory and ``non_blocking``."""
    pin_us, slow_us = 1e3 * large["first_pin_ms"]["pinned", False], large["done_us"]["pageable", False]
    yield (
        f"To pin a new buffer of 256 MB takes {pin_us / slow_us:.1f} times as long as the slow copy: "
        f"{pin_us / 1e3:.0f} ms, with copying, to {slow_us / 1e3:.0f} ms."
    )


def most_to_gain(before: Report, plain: Sequence[dict]) -> Iterator[Claim | str]:
    """The bound of pinned copies, for an epoch and for a whole run; ``plain``: records of runs without them."""
    of_epoch, run_s, bound_s = bound(before, budget(before), "pinned_memory"), spread(plain), _bound_s(before, plain)
    between_s = run_s.high - run_s.low
    yield f"An epoch: at most {of_epoch.at_most_ms:.0f} of {of_epoch.of_ms:.0f} ms less."
    yield f"The program spends {_held_ms(before):.0f} ms of an epoch in the phase 'copy to device'."
    times = run_s.median / (run_s.median - bound_s)
    yield f"The whole run: at most {bound_s:.1f} s less, that is {times:.2f} times as fast."
    yield f"Runs of the same script differ by up to {between_s:.1f} s."
    if run_s.n == 1:
        yield "One run tells nothing of the noise, and one more will tell nothing of the gain."
    elif bound_s > between_s:
        yield "The bound is more than that. Is the gain? The rounds will tell."
    else:
        yield "Even the bound is less than that: single runs cannot show the gain."


def copies_are_pinned(before: Report, after: Report) -> Iterator[Claim | str]:
    """Batches come from pinned memory, hardly hold the program, and are copied faster."""
    was, now = _to_the_gpu(before), _to_the_gpu(after)
    held_ms, held_now_ms = _held_ms(before), _held_ms(after)
    yield Claim("no batch is copied from pageable memory", "pageable" not in set(now["host_memory"]))
    yield Claim(
        "the program is held for less than a fifth of the time", held_now_ms < held_ms / 5,
        f"{held_ms:.1f} ms before, {held_now_ms:.1f} ms after",
        because="the GPU reads pageable memory by itself (GH200), or there is none to copy to",
        so=f"the program was held for {held_ms:.0f} ms of an epoch: there was no more to free",
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


def comparable(before: Report, after: Report) -> Iterator[Claim | str]:
    """Nothing but the copies has changed between the two reports."""
    made = compare(before, after)
    yield Claim(
        "both epochs do the same work on the same GPU", made.comparable, "; ".join(made.obstacles),
        because="a training without a GPU leaves no kernels in a report",
        so="no bound is scored here; the wall clock below is your proof",
    )  # fmt: skip


def gained(
    before: Report, after: Report, timed_before: Sequence[dict], timed_after: Sequence[dict]
) -> Iterator[Claim | str]:
    """Which causes shrank and grew, and did the epoch? ``timed_…``: runs without the profiler, for the noise."""
    made, noise_ms = compare(before, after), epoch_noise_ms(timed_before, timed_after)
    change_ms = made.table().set_index("cause")["change_ms"]
    if change_ms.max() > 0:
        yield f"What grew most: '{change_ms.idxmax()}', by {change_ms.max():+.1f} ms."
    gone_ms = made.removed_ms("pinned_memory")
    yield f"The causes that the fix treats: {-gone_ms:+.1f} ms; the epoch: {-made.gained_ms:+.1f} ms."
    if abs(made.gained_ms) > noise_ms:
        yield f"That is more than epochs without the profiler differ by, {noise_ms:.0f} ms."
    else:
        yield (
            f"Without the profiler, too, epochs differ by {noise_ms:.0f} ms: "
            "from two profiles nobody can tell what the epoch gained."
        )


def bound_held(
    before: Report, after: Report, timed_before: Sequence[dict], timed_after: Sequence[dict]
) -> Iterator[Claim | str]:
    """What the fix treats has shrunk, and the epoch gained no more than its bound; the arguments of ``gained``."""
    made, noise_ms = compare(before, after), epoch_noise_ms(timed_before, timed_after)
    took_ms = made.before.ms["copies"] + made.before.ms["pageable_copy"]
    gone_ms = made.removed_ms("pinned_memory")
    yield Claim(
        "the copies and the waits in them take less than half of what they took", gone_ms > took_ms / 2,
        f"{took_ms - gone_ms:.1f} of {took_ms:.1f} ms are left",
        because="copies over a narrow link get hardly faster, and without a GPU there are none",
        so="what is left are the copies themselves: send less (lab 6 sends bytes, and once)",
    )  # fmt: skip
    if score := made.score("pinned_memory", noise_ms=noise_ms):
        yield Claim(
            "the epoch gains no more than was predicted, give or take the noise", score.kept,
            f"{score.gained_ms:.0f} ms, at most {score.bound.at_most_ms:.0f} predicted, noise {noise_ms:.0f}",
            because="the loader was quicker in one of the two profiled epochs",
            so="credit the pinning with no more than its own rows of the table",
        )  # fmt: skip


def waits_are_cheap(after: Report) -> Iterator[Claim | str]:
    """The GPU hardly stands still because the program had waited for it."""
    found = budget(after)
    share = found.ms["synchronisation"] / found.window.duration_ms if found.window.duration_ms else 0.0
    yield Claim(
        "waiting for the GPU costs less than a tenth of the epoch", share < 0.1, share,
        because="a slow CPU takes long to fill the queue again after each wait",
        so="print the loss less often (--log-interval), and see lab 7 for launches that cost less",
    )  # fmt: skip


def by_the_clock(plain: Sequence[dict], pinned: Sequence[dict]) -> Iterator[Claim | str]:
    """What the rounds say of the runs without pinned copies and of those with them."""
    yield f"With pinning the training loop is {compared(plain, pinned, 'training_s')}."
    yield f"The whole run is {compared(plain, pinned)}."


def saved_within_bound(before: Report, plain: Sequence[dict], pinned: Sequence[dict]) -> Iterator[Claim | str]:
    """A whole run saves no more than the bound from the profile; the records of ``by_the_clock``."""
    before_s, after_s, bound_s = spread(plain), spread(pinned), _bound_s(before, plain)
    saved_s = before_s.median - after_s.median
    noise_s = max(before_s.high - before_s.low, after_s.high - after_s.low, 0.1 * before_s.median)
    yield Claim(
        "what is saved is within the bound, give or take the noise", saved_s < bound_s + noise_s,
        f"{saved_s:.1f} s saved, at most {bound_s:.1f} predicted, noise {noise_s:.1f}",
        because="something slowed the machine down in the runs without pinning",
        so="run more rounds: the copies cannot save more than they took",
    )  # fmt: skip


def _to_the_gpu(report: Report) -> pd.DataFrame:
    """The copies of the epoch's batches, a row a kind of memory."""
    found = copies(report)
    return found[found["direction"] == "host to device"]


def _held_ms(report: Report) -> float:
    """How long an epoch's phase 'copy to device' holds the program."""
    return phases(report).set_index("phase")["cpu_ms"].get("copy to device", 0.0)


def _bound_s(before: Report, plain: Sequence[dict]) -> float:
    """What pinned copies save a whole run at most: in all its epochs, and of the test's digits, too."""
    run = plain[0]
    digits = (run["train_samples"] + run["test_samples"]) / run["train_samples"]
    return len(run["epochs"]) * digits * bound(before, budget(before), "pinned_memory").at_most_ms / 1e3


# --- its chart -------------------------------------------------------------------------------------------------


TRANSFERS = {  # memory, non_blocking → words, colour, line
    ("pageable", False): ("pageable", style.VERMILION, "-"),
    ("pageable", True): ("pageable, non_blocking", style.VERMILION, "--"),
    ("pinned", False): ("pinned", style.BLUE, "-"),
    ("pinned", True): ("pinned, non_blocking", style.BLUE, "--"),
}


def transfer_grid(rows: Sequence[dict], size_mb: float = 3.2) -> Figure:
    """Copies to the GPU. Left, at one size: µs until the call returns and until the copy is done. Right: GB/s by size.

    ``rows``: one dict a size and kind of copy with ``size_mb``, ``memory``, ``non_blocking``, ``returned_us``,
    ``done_us``.
    """
    found = {(row["size_mb"], row["memory"], row["non_blocking"]): row for row in rows}
    sizes = sorted({row["size_mb"] for row in rows})
    if size_mb not in sizes:
        raise ValueError(f"not measured at {size_mb} MB, but at: {', '.join(map(str, sizes))}")
    with style.house_style():
        fig = style.figure(3.4)
        left, right = fig.subplots(1, 2, width_ratios=(1.2, 1))
        _returned_and_done(left, {kind: found[(size_mb, *kind)] for kind in TRANSFERS}, size_mb)
        for kind, (words, colour, line) in TRANSFERS.items():
            gb_per_s = [1e3 * size / found[(size, *kind)]["done_us"] for size in sizes]
            right.plot(sizes, gb_per_s, line, color=colour, marker="o", ms=4, label=words)
        right.set(xscale="log", xlabel="MB a copy (medians)", title="GB/s until the copy is done")
        right.set_xticks(sizes, [f"{size:g}" for size in sizes])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_ylim(0, None)
        right.grid(axis="y")
        right.legend(fontsize=SMALL, loc="best", handlelength=2.4)
        shades = {"until the call returns": style.INK, "until the copy is done": tint(style.INK, 0.3)}
        key(fig, shades, 2)
    return fig


def _returned_and_done(ax: Axes, rows: Mapping[tuple, dict], size_mb: float) -> None:
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
    ax.set_title(f"A copy of {size_mb:g} MB: µs until returned / done")


# --- exercises ------------------------------------------------------------------------------------------------


def _to_gpu_ms(report: Report, column: str) -> float:
    return float(_to_the_gpu(report)[column].sum())


HIDDEN_COPIES = Number(
    BOUND,
    "Overlap hides what the copies take with no kernel beside them: a row of the budget.",
    right=lambda report: budget(report).ms["copies"],
    wrong={
        "that is the wait for the loader: a second stream hides copies, not the loader": (
            lambda report: budget(report).ms["loader"]
        ),
        "those are seconds: milliseconds are asked for": lambda report: budget(report).ms["copies"] / 1e3,
        "that is all idle time: the GPU waits for other things than copies, too": lambda report: budget(report).idle_ms,
        "that is for how long the copies held the program, which goes on at once: for how long does the GPU copy?": (
            lambda report: _to_gpu_ms(report, "api_ms")
        ),
        "that is one copy: an epoch has one for each batch": lambda r: _to_gpu_ms(r, "longest_gpu_us") / 1e3,
        "that is the whole epoch": lambda report: budget(report).window.duration_ms,
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


class PretendLoader:
    """A DataLoader of three batches, pinned ahead of time if it is told so; ``made`` are all that were."""

    made: list[PretendLoader]

    def __init__(self, dataset: Sequence, batch_size: int = 1, shuffle: bool = False, pin_memory: bool = False, **_):
        self.dataset, self.batch_size, self.shuffle, self._pinned = dataset, batch_size, shuffle, pin_memory
        self.made.append(self)

    def __iter__(self) -> Iterator[tuple[PretendBatch, PretendBatch]]:
        for said in self.dataset:
            yield tuple(PretendBatch(said[part], self._pinned) for part in ("data", "target"))


def _says_that_there_is_a_gpu(epoch: Callable) -> ExitStack:
    """Where the function asks PyTorch for a GPU (``pin_memory=torch.cuda.is_available()``), there is one meanwhile."""
    pretended = ExitStack()
    asks = "torch" in getattr(getattr(epoch, "__code__", None), "co_names", ())
    torch = importlib.import_module("torch") if asks else sys.modules.get("torch")
    for name in ("cuda", "accelerator"):
        if hasattr(torch, name):  # torch.accelerator is younger
            pretended.enter_context(patch.object(getattr(torch, name), "is_available", lambda: True))
    return pretended


def _try_epoch(epoch: Callable) -> str | None:
    batches, trained, device = [{"data": {}, "target": {}} for _ in range(3)], [], "cuda:1"
    loader = type("DataLoader", (PretendLoader,), {"made": []})
    with _says_that_there_is_a_gpu(epoch):
        epoch(loader, batches, device, lambda data, target: trained.append((data, target)))
    for own in loader.made:
        if own.dataset is not batches or own.batch_size != 1024:
            return "it changes what is trained: the same digits, in batches of 1,024"
        if not own.shuffle:
            return "it changes what is trained: the digits are no longer shuffled"
    if len(trained) != len(batches):
        return f"train_step is called {len(trained)} times for {len(batches)} batches"
    for data, target in trained:
        for name, given in (("data", data), ("target", target)):
            if not isinstance(given, PretendBatch):
                return f"train_step gets no batch as {name}: hand it the copies"
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
    return None


def _epoch(pin: bool = True, copy: Callable | None = None, labels: Callable | None = None, **changed) -> Callable:
    copy = copy or (lambda batch, device: batch.to(device, non_blocking=True))
    options = {"batch_size": 1024, "shuffle": True, "pin_memory": pin} | changed

    def epoch(DataLoader, digits, device, train_step):
        for data, target in DataLoader(digits, **options):
            train_step(copy(data, device), (labels or copy)(target, device))

    return epoch


def _copies_and_trains_on_the_old(DataLoader, digits, device, train_step):
    for data, target in DataLoader(digits, batch_size=1024, shuffle=True, pin_memory=True):
        data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        train_step(data, target)


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
        "gets no batch as data": _epoch(copy=lambda batch, device: None),
        "is called 0 times": lambda DataLoader, digits, device, train_step: None,
    },
)

BATCH_MB = 3.2  # 1,024 digits


def _done_and_returned_us(transfers: Sequence[dict], memory: str, non_blocking: bool) -> tuple[float, float]:
    rows = [row for record in transfers for row in record["rows"]]
    wanted = (BATCH_MB, memory, non_blocking)
    own = [row for row in rows if (row["size_mb"], row["memory"], row["non_blocking"]) == wanted]
    return tuple(statistics.median(row[field] for row in own) for field in ("done_us", "returned_us"))


def _free_pct(transfers: Sequence[dict], memory: str = "pinned", non_blocking: bool = True) -> float:
    done_us, returned_us = _done_and_returned_us(transfers, memory, non_blocking)
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

EXERCISES = {"3.1": HIDDEN_COPIES, "3.2": UNNOTICED_COPIES, "3.3": FREE_SHARE}
