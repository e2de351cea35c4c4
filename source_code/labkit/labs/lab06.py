"""What lab 6 claims: work done digit by digit starved the GPU, not the bus; the same training with its data there.

Its exercises: the pace that a bus would have to keep, the batches of an epoch, and a bar that shrank.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.charts.results import median_run
from labkit.display.runs import compared, epoch_ms
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, each_of
from labkit.subjects import accuracy
from stepbudget.ask.budget import CAUSES, budget
from stepbudget.ask.compare import Comparison
from stepbudget.ask.copies import copies
from stepbudget.ask.idle import idle
from stepbudget.ask.iterations import step_windows
from stepbudget.report import Report

PIXELS = 28 * 28  # bytes of a digit
LABEL = 8  # bytes: a 64-bit integer
BATCH = 1024


def idle_for(before: Report) -> Iterator[Claim | str]:
    """What the GPU is idle for most."""
    own = budget(before)
    cause = max(own.idle_causes, key=own.ms.__getitem__)
    most = f"{own.ms[cause]:.0f} of {own.idle_ms:.0f} ms"
    what = "what the GPU is idle for most" if len(before.kernels) else "no GPU worked; what took longest"
    yield f"{what}: {CAUSES[cause]}, {most}"


def bus_is_fast(bus: pd.DataFrame, before: Report) -> Iterator[Claim | str]:
    """The loader's waits are not the bus's; ``bus``: milliseconds of an epoch over it, FP32 in the first row."""
    bus_ms, waits_ms = float(bus["ms from pinned memory"][0]), budget(before).ms["loader"]
    yield f"An epoch in FP32: {bus_ms:.1f} ms on the bus, {waits_ms:.0f} ms idle for the loader."
    yield Claim(
        "the bus needs less than a tenth of the time that the loader costs", bus_ms < 0.1 * waits_ms,
        [round(bus_ms, 1), round(waits_ms, 1)],
        because="the bus is narrow (few lanes, an older generation), or the loader keeps up",
        so=f"without a loader, an epoch in FP32 over the bus would still take {bus_ms:.0f} ms",
    )  # fmt: skip


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


def each_once(batches: Sequence[Sequence[int]], digits: int) -> Iterator[Claim | str]:
    """The shuffle keeps the recipe; ``batches``: the numbers of the digits in each."""
    drawn, sizes = sorted(number for batch in batches for number in batch), [len(batch) for batch in batches]
    yield Claim("every digit comes once", drawn == list(range(digits)))
    yield Claim("no batch is larger than 1,024", max(sizes) == BATCH and sum(sizes) == digits)


def same_work_no_loader(reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """From the first report to the last: no waits for a loader, less idle time, the same work of the GPU."""
    first, *_, last = (budget(report) for report in reports.values())
    loader = last.fractions["loader"]
    yield Claim("the epoch no longer waits for a loader", loader < 0.01, loader)
    yield Claim(
        "the GPU idles for less than half as long as it did", last.idle_ms < 0.5 * first.idle_ms,
        [round(first.idle_ms, 1), round(last.idle_ms, 1)],
        because="the loader was not what it waited for, or the CPU launches too slowly",
        so=f"{last.idle_ms:.0f} ms of an epoch are idle still; the table below names the causes",
    )  # fmt: skip
    busy_ms = {name: round(idle(report).busy_ms, 1) for name, report in reports.items()}
    was_ms, *_, now_ms = busy_ms.values()
    yield Claim(
        "the GPU does the same work as before, within 15 %", abs(now_ms - was_ms) < 0.15 * was_ms, busy_ms,
        because="a laptop changes its clock, a shared GPU works for others too",
        so=f"of the epoch's change, {was_ms - now_ms:.0f} ms are the GPU's own work",
    )  # fmt: skip


def loader_gained(made: Comparison) -> Iterator[Claim | str]:
    """What was gained, against the bound of the loader, and which rows of the budget shrank."""
    loader_ms, gained_ms, removed_ms = made.bounds["loader"].at_most_ms, made.gained_ms, made.removed_ms("loader")
    yield f"At most {loader_ms:.0f} of {made.before.window.duration_ms:.0f} ms; gained: {gained_ms:.0f} ms."
    yield Claim(
        "the loader's waits made up most of what was gained", removed_ms > 0.5 * gained_ms, removed_ms,
        because="the loader kept up here, and what else the diff changed counts for more",
        so="read in the table which rows shrank: those are what you gained from",
    )  # fmt: skip
    yield Claim(
        "the epoch is more than half of the loader's bound shorter", gained_ms > 0.5 * loader_ms, gained_ms,
        because="another cause took the loader's place: launches, or the kernels themselves",
        so=f"{gained_ms:.0f} of {loader_ms:.0f} ms came; the table names what took the rest",
    )  # fmt: skip
    past_ms = gained_ms - loader_ms
    yield f"the gain is {abs(past_ms):.0f} ms {'beyond' if past_ms > 0 else 'short of'} the bound of the loader"
    most = sorted(made.shrank_ms.items(), key=lambda one: -one[1])[:4]
    yield ", ".join(f"{CAUSES[cause]}: {ms:.0f} ms less" for cause, ms in most if ms > 0.5) or "nothing less"


def as_fast(slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """An epoch without the profiler, and each part of the process, by the clock."""
    yield f"A training epoch without the profiler: {epoch_ms(slow):.0f} ms before, {epoch_ms(fast):.0f} ms after."
    parts = {"training loop": "training_s", "tests": "test_s", "whole process": "process_s"}
    for part, field in parts.items():
        yield f"{part}, {len(fast[0]['epochs'])} epochs: {compared(slow, fast, field)}"


def loop_and_tests_gain(slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """Training became faster, and the tests much faster."""
    loop, tests = (paired(slow, fast, field).median for field in ("training_s", "test_s"))
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


def with_and_without_profiler(
    before: Report, after: Report, slow: Sequence[dict], fast: Sequence[dict]
) -> Iterator[Claim | str]:
    """How many times as fast an epoch became, in the reports and in the timed runs."""
    profiled = idle(before).window.duration_ms / idle(after).window.duration_ms
    unseen = epoch_ms(slow) / epoch_ms(fast)
    yield f"profiled, the epoch is {profiled:.1f} times as fast; without: {unseen:.1f} times"


def process_gains(slow: Sequence[dict], fast: Sequence[dict]) -> Iterator[Claim | str]:
    """The whole process became faster, and much of what is left is its start."""
    whole, loop = (paired(slow, fast, field).median for field in ("process_s", "training_s"))
    yield Claim(
        "the process gains in total", whole > 1.1, whole,
        because="a run of few epochs is mostly start-up, which this step hardly changes",
        so=f"the loop alone is {loop:.1f} times as fast: more epochs show more of it",
    )  # fmt: skip
    run = sorted(fast, key=lambda record: record["process_s"])[len(fast) // 2]
    yield f"starting up is {100 * run['startup_s'] / run['process_s']:.0f} % of the process now"


def accuracy_kept(baseline: Sequence[float], opt4: Sequence[float]) -> Iterator[Claim | str]:
    """The step passes the gate: test accuracies of both, one a seed."""
    yield accuracy.keeps("opt4", baseline, opt4)


def memory(peak_mb: Sequence[float], samples: int) -> Iterator[Claim | str]:
    """What the data take on the GPU; ``peak_mb``: before and after, ``samples``: to train and to test."""
    reckoned_mb, (was_mb, now_mb) = samples * (PIXELS + LABEL) / 1e6, peak_mb
    yield f"Reckoned: {reckoned_mb:.1f} MB."
    yield f"Peak of PyTorch's tensors: {was_mb:.0f} MB before, {now_mb:.0f} MB after."
    yield Claim(
        "the peak grew by less than three times the data", now_mb - was_mb < 3 * reckoned_mb, now_mb - was_mb,
        because="libraries choose other algorithms, with other working space, where memory is ample",
        so="look at torch.cuda.memory_summary() before you blame the data",
    )  # fmt: skip


def bus_could_carry(gb_per_s: float, digits: int, fast: Sequence[dict]) -> Iterator[Claim | str]:
    """What the bus could carry in an epoch as short as ``fast`` made it."""
    took_ms = epoch_ms(fast)
    could_mb, bytes_mb = gb_per_s * took_ms, digits * PIXELS / 1e6
    yield f"{took_ms:.0f} ms an epoch, {gb_per_s:.0f} GB/s: time for {could_mb:,.0f} MB."
    yield f"Our digits as bytes: {bytes_mb:.1f} MB, {100 * bytes_mb / could_mb:.1f} % of that."
    yield Claim(
        "the bus could carry the digits of an epoch ten times over", could_mb > 10 * bytes_mb, could_mb,
        because="the bus is narrow: few lanes, or an older generation",
        so=f"it carries them {could_mb / bytes_mb:.1f} times: data that stay with the host cost more",
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


# --- exercises ------------------------------------------------------------------------------------------------


def _gb_per_s(runs: Sequence[dict], pixel_bytes: float = PIXELS) -> float:
    epoch_s = statistics.median(epoch["training_s"] for record in runs for epoch in record["epochs"][1:])
    return runs[0]["train_samples"] * pixel_bytes / epoch_s / 1e9


PACE = Number(
    BOUND,
    "The bytes of all digits, a byte a pixel, over the seconds of an epoch; in GB.",
    right=_gb_per_s,
    wrong={
        "that is with numbers of four bytes: the digits cross as bytes": lambda runs: _gb_per_s(runs, 4 * PIXELS),
        "those are MB: a GB has a thousand of them": lambda runs: 1e3 * _gb_per_s(runs),
        "that is in Gbit/s: a byte has eight bits": lambda runs: 8 * _gb_per_s(runs),
        "that is a pixel a digit: it has 28 · 28": lambda runs: _gb_per_s(runs, 1),
        "those are the bytes alone, in MB: over how many seconds do they cross?": lambda runs: (
            runs[0]["train_samples"] * PIXELS / 1e6
        ),
    },
)


def _try_epoch_batches(epoch_batches: Callable) -> str | None:
    import torch  # here and below: the recorded labs need none

    images = torch.arange(50, dtype=torch.uint8).view(50, 1, 1).expand(50, 2, 2).contiguous()
    labels = torch.arange(50)
    torch.manual_seed(0)
    batches = "batches, each of them a pair of images and labels, are"
    first, second = (each_of(epoch_batches(images, labels, 16), batches) for _ in range(2))
    if not all(isinstance(pair, tuple | list) and [*map(torch.is_tensor, pair)] == [True, True] for pair in first):
        return "each batch is a pair: images and labels"
    sizes = [len(own) for _, own in first]
    if max(sizes, default=0) > 16:
        return f"a batch of {max(sizes)} where 16 were asked for"
    if sum(sizes) < 50:
        return f"{sum(sizes)} of 50 digits come: the last batch is short, and belongs to the epoch"
    order, again = (torch.cat([own for _, own in epoch]).tolist() for epoch in (first, second))
    if sorted(order) != list(range(50)):
        return "some digits come twice, others never: an epoch draws without replacement"
    if torch.cat([data for data, _ in first])[:, 0, 0].tolist() != order:
        return "images and labels are not in the same order"
    if order == sorted(order):
        return "the digits come in the order of the data set: shuffle them"
    if order == again:
        return "the second epoch has the order of the first: shuffle anew in each"
    return None


def _drawn(order: Callable, only: slice = slice(None)) -> Callable:
    """The batches of an order that is drawn as ``order(torch, count)`` says."""

    def epoch_batches(images, labels, size):
        import torch

        for part in order(torch, len(labels))[only].split(size):
            yield images[part], labels[part]

    return epoch_batches


def _shuffled_apart(images, labels, size):
    import torch

    for part, other in zip(*(torch.randperm(len(labels)).split(size) for _ in range(2)), strict=True):
        yield images[part], labels[other]


def _images_alone(images, labels, size):
    import torch

    return [images[part] for part in torch.randperm(len(labels)).split(size)]


def _randomly(torch, count):
    return torch.randperm(count)


EPOCH_BATCHES = Code(
    "torch.randperm(n) is an order, order.split(size) its parts, and a tensor can be indexed with one.",
    _try_epoch_batches,
    wrong={
        "the last batch is short, and belongs to the epoch": _drawn(_randomly, slice(48)),
        "draws without replacement": _drawn(lambda torch, count: torch.randint(count, (count,))),
        "in the order of the data set": _drawn(lambda torch, count: torch.arange(count)),
        "shuffle anew in each": _drawn(lambda torch, n: torch.randperm(n, generator=torch.Generator().manual_seed(1))),
        "a batch of 50 where 16": lambda images, labels, size: [(images, labels)],
        "each batch is a pair": _images_alone,
        "not in the same order": _shuffled_apart,
    },
)


def _saved_s(runs: Sequence[Sequence[dict]], part: str) -> float:
    """By how many seconds a part of the process became shorter, from the median run of one step to that of the next."""
    before, after = map(median_run, runs)
    return before[part] - after[part]


def _beside_training_pct(before: Sequence[dict], after: Sequence[dict]) -> float:
    saved_s = _saved_s((before, after), "process_s")
    if saved_s <= 0:
        raise NothingToAnswer("the process did not become shorter here")
    return 100 * (1 - _saved_s((before, after), "training_s") / saved_s)


BESIDE_TRAINING = Number(
    READ,
    "Both bars have their lengths beside them and the seconds of training in them: what is left of the difference?",
    right=_beside_training_pct,
    wrong={
        "that is the share that training did gain": lambda b, a: 100 - _beside_training_pct(b, a),
        "that is a share of 1: in per cent it is a hundred times as much": lambda b, a: (
            _beside_training_pct(b, a) / 100
        ),
        "that is the test alone: start-up and the rest changed, too": lambda b, a: (
            100 * _saved_s((b, a), "test_s") / _saved_s((b, a), "process_s")
        ),
        "those are seconds: of the seconds saved, how many per cent?": lambda b, a: (
            _saved_s((b, a), "process_s") - _saved_s((b, a), "training_s")
        ),
    },
    within=0.1,  # read off a picture
)

EXERCISES = {"6.1": PACE, "6.2": EPOCH_BATCHES, "6.3": BESIDE_TRAINING}
