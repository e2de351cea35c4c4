"""What lab 20 claims: what health looks like, and what proves that a patient has what the table of words names."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from labkit.checks import Claim
from stepbudget.ask.budget import budget
from stepbudget.ask.copies import copies
from stepbudget.ask.idle import idle
from stepbudget.report import Report


def healthy_is_busy(healthy: Report) -> Iterator[Claim | str]:
    """The GPU of a healthy program hardly idles."""
    idle_share = idle(healthy).idle_share
    yield Claim(
        "the healthy program keeps the GPU busy for more than four fifths of the time", idle_share < 0.2, idle_share,
        because="without a GPU there are no kernels, and a slow CPU is late even with a graph",
        so="take the recorded report (LAB_MODE=recorded) as the picture of health",
    )  # fmt: skip


def pinned_is_faster(pageable: Report, pinned: Report) -> Iterator[Claim | str]:
    """Batches of pinned memory reach the GPU much faster than those of pageable memory: a program of each kind."""
    own, other = _to_the_gpu(pageable), _to_the_gpu(pinned)
    found = f"{own['gb_per_s']:.1f} against {other['gb_per_s']:.1f} GB/s"
    yield Claim("pinned, the copies are over three times as fast", other["gb_per_s"] / own["gb_per_s"] > 3, found)
    yield f"{found}: from pinned memory, the same bytes would take {own['mb'] / other['gb_per_s']:.0f} ms."


def _to_the_gpu(report: Report) -> pd.Series:
    """A report's copies to the GPU, the first row of them."""
    rows = copies(report)
    return rows[rows["direction"] == "host to device"].iloc[0]


def norms_are_fetched(waiting: Report) -> Iterator[Claim | str]:
    """What comes back from the GPU in three steps are norms, one by one; without any idle time: at most how fast?"""
    found, rows = budget(waiting), copies(waiting)
    fetched = int(rows.loc[rows["direction"] == "device to host", "count"].sum())
    norms = int(waiting.kernels["name"].str.contains("NormTwoOps").sum())
    yield Claim("a norm is computed for each number that is fetched", fetched == norms, norms)
    bound = found.window.duration_ms / (found.window.duration_ms - found.idle_ms)
    yield f"{fetched} numbers come back in three steps. Without any idle time: at most {bound:.1f} times as fast."


def advice_is_right(rounds: pd.DataFrame) -> Iterator[Claim | str]:
    """The first finding of the advice is nearly always right; a row a patient."""
    named = int(rounds["right"].sum())
    yield Claim("of at least eight the first finding is right", named >= 8, named)
