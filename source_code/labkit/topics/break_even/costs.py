"""What does a step cost before and beside its epochs, and after how many epochs has it paid that back?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


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
    epochs_s = [
        statistics.median(epoch["training_s"] + epoch["test_s"] for epoch in record["epochs"][1:]) for record in records
    ]
    fixed_s = [
        record["process_s"] - len(record["epochs"]) * epoch_s for record, epoch_s in zip(records, epochs_s, strict=True)
    ]
    return Cost(statistics.median(fixed_s), statistics.median(epochs_s))


def break_even(slow: Cost, fast: Cost) -> float:
    """After how many epochs a process of ``fast`` has caught up with one of ``slow``: 0 at once, infinity never."""
    ahead_s, gains_s = fast.fixed_s - slow.fixed_s, slow.epoch_s - fast.epoch_s
    if ahead_s <= 0:
        return 0.0 if gains_s >= 0 else inf
    return ahead_s / gains_s if gains_s > 0 else inf


def in_words(epochs: float) -> str:
    """What ``break_even`` found, for a sentence: ``at once``, ``after ~60 epochs``, ``never``."""
    return "at once" if epochs == 0 else "never" if epochs == inf else f"after ~{epochs:.0f} epochs"


def end_s(records: Sequence[dict]) -> float:
    """Seconds from the last line of a script to the end of its process: the median over its runs."""
    return statistics.median(record["process_s"] - record["wall_s"] for record in records)
