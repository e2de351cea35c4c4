"""What lab 28 asks its reader to predict: how many epochs reach 99 %, and what share of a process trains."""

from __future__ import annotations

from labkit.labs.lab28.entries import line, trainings
from labkit.predictions import Guess

LADDER_EPOCHS = 10


def _share_pct(record: dict) -> float:
    return 100 * trainings(record)[1] / record["process_s"]


PREDICTIONS = {
    "epochs": Guess(
        "a training of the course's network to 99 %", " epochs", lambda record: record["recipe"]["epochs"],
        wrong={"That's the ladder's training, which ends below 99 %. The recipe is open.": lambda _: LADDER_EPOCHS},
    ),
    "share": Guess(
        "the trainings' share of a process that plays own_kernels", " %", _share_pct,
        wrong={
            "That's one training. All of them count.": (
                lambda record: line(record).training_ms / 10 / record["process_s"]
            ),
            "That's all but the trainings: start, kernels and judging.": lambda record: 100 - _share_pct(record),
        },
    ),
}  # fmt: skip
