"""What lab 20 asks its reader to predict, and what the usual wrong guesses leave out."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from labkit.labs.lab20 import patients
from labkit.predictions import Guess
from labkit.subjects import bounds
from stepbudget.ask.budget import Budget


def _idling(budgets: Mapping[str, Budget]) -> int:
    """How many programs leave the GPU idle for more than a third of the time?"""
    return sum(one.idle_ms > one.window.duration_ms / 3 for one in budgets.values())


def _ill(rounds: pd.DataFrame) -> pd.DataFrame:
    return rounds[rounds["cause"] != "healthy"]


PREDICTIONS = {
    "idle": Guess(
        "patients whose GPU idles for over a third of the time", " of ten", _idling,
        wrong={
            "That's all that have a fault. A GPU can be busy and its program slow all the same.": (
                lambda budgets: sum(patients.cause(number) != "healthy" for number in patients.numbers())
            ),
        },
    ),
    "times": bounds.guess(
        "patient 1, cured", "pinned_memory", "copies",
        alone="That takes away the copies alone. They also keep the CPU from launching, so the idle time can go, too.",
        idle="That takes away the idle time alone, and a GPU that copies isn't idle.",
        over="That's the whole time over the copies: divide by what is left without them.",
    ),
    "named": Guess(
        "patients that the advice is right about", " of ten", lambda rounds: int(rounds["right"].sum()),
        wrong={
            "That's all of them, and you have met one whose first finding names the symptom.": len,
            "That leaves out the healthy. The advice is right about them if nothing it finds is worth a tenth.": (
                lambda rounds: int(_ill(rounds)["right"].sum())
            ),
        },
    ),
}  # fmt: skip
