"""Lab 20: what ails ten programs? Reports under a number, scripts, and the words for a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from labkit.checks import Claim
from labkit.labs.lab20 import patients
from labkit.labs.lab20.exercises import EXERCISES
from labkit.labs.lab20.patients import in_backward, report, rounds, script, ward, words
from labkit.predictions import Guess
from labkit.subjects import bounds
from stepbudget.ask.budget import Budget, budget
from stepbudget.ask.copies import copies
from stepbudget.ask.idle import idle
from stepbudget.report import Report

# --- what it claims -----------------------------------------------------------------------------------------


def healthy_is_busy(healthy: Report) -> Iterator[Claim | str]:
    """The GPU of a healthy program hardly idles."""
    idle_share = idle(healthy).idle_share
    yield Claim(
        "the healthy program keeps the GPU busy for more than four fifths of the time", idle_share < 0.2,
        f"{100 * (1 - idle_share):.0f} % busy",
        because="without a GPU there are no kernels, and a slow CPU is late even with a graph",
        so="take the recorded report (LAB_MODE=recorded) as the picture of health",
    )  # fmt: skip


def pinned_is_faster(pageable: Report, pinned: Report) -> Iterator[Claim | str]:
    """Batches of pinned memory reach the GPU much faster than those of pageable memory: a program of each kind."""
    own, other = _to_the_gpu(pageable), _to_the_gpu(pinned)
    found = f"{own['gb_per_s']:.1f} against {other['gb_per_s']:.1f} GB/s"
    yield Claim("pinned, the copies are over three times as fast", other["gb_per_s"] / own["gb_per_s"] > 3, found)
    yield f"{found}: from pinned memory, the same bytes would take {own['mb'] / other['gb_per_s']:.0f} ms."


def _to_the_gpu(own: Report) -> pd.Series:
    """A report's copies to the GPU, the first row of them."""
    rows = copies(own)
    return rows[rows["direction"] == "host to device"].iloc[0]


def norms_are_fetched(waiting: Report) -> Iterator[Claim | str]:
    """What comes back from the GPU in three steps are norms, one by one; without any idle time: at most how fast?"""
    found, rows = budget(waiting), copies(waiting)
    fetched = int(rows.loc[rows["direction"] == "device to host", "count"].sum())
    norms = int(waiting.kernels["name"].str.contains("NormTwoOps").sum())
    yield Claim("a norm is computed for each number that is fetched", fetched == norms, norms)
    bound = found.window.duration_ms / (found.window.duration_ms - found.idle_ms)
    yield f"{fetched} numbers come back in three steps. Without any idle time: at most {bound:.1f} times as fast."


def advice_is_right(found: pd.DataFrame) -> Iterator[Claim | str]:
    """The first finding of the advice is nearly always right; a row a patient."""
    named = int(found["right"].sum())
    yield Claim("the first finding is right about at least eight", named >= 8, named)


# --- what it asks before it shows ---------------------------------------------------------------------------


def _idling(budgets: Mapping[str, Budget]) -> int:
    """How many programs leave the GPU idle for more than a third of the time?"""
    return sum(one.idle_ms > one.window.duration_ms / 3 for one in budgets.values())


def _ill(found: pd.DataFrame) -> pd.DataFrame:
    return found[found["cause"] != "healthy"]


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
        "patients that the advice is right about", " of ten", lambda found: int(found["right"].sum()),
        wrong={
            "That's all of them, and you have met one whose first finding names the symptom.": len,
            "That leaves out the healthy. The advice is right about them if nothing it finds is worth a tenth.": (
                lambda found: int(_ill(found)["right"].sum())
            ),
        },
    ),
}  # fmt: skip
