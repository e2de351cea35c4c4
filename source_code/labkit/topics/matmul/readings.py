"""What do the records of ``bench_matmul.py`` and ``bench_wmma.py`` say?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from labkit import source
from labkit.source import kinds

HOW_TO_INSTALL = "pip install cuda-bindings; Triton comes with PyTorch's builds for Linux"
CUT = re.compile(r"^mma\.sync\.aligned\.(?=row|col)")


def median_rows(records: Sequence[dict], what: str, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of one kind out of the records of a benchmark: each number the median over the records."""
    rows = pd.DataFrame([row for record in records for row in record["rows"] if row["what"] == what])
    numbers = [name for name in rows if name.endswith(("_us", "_tflops", "_error_of_bound")) and "range" not in name]
    return rows.groupby(list(keys), sort=False)[numbers].median().reset_index()


def in_cuda() -> list[dict]:
    """The records of ``bench_wmma.py``; the shipped ones where what compiles CUDA C++ is not installed."""
    return source.current().get(
        replace(kinds.benchmark("bench_wmma.py"), packages=("triton", "cuda.bindings"), install=HOW_TO_INSTALL)
    )


def instructions(records: Sequence[dict]) -> list[str]:
    """The instructions that multiply in WMMA's kernels, by name.

    WMMA's names begin ``wmma.mma.sync``, and say how the factors lie before they say a size; early records
    keep them without the first word.
    """
    names = {name for row in records[0]["rows"] for name in row.get("instructions", ())}
    return sorted(CUT.sub("wmma.mma.sync.aligned.", name) for name in names)


def fp16_over_bf16(records: Sequence[dict]) -> float:
    """How many times as fast the same WMMA kernel is in FP16 as in BF16; not a number where a GPU has no BF16."""
    rows = [row for record in records for row in record["rows"] if row["what"] in ("way", "bf16")]
    shorter = {row["way"] for row in rows if row["what"] == "bf16"}
    took = pd.DataFrame([row for row in rows if row["way"] in shorter] or rows).groupby("what")["product_us"].median()
    return float(took.get("bf16", float("nan")) / took["way"])


def narrow_type(records: Sequence[dict]) -> str:
    """The 16-bit type in which sizes and tiles were compared: BF16, or FP16 where the GPU has no BF16."""
    return next(row["dtype"] for row in records[0]["rows"] if row["what"] == "size")


def tile_of(program: int, down: int, across: int, group: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, by the rule of ``labkit.kernels.matmul``."""
    first = program // (group * across) * group
    height = min(down - first, group)
    within = program % (group * across)
    return first + within % height, within // height


def lines_read(size: int, group: int, programs: int, tile: tuple[int, int]) -> int:
    """Rows of A and columns of B, of ``size`` each, that the first so many programs read between them."""
    down, across = size // tile[0], size // tile[1]
    places = [tile_of(program, down, across, group) for program in range(programs)]
    rows, columns = ({place[side] for place in places} for side in (0, 1))
    return tile[0] * len(rows) + tile[1] * len(columns)
