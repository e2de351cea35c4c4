"""What lab 6 claims: work done digit by digit starved the GPU, not the bus; the same training with its data there.

Its exercises: the pace that a bus would have to keep, the batches of an epoch, and a bar that shrank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.charts.results import median_run
from labkit.display.runs import compared, epoch_ms
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, each_of
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.predictions import Guess
from labkit.subjects import accuracy
from stepbudget.ask.budget import CAUSES, budget
from stepbudget.ask.copies import copies
from stepbudget.ask.idle import idle
from stepbudget.ask.iterations import step_windows
from stepbudget.report import Report
from stepbudget.show.table import Table, table

PIXELS = 28 * 28  # bytes of a digit
LABEL = 8  # bytes: a 64-bit integer
LARGE_MB = 256.0  # a copy that takes as long as its bytes need
KERNELS = ("tensor_core_kernels", "other_kernels", "unknown_kernels")
DATA = ("loader", "pageable_copy", "copies")  # of the budget's rows, those that end where the data lie on the GPU


def a_digit(one_worker: Sequence[dict]) -> Iterator[str]:
    """What one digit costs a loader worker that has an epoch to itself."""
    took_ms, digits = epoch_ms(one_worker), one_worker[0]["train_samples"]
    yield f"One worker: {took_ms:,.0f} ms an epoch, {1e3 * took_ms / digits:.0f} µs a digit."


def over_the_bus(transfers: Sequence[dict], runs: Sequence[dict]) -> Table:
    """All training digits over the bus, once: megabytes, milliseconds; ``transfers``: of ``bench_transfers.py``.

    The first row is FP32, the second uint8. Large copies, made as one makes them: pinned ones without blocking.
    """
    digits = runs[0]["train_samples"]
    measured = pd.DataFrame([row for one in transfers for row in one["rows"]])
    usual = measured["non_blocking"] == (measured["memory"] == "pinned")
    large = measured[(measured["size_mb"] == LARGE_MB) & usual]
    gb_per_s = LARGE_MB * 1e3 / large.groupby("memory")["done_us"].median()
    rows = []
    for pixel, size in (("FP32, four bytes", 4), ("uint8, one byte", 1)):
        mb = digits * PIXELS * size / 1e6
        rows.append((pixel, mb, mb / gb_per_s["pageable"], mb / gb_per_s["pinned"]))
    columns = ["a pixel is", "MB an epoch", "ms from pageable memory", "ms from pinned memory"]
    caption = f"All {digits:,} training digits over the bus, once"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:], "{:.1f}"))


def bus_is_fast(bus: Table, before: Report) -> Iterator[Claim]:
    """The loader's waits are not the bus's."""
    bus_ms, waits_ms = float(bus.frame["ms from pinned memory"][0]), budget(before).ms["loader"]
    yield Claim(
        "the bus needs less than a tenth of the time that the loader costs", bus_ms < 0.1 * waits_ms,
        [round(bus_ms, 1), round(waits_ms, 1)],
        because="the bus is narrow (few lanes, an older generation), or the loader keeps up",
        so=f"without a loader, an epoch in FP32 over the bus would still take {bus_ms:.0f} ms",
    )  # fmt: skip


def as_fast(slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """An epoch without the profiler, each part of the process by the clock, and what is left of it."""
    yield f"A training epoch: {epoch_ms(slow):.0f} ms before, {epoch_ms(fast):.0f} ms after."
    parts = {"training loop": "training_s", "tests": "test_s", "whole process": "process_s"}
    for part, field in parts.items():
        yield f"{part}: {compared(slow, fast, field)}"
    loop, tests, whole = (paired(slow, fast, field).median for field in parts.values())
    yield Claim(
        "the training loop is at least a tenth faster", loop > 1.1, loop,
        because="the loader kept up with this GPU, so there was little to wait for",
        so="for training alone, the loader can stay; mind the tests and the start",
    )  # fmt: skip
    yield Claim(
        "the tests after each epoch are at least three times as fast", tests > 3, tests,
        because="a slow GPU takes long for the test itself",
        so=f"they gain a factor of {tests:.1f} here",
    )  # fmt: skip
    yield Claim(
        "the whole process is at least a tenth faster", whole > 1.1, whole,
        because="a run of few epochs is mostly start-up, which this step hardly changes",
        so=f"the loop alone is {loop:.1f} times as fast: more epochs show more of it",
    )  # fmt: skip
    run = median_run(fast)
    yield f"starting up is {100 * run['startup_s'] / run['process_s']:.0f} % of the process now"


def no_loader(reports: Mapping[str, Report], slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """No waits for a loader, less idle time, the same work of the GPU; the last but one report has a loader as well.

    ``slow``, ``fast``: runs without the profiler of what the first and the last report are of.
    """
    first, *_, middle, last = (budget(report) for report in reports.values())
    gained_ms, loader = middle.window.duration_ms - last.window.duration_ms, last.fractions["loader"]
    took_ms = middle.ms["loader"]
    yield f"The last change saves {gained_ms:.0f} ms of an epoch; before, the loader had taken {took_ms:.0f} ms."
    yield Claim("the epoch no longer waits for a loader", loader < 0.01, loader)
    yield Claim(
        "the GPU idles for less than half as long as it did", last.idle_ms < 0.5 * first.idle_ms,
        [round(first.idle_ms, 1), round(last.idle_ms, 1)],
        because="the loader was not what it waited for, or the CPU launches too slowly",
        so=f"{last.idle_ms:.0f} ms of an epoch are idle still; the table of bounds names the causes",
    )  # fmt: skip
    busy_ms = {name: round(idle(report).busy_ms, 1) for name, report in reports.items()}
    was_ms, *_, now_ms = busy_ms.values()
    yield Claim(
        "the GPU does the same work as before, within 15 %", abs(now_ms - was_ms) < 0.15 * was_ms, busy_ms,
        because="a laptop changes its clock, a shared GPU works for others too",
        so=f"of the epoch's change, {was_ms - now_ms:.0f} ms are the GPU's own work",
    )  # fmt: skip
    profiled, unseen = first.window.duration_ms / last.window.duration_ms, epoch_ms(slow) / epoch_ms(fast)
    yield f"From first to last, an epoch is {profiled:.1f} times as fast with the profiler, {unseen:.1f} times without."


def scaler_asks(before: Report) -> Iterator[Claim | str]:
    """How often the program copies a number from the GPU, and how long it waits for that."""
    found, batches = copies(before), len(step_windows(before))
    asked = found[found["direction"] == "device to host"][["count", "api_ms"]].sum()
    held = f"{asked['count']:.0f} times in {batches} steps, and is held for {asked['api_ms']:.0f} ms"
    yield f"FP16 with scaler: the program asks {held}."
    yield Claim(
        "with the scaler, the program asks the GPU in every step", asked["count"] >= batches, asked["count"],
        because="without a GPU nothing is copied from one",
        so="the wait that this lab removes is not in your report",
    )  # fmt: skip


def accuracy_kept(baseline: Sequence[float], opt4: Sequence[float]) -> Iterator[Claim | str]:
    """The step passes the gate: test accuracies of both, one a seed."""
    yield accuracy.keeps("opt4", baseline, opt4)


def memory_and_bus(slow: Sequence[dict], fast: Sequence[dict], bus: Table) -> Iterator[Claim | str]:
    """What the data take on the GPU, and what the bus could carry in an epoch as short as ``fast`` made it."""
    reckoned_mb = (fast[0]["train_samples"] + fast[0]["test_samples"]) * (PIXELS + LABEL) / 1e6
    was_mb, now_mb = (runs[0]["peak_gpu_memory_mb"] or 0.0 for runs in (slow, fast))
    yield f"The data: {reckoned_mb:.1f} MB. Peak of PyTorch's tensors: {was_mb:.0f} MB before, {now_mb:.0f} MB after."
    took_ms, digits = epoch_ms(fast), bus.frame.iloc[-1]
    bytes_mb = digits["MB an epoch"]
    gb_per_s = bytes_mb / digits["ms from pinned memory"]
    could_mb = gb_per_s * took_ms
    share = 100 * bytes_mb / could_mb
    yield f"In an epoch of {took_ms:.0f} ms, at {gb_per_s:.0f} GB/s, the bus carries {could_mb:,.0f} MB."
    yield f"Our digits as bytes are {bytes_mb:.1f} MB, {share:.1f} % of that."
    yield Claim(
        "the bus could carry the digits of an epoch ten times over", could_mb > 10 * bytes_mb, could_mb,
        because="the bus is narrow: few lanes, or an older generation",
        so=f"it carries them {could_mb / bytes_mb:.1f} times: data that stay with the host cost more",
    )  # fmt: skip


def data_hold_nothing_up(stranger: Report) -> Iterator[Claim | str]:
    """A program that this lab's fix does not treat: what holds it up instead."""
    own = budget(stranger)
    data_ms, whole_ms = sum(own.ms[cause] for cause in DATA), own.window.duration_ms
    kernels_ms = sum(own.ms[cause] for cause in KERNELS)
    yield f"Loader and copies: {data_ms:.0f} of {whole_ms:.0f} ms. The GPU's kernels: {kernels_ms:.0f} ms."
    yield Claim(
        "loader and copies take less than a twentieth of it", data_ms < 0.05 * whole_ms, data_ms,
        because="the loader has fewer cores here, or the bus is slower",
        so=f"of your {whole_ms:.0f} ms, up to {data_ms:.0f} could go with the data on the GPU",
    )  # fmt: skip


def what_is_next(reports: Mapping[str, Report], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """How much of an epoch is the GPU's own work now; ``fast``: runs of what the last report is of."""
    *_, last = reports.values()
    shares = {name: round(1 - idle(report).idle_share, 3) for name, report in reports.items()}
    left, (*_, busy) = budget(last), shares.values()
    cause = max(left.idle_causes, key=left.ms.__getitem__)
    timed = min(round(idle(last).busy_ms, 1) / epoch_ms(fast), 1.0)
    then = "fewer and shorter kernels" if timed > 0.75 else CAUSES[cause]
    part = f"{100 * busy:.0f} % of the profiled epoch, {100 * timed:.0f} % of a timed one"
    worked = f"the GPU's own work is {part}; next: {then}"
    yield worked if busy else "no GPU worked: read this lab with LAB_MODE=recorded"
    yield Claim(
        "the GPU is busy for a larger part than in the profiles before",
        busy == max(shares.values()) > min(shares.values()),
        shares,
        because="the CPU cannot launch as fast as this GPU computes",
        so=f"it is idle for {CAUSES[cause]} most, {left.ms[cause]:.0f} ms of an epoch",
    )


# --- predictions ----------------------------------------------------------------------------------------------


def _without(*causes: str) -> Quantity:
    """How many times as fast a window is without these rows of its budget."""
    gone_ms = Quantity(lambda own, *_: sum(own.ms[cause] for cause in causes))
    return WHOLE_MS / (WHOLE_MS - gone_ms)


WHOLE_MS = Quantity(lambda own, *_: own.window.duration_ms)

PREDICTIONS = {
    "times": Guess(
        "an epoch with the digits on the GPU",
        " times",
        lambda _, slow, fast: epoch_ms(slow) / epoch_ms(fast),
        wrong={
            "That's the budget without its loader, and the profiler had slowed what is left.": _without("loader"),
            "That leaves the GPU's own work and nothing else, but the CPU still has to launch it.": (
                WHOLE_MS / (WHOLE_MS - Quantity(lambda own, *_: own.idle_ms))
            ),
            "That's the whole process, whose start gets no shorter.": lambda _, *runs: paired(*runs).median,
        },
    ),
    "resnet": Guess(
        "a stranger's ResNet with its images on the GPU",
        " times",
        _without(*DATA),
        wrong={
            "That leaves only the kernels on Tensor Cores, and the others are work, too.": (
                WHOLE_MS / Quantity(lambda own: own.ms["tensor_core_kernels"])
            ),
            "That takes the other kernels away, which are there wherever the images lie.": (
                _without("other_kernels", "unknown_kernels")
            ),
        },
    ),
}

# --- exercises ------------------------------------------------------------------------------------------------


@Quantity
def _gb_per_s(runs: Sequence[dict]) -> float:
    return _epoch_mb(runs) / epoch_ms(runs)


@Quantity
def _epoch_mb(runs: Sequence[dict]) -> float:
    return runs[0]["train_samples"] * PIXELS / 1e6


PACE = Number(
    BOUND,
    "The bytes of all digits, a byte a pixel, over the seconds of an epoch; in GB.",
    right=_gb_per_s,
    wrong={
        "that is with numbers of four bytes: the digits cross as bytes": 4 * _gb_per_s,
        "those are MB: a GB has a thousand of them": 1e3 * _gb_per_s,
        "that is in Gbit/s: a byte has eight bits": 8 * _gb_per_s,
        "that is a pixel a digit: it has 28 · 28": _gb_per_s / PIXELS,
        "those are the bytes alone, in MB: over how many seconds do they cross?": _epoch_mb,
    },
)


def _try_epoch_batches(epoch_batches: Callable) -> str | None:
    images = torch.arange(50, dtype=torch.uint8).view(50, 1, 1).expand(50, 2, 2).contiguous()
    labels = torch.arange(50)
    torch.manual_seed(0)
    given = images.clone(), labels.clone()
    batches = "batches, each of them a pair of images and labels, are"
    first, second = (each_of(epoch_batches(images, labels, 16), batches) for _ in range(2))
    if not all(isinstance(pair, tuple | list) and [*map(torch.is_tensor, pair)] == [True, True] for pair in first):
        return "each batch is a pair: images and labels"
    if not (torch.equal(images, given[0]) and torch.equal(labels, given[1])):
        return "it changes the data set itself: gather the batches, and leave the tensors as they are"
    if any(data.ndim != 3 or own.ndim != 1 for data, own in first):
        return "each batch is a pair of several images, as they were, and their labels"
    sizes = [len(own) for _, own in first]
    if max(sizes, default=0) > 16:
        return f"a batch of {max(sizes)} where 16 were asked for"
    if sum(sizes) < 50:
        return f"{sum(sizes)} of 50 digits come: the last batch is short, and belongs to the epoch"
    if 0 in sizes or not all(len(own) for _, own in epoch_batches(images[:48], labels[:48], 16)):
        return "its last batch is empty where the size divides the number of digits"
    if (short := next((size for size in sizes[:-1] if size != 16), None)) is not None:
        return f"a batch of {short} where 16 were asked for: only the last one may be short"
    order, again = (torch.cat([own for _, own in epoch]).tolist() for epoch in (first, second))
    if sorted(order) != list(range(50)):
        return "some digits come twice, others never: an epoch draws without replacement"
    if torch.cat([data for data, _ in first])[:, 0, 0].tolist() != order:
        return "images and labels are not in the same order"
    if order == sorted(order):
        return "the digits come in the order of the data set: shuffle them"
    full = [own.tolist() for _, own in first if len(own) == 16]
    if any({(one + place) % 50 for place in range(16)} == {*own} for own in full for one in own):
        return "each batch holds neighbours of the data set: shuffle all digits, not the batches, or within one"
    if order == again:
        return "the second epoch has the order of the first: shuffle anew in each"
    return None


def _drawn(order: Callable, only: slice = slice(None)) -> Callable:
    """The batches of the order that ``order(count)`` draws."""
    return lambda images, labels, size: [(images[p], labels[p]) for p in order(len(labels))[only].split(size)]


def _randomly(count):
    return torch.randperm(count)


def _shuffled_apart(images, labels, size):
    orders = (_randomly(len(labels)).split(size) for _ in range(2))
    return [(images[part], labels[other]) for part, other in zip(*orders, strict=True)]


def _images_alone(images, labels, size):
    return [images[part] for part in _randomly(len(labels)).split(size)]


def _whole_batches_shuffled(images, labels, size):
    pairs = list(zip(images.split(size), labels.split(size), strict=True))
    return [pairs[place] for place in [*_randomly(len(pairs) - 1).tolist(), len(pairs) - 1]]


def _one_batch_too_many(images, labels, size):
    order = _randomly(len(labels))
    parts = [order[start : start + size] for start in range(0, len(order) + 1, size)]
    return [(images[part], labels[part]) for part in parts]


EPOCH_BATCHES = Code(
    "torch.randperm(n) is an order, order.split(size) its parts, and a tensor can be indexed with one.",
    _try_epoch_batches,
    wrong={
        "the last batch is short, and belongs to the epoch": _drawn(_randomly, slice(48)),
        "draws without replacement": _drawn(lambda count: torch.randint(count, (count,))),
        "in the order of the data set": _drawn(lambda count: torch.arange(count)),
        "shuffle anew in each": _drawn(lambda n: torch.randperm(n, generator=torch.Generator().manual_seed(1))),
        "only the last one may be short": lambda images, labels, size: [
            (images[part], labels[part]) for part in torch.randperm(len(labels)).tensor_split(4)
        ],
        "a batch of 50 where 16": lambda images, labels, size: [(images, labels)],
        "each batch is a pair": _images_alone,
        "not in the same order": _shuffled_apart,
        "each batch holds neighbours": _whole_batches_shuffled,
        "its last batch is empty": _one_batch_too_many,
    },
)


def _saved_s(part: str) -> Quantity:
    """By how many seconds a part of the process became shorter, from the median run of one step to that of the next."""
    return Quantity(lambda before, after: median_run(before)[part] - median_run(after)[part])


@Quantity
def _beside_training_pct(*runs: Sequence[dict]) -> float:
    saved_s = _saved_s("process_s")(*runs)
    if saved_s <= 0:
        raise NothingToAnswer("the process did not become shorter here")
    return 100 * (1 - _saved_s("training_s")(*runs) / saved_s)


BESIDE_TRAINING = Number(
    READ,
    "Both bars have their lengths beside them and the seconds of training in them: what is left of the difference?",
    right=_beside_training_pct,
    wrong={
        "that is the share that training did gain": 100 - _beside_training_pct,
        "that is a share of 1: in per cent it is a hundred times as much": _beside_training_pct / 100,
        "that is the test alone: start-up and the rest changed, too": 100 * _saved_s("test_s") / _saved_s("process_s"),
        "those are seconds: of the seconds saved, how many per cent?": _saved_s("process_s") - _saved_s("training_s"),
    },
    within=0.1,  # read off a picture
)

EXERCISES = {"6.1": PACE, "6.2": EPOCH_BATCHES, "6.3": BESIDE_TRAINING}
