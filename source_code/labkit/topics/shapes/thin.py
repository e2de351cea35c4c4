"""What does the batch cost a training step? The rows of ``bench_thin.py`` that are no products.

Its products are read as those of ``bench_shapes.py`` (``readings.products``).
"""

from __future__ import annotations

import pandas as pd


def training_steps(record: dict) -> pd.DataFrame:
    """Training steps by ``batch`` and ``dtype``: ``us``, ``low_us``, ``high_us``, ``us_a_sample``.

    ``more_pct``: how much longer a sample takes than in the best batch of this type.
    """
    found = pd.DataFrame([row for row in record["rows"] if row["what"] == "step"]).drop(columns="what")
    found["us_a_sample"] = found["us"] / found["batch"]
    best = found.groupby("dtype")["us_a_sample"].transform("min")
    return found.assign(more_pct=100 * (found["us_a_sample"] / best - 1))
