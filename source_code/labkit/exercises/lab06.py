"""The exercises of lab 6: the pace that a bus would have to keep, the batches of an epoch, and a bar that shrank."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, each_of

PIXELS = 28 * 28


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
    before, after = (sorted(own, key=lambda record: record["process_s"])[len(own) // 2] for own in runs)
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
