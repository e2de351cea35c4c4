"""How much slower are kernels beside a collective, and how unequal are the ranks? From the ranks' own reports.

A step launches the same kernels again and again. So each kernel is compared with itself: with the same place in another
step, or on the other rank, where no collective ran beside it. By how much it takes longer, for each second in which one
does, waiting for the last rank or not, is the slow-down. Taken off, it leaves each rank's own work of each step, and by
how much the slowest of them lies above the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.phases import named
from stepbudget.ask.ranks import Rank, Ranks
from stepbudget.kernel_names import is_collective

PLACE = ["name", "place"]  # of a kernel in a step


@dataclass(frozen=True)
class Beside:
    """``slowed``: seconds that kernels lose for each second beside a collective. ``spread``: see ``Network``."""

    slowed: float
    spread: float


def latest(n: int) -> float:
    """By how many standard deviations the largest of n lies above the mean, on the average.

    Of normal ones, which do not depend on one another (Blom, "Statistical Estimates and Transformed Beta-Variables",
    1958: the expected largest is near the quantile of (n − 3/8)/(n + 1/4)).
    """
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def measured(found: Ranks, steps: int) -> Beside:
    """Both numbers from the ranks of a run that were profiled for so many steps."""
    table = pd.concat([kernels(rank, steps) for rank in found.ranks], ignore_index=True)
    slowed = slow_down(table)
    own = table.assign(own=table["ns"] - slowed * table["beside_ns"])
    of_each = own.groupby(["step", "rank"])["own"].sum().unstack("rank")
    over = float((of_each.max(axis=1) / of_each.mean(axis=1)).mean() - 1)
    return Beside(slowed, over / latest(len(found.ranks)) if len(found.ranks) > 1 else 0.0)


def slow_down(table: pd.DataFrame) -> float:
    """Seconds that kernels lose for each second in which a collective runs beside them; 0 where none can be compared.

    ``table``: of ``kernels``, of one rank or of several. A kernel without a collective takes what the median of its
    place's takes.
    """
    alone = table[table["beside_ns"] == 0].groupby(PLACE)["ns"].median().rename("alone_ns")
    near = table[table["beside_ns"] > 0].join(alone, on=PLACE).dropna(subset=["alone_ns"])
    lost_ns, over_ns = (near["ns"] - near["alone_ns"]).sum(), near["beside_ns"].sum()
    return max(0.0, float(lost_ns / over_ns)) if over_ns else 0.0


def kernels(rank: Rank, steps: int) -> pd.DataFrame:
    """A rank's kernels other than collectives that each step has equally often.

    Columns: ``rank``, ``step``, ``name`` and ``place`` among those of its name in a step, ``ns``, and ``beside_ns``,
    for how long of it a collective ran on the same GPU.
    """
    table, window = rank.report.kernels, rank.window
    table = table[(table["start"] >= window.start) & (table["end"] <= window.end) & (table["gpu"] == window.gpu)]
    if window.process is not None:
        table = table[table["process"] == window.process]
    collective = named(table["name"], is_collective)
    spans = intervals.from_edges(*(table.loc[collective, edge] for edge in ("start", "end")))
    own = table.loc[~collective].sort_values("start")
    count = own.groupby("name")["start"].transform("size")
    own, a_step = own[count % steps == 0], (count // steps)[count % steps == 0]
    number = own.groupby("name").cumcount()
    return pd.DataFrame(
        {
            "rank": rank.number,
            "step": number // a_step,
            "name": own["name"],
            "place": number % a_step,
            "ns": (own["end"] - own["start"]).astype(float),
            "beside_ns": [
                float(intervals.total(intervals.clip(spans, start, end)))
                for start, end in zip(own["start"], own["end"], strict=True)
            ],
        }
    ).astype({"ns": float, "beside_ns": float, "step": np.int64, "place": np.int64})
