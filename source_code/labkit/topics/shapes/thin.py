"""What does the batch cost, a layer and a whole training step? The rows of ``bench_thin.py``.

Its products are read as those of ``bench_shapes.py`` (``readings.products``).
"""

from __future__ import annotations

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.shapes.charts import WORDS


def training_steps(record: dict) -> pd.DataFrame:
    """Training steps by ``batch`` and ``dtype``: ``us``, ``low_us``, ``high_us``, ``us_a_sample``.

    ``more_pct``: how much longer a sample takes than in the best batch of this type.
    """
    found = pd.DataFrame([row for row in record["rows"] if row["what"] == "step"]).drop(columns="what")
    found["us_a_sample"] = found["us"] / found["batch"]
    best = found.groupby("dtype")["us_a_sample"].transform("min")
    return found.assign(more_pct=100 * (found["us_a_sample"] / best - 1))


def by_batch(products: pd.DataFrame, record: dict, dtype: str) -> pd.DataFrame:
    """Microseconds by batch in one type: a linear layer's three products, and the ``step`` of the network."""
    own = products[products["part"].str.startswith("batch") & (products["dtype"] == dtype)]
    own = own.assign(batch=own["k"].where(own["varied"] == "k", own["m"]), part=own["part"].str.removeprefix("batch "))
    steps = training_steps(record)
    steps = steps[steps["dtype"] == dtype].set_index("batch")["us"].rename("step")
    return own.pivot(index="batch", columns="part", values="us").join(steps)


def batches(found: pd.DataFrame, dtype: str) -> Table:
    """``by_batch`` as a table."""
    frame = found.add_suffix(" µs").reset_index()
    measured = list(frame)[1:]
    caption = f"By batch, {WORDS[dtype]}: the products of a layer of 4096 × 4096, and a step of our network"
    return table(frame, caption, dict.fromkeys(measured, "{:,.1f}") | {"batch": "{}"}, measured)
