"""The exercises of lab 6."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from labkit.checks import answer_function, answer_number

PIXELS = 28 * 28


def _pace_gb_per_s(number: str, answer: float | None, runs: Sequence[dict]) -> bool:
    epoch_s = statistics.median(epoch["training_s"] for record in runs for epoch in record["epochs"][1:])
    right = runs[0]["train_samples"] * PIXELS / epoch_s / 1e9
    hint = "The bytes of all digits, a byte a pixel, over the seconds of an epoch; in GB."
    return answer_number(number, answer, right, hint)


def _epoch_batches(number: str, answer: Callable | None) -> bool:
    images = torch.arange(50, dtype=torch.uint8).view(50, 1, 1).expand(50, 2, 2).contiguous()
    labels = torch.arange(50)

    def trial(epoch_batches: Callable) -> str | None:
        torch.manual_seed(0)
        first, second = (list(epoch_batches(images, labels, 16)) for _ in range(2))
        if [len(pair) for pair in first] != [2] * len(first):
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

    return answer_function(number, answer, trial)


EXERCISES = {"6.1": _pace_gb_per_s, "6.2": _epoch_batches}
