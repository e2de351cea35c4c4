"""What do the records of ``bench_matmul.py`` say?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd


def median_rows(records: Sequence[dict], what: str, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of one kind out of the records of ``bench_matmul.py``: each number the median over the records."""
    rows = pd.DataFrame([row for record in records for row in record["rows"] if row["what"] == what])
    numbers = [name for name in rows if name.endswith(("_us", "_tflops", "_error_of_bound")) and "range" not in name]
    return rows.groupby(list(keys), sort=False)[numbers].median().reset_index()


def narrow_type(records: Sequence[dict]) -> str:
    """The 16-bit type in which sizes and tiles were compared: BF16, or FP16 where the GPU has no BF16."""
    return next(row["dtype"] for row in records[0]["rows"] if row["what"] == "size")
