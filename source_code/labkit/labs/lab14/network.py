"""What does FP16 lose of our own network's gradients, and how many steps does its scaler skip?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from labkit.display import charts
from labkit.subjects.loss_scaling import FIRST_SCALE
from stepbudget.show.table import Table, table

DRAWN = (1, 256, 65536, 2**20)  # of the scales that were tried
BATCH = 1024


def zeros_pct(rows: Sequence[dict], layer: str = "conv1", first: bool = False) -> dict[float, float]:
    """Scale → per cent of a layer's gradients that FP16 makes zero, after the last epoch, or before the ``first``."""
    epoch = (min if first else max)(row["epoch"] for row in rows)
    own = [row for row in rows if (row["epoch"], row["layer"]) == (epoch, layer)]
    return {row["scale"]: 100 * row["zero_share"] for row in own}


def zeros_chart(rows: Sequence[dict]) -> Figure:
    """The share of zeros over the epochs, a panel a layer, with four of the scales."""
    return charts.underflow([row for row in rows if row["scale"] in DRAWN])


def skipped(runs: Sequence[dict]) -> Table:
    """Runs with a scaler, a row each: their steps, the last scale, and how many steps were skipped on the way to it."""
    rows = []
    for record in runs:
        scale = record["extras"]["final_loss_scale"]
        steps = len(record["epochs"]) * -(-record["train_samples"] // BATCH)
        rows.append((steps, scale, round(math.log2(FIRST_SCALE / scale))))
    frame = pd.DataFrame(rows, columns=["steps", "final scale", "skipped steps"])
    return table(frame, "FP16 with GradScaler, a run a row", {"final scale": "{:,.0f}"})
