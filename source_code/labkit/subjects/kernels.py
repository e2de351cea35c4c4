"""What do records of benchmarks of kernels of one's own hold, and what does a multiprocessor hold of a kernel?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

WARPS_A_BLOCK = 32  # at most
REGISTERS = 65_536  # of a multiprocessor, 4 bytes each


def rows(records: Sequence[dict], what: str) -> pd.DataFrame:
    """The rows of one kind, of the first record: its rounds are inside. Empty where there are none."""
    return pd.DataFrame([row for row in records[0]["rows"] if row["what"] == what])


def timed(records: Sequence[dict], what: str, keys: Sequence[str]) -> pd.DataFrame:
    """µs by ``keys``, a column for each way; NaN where it was refused."""
    found = rows(records, what)
    return found.pivot(index=list(keys), columns="way", values="us").reindex(columns=found["way"].unique())


def one_block(records: Sequence[dict]) -> pd.DataFrame:
    """The chains of one block a multiprocessor: of two, each counts its own clocks while the other may run or wait."""
    found = rows(records, "chains")
    return found[found["warps"] <= WARPS_A_BLOCK] if len(found) else found


def warps_that_fit(registers: int, warps_a_block: int, most: int = 64) -> int:
    """Warps of a multiprocessor whose registers suffice: whole blocks of threads with so many registers each.

    A warp gets registers in units of 256, that is 8 a thread (Nsight Compute's occupancy calculator).
    """
    each = -(-registers // 8) * 8 * 32 * warps_a_block
    return min(most // warps_a_block, REGISTERS // each) * warps_a_block
