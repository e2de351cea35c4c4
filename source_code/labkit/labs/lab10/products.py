"""How fast is a matrix product of one's own beside cuBLAS, by size, tile, order of tiles, type and way to write it?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from labkit import source
from labkit.display import style
from labkit.source import kinds
from labkit.subjects.roofline import DTYPE_WORDS, Peaks
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table

if TYPE_CHECKING:
    from torch import Tensor

HOW_TO_INSTALL = "pip install cuda-bindings; Triton comes with PyTorch's builds for Linux"
CUT = re.compile(r"^mma\.sync\.aligned\.(?=row|col)")
SMALL = 8.5  # points
HALO = [withStroke(linewidth=2.5, foreground=style.PAPER)]  # a line behind words stops at them
ON_BAR = {"textcoords": "offset points", "ha": "center", "size": SMALL - 1, "path_effects": HALO}
WAYS = {"triton": ("our Triton kernel", style.BLUE), "cublas": ("cuBLAS", style.GREEN)}


SIZE = ["rows", "columns", "inner"]
FORMATS = {  # how a table's columns are written, by their headings
    **dict.fromkeys(["Triton µs", "cuBLAS µs"], "{:,.1f}"),
    **dict.fromkeys(["Triton / cuBLAS", "WMMA / cuBLAS", "error / bound", "WMMA error / bound"], "{:.2f}"),
    **dict.fromkeys(["TFLOP/s", "WMMA TFLOP/s", "Triton TFLOP/s", "cuBLAS TFLOP/s", "% of cuBLAS"], "{:.0f}"),
    **{"µs": "{:,.0f}", "multiplications for each number read": "{:.0f}"},
}


def _table(columns: Mapping[str, Sequence], caption: str) -> Table:
    return table(pd.DataFrame(columns), caption, {name: FORMATS[name] for name in columns if name in FORMATS})


def _rows(records: Sequence[dict], *what: str) -> pd.DataFrame:
    """The rows of these kinds out of the records of a benchmark, one after another."""
    return pd.DataFrame([row for record in records for row in record["rows"] if row["what"] in what])


def median_rows(records: Sequence[dict], what: str, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of one kind out of the records of a benchmark: each number the median over the records."""
    rows = _rows(records, what)
    numbers = [name for name in rows if name.endswith(("_us", "_tflops", "_error_of_bound")) and "range" not in name]
    return rows.groupby(list(keys), sort=False)[numbers].median().reset_index()


def narrow_type(records: Sequence[dict]) -> str:
    """The 16-bit type in which sizes and tiles were compared: BF16, or FP16 where the GPU has no BF16."""
    return next(row["dtype"] for row in records[0]["rows"] if row["what"] == "size")


def by_size(records: Sequence[dict]) -> pd.DataFrame:
    """Triton's and cuBLAS's times, rates and errors, by (rows, columns, inner)."""
    return median_rows(records, "size", SIZE).set_index(SIZE)


def by_tile(records: Sequence[dict]) -> pd.DataFrame:
    """The same product: a row a ``tile`` and ``group``, the rows of tiles that are made together."""
    return median_rows(records, "tile", ["tile", "group"])


def by_type(records: Sequence[dict]) -> pd.DataFrame:
    """The same small tile in each type: its rates, and under ``told`` its kernel's multiplying instructions."""
    told = {row["dtype"]: " ".join(row["instructions"]) for row in records[0]["rows"] if row["what"] == "type"}
    return median_rows(records, "type", ["dtype"]).set_index("dtype").assign(told=pd.Series(told))


def by_way(records: Sequence[dict]) -> pd.DataFrame:
    """One product in CUDA C++, Triton and cuBLAS: a row a ``way``, the simplest first; records of ``bench_wmma.py``."""
    return median_rows(records, "way", ["way"])


def gain_of_order_pct(tiles: pd.DataFrame) -> float:
    """By how many per cent 8 rows of tiles together are faster than row by row; ``tiles`` as by ``by_tile``."""
    together, alone = (tiles[tiles["group"] == group].set_index("tile")["triton_tflops"] for group in (8, 1))
    return float(100 * ((together / alone).dropna().median() - 1))


# --- by tile, on the pretend GPU -----------------------------------------------------------------------------


def with_tiles(a: Tensor, b: Tensor, blocks: Sequence[int]) -> Table:
    """``a @ b`` by lab 10's kernel on the pretend GPU, with each of these square tiles: what it reads, how far off."""
    import torch

    from labkit.kernels.matmul import _matmul, error_bound  # the page chooses Triton's interpreter first
    from labkit.pretend.triton import launch

    (down, inner), across, bound, rows = a.shape, b.shape[1], error_bound(a, b), []
    for block in blocks:
        c = torch.full((down, across), torch.nan, dtype=a.dtype)
        programs = -(-down // block) * -(-across // block)
        tile = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": 16, "GROUP": 8}
        work = launch(_matmul, (programs,), a, b, c, down, across, inner, *a.stride(), *b.stride(), **tile)
        off = ((c.double() - a.double() @ b.double()).abs() / bound).max().item()
        reuse = down * across * inner / work.loaded
        rows.append((f"{block} × {block}", work.programs, work.loaded, reuse, off))
    columns = ["tile", "programs", "numbers read", "multiplications a number", "error / bound"]
    caption = f"One product of {down} × {inner} and {inner} × {across} numbers, with larger and larger tiles"
    formats = {"numbers read": "{:,}", "multiplications a number": "{:.1f}", "error / bound": "{:.2f}"}
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


# --- by size, and by tile ------------------------------------------------------------------------------------


def sizes(records: Sequence[dict]) -> Table:
    """Triton beside cuBLAS by size: time, rate, how far off."""
    chosen = _rows(records, "size").groupby(SIZE)["tile"]  # autotuning may choose differently in each run
    tiles = chosen.agg(lambda own: " or ".join(sorted(set(own))).replace(" x ", "×"))
    found = median_rows(records, "size", SIZE).join(tiles, on=SIZE)
    columns = {
        "rows × columns × inner": _size(found),
        "Triton / cuBLAS": found["triton_tflops"] / found["cublas_tflops"],
        "tile": found["tile"],
        "Triton µs": found["triton_us"],
        "cuBLAS µs": found["cublas_us"],
        "Triton TFLOP/s": found["triton_tflops"],
        "cuBLAS TFLOP/s": found["cublas_tflops"],
        "error / bound": found["triton_error_of_bound"],
    }
    dtype = DTYPE_WORDS[narrow_type(records)]
    return _table(columns, f"A matrix product in {dtype}: medians over the runs, GPU time")


def _size(found: pd.DataFrame) -> pd.Series:
    return found[SIZE].astype(str).agg(" × ".join, axis=1)


def rates(records: Sequence[dict], peaks: Peaks) -> Figure:
    """TFLOP/s by size, Triton beside cuBLAS, under the roof that this GPU's fastest product sets."""
    found = median_rows(records, "size", SIZE)
    names = [
        f"{row.rows:,}" if row.rows == row.columns == row.inner else f"{row.rows:,} ×\n{row.columns:,} ×\n{row.inner:,}"
        for row in found.itertuples()
    ]
    with style.house_style():
        fig = style.figure(3.8)
        ax = fig.subplots()
        places = np.arange(len(names))
        for offset, (way, (label, colour)) in zip((-0.2, 0.2), WAYS.items(), strict=True):
            heights = found[f"{way}_tflops"]
            ax.bar(places + offset, heights, 0.38, color=tint(colour, 0.75), label=label, lw=0)
            for x, height in zip(places + offset, heights, strict=True):
                ax.annotate(f"{height:.0f}", (x, height), (0, 2), **ON_BAR)
        dtype = narrow_type(records)
        roof, name = peaks.rate(dtype), DTYPE_WORDS[dtype]
        ax.axhline(roof, color=style.VERMILION, lw=1.4)
        where = {"textcoords": "offset points", "ha": "left", "va": "bottom", "size": SMALL}
        ax.annotate(f"{name} roof: {roof:.0f} TFLOP/s", (-0.5, roof), (2, 3), color=style.VERMILION, **where)
        ax.set_xticks(places, names, size=SMALL)
        highest = max(roof, found["triton_tflops"].max(), found["cublas_tflops"].max())
        ax.set(ylabel="TFLOP/s", ylim=(0, 1.15 * highest), xlim=(-0.6, len(names) - 0.4))
        ax.tick_params(axis="x", length=0)
        ax.set_title(f"A matrix product in {name}, by size (medians): rows = columns = inner, or as written")
        ax.legend(loc="upper left", bbox_to_anchor=(0, 0.86), fontsize=SMALL + 0.5)
    return fig


def tiles(records: Sequence[dict]) -> Table:
    """The same product by the size of its tiles, and by the order in which they are made."""
    found = median_rows(records, "tile", ["tile", "warps", "stages", "group"])
    sides = [[int(side) for side in tile.split(" x ")] for tile in found["tile"]]
    columns = {
        "tile": found["tile"].str.replace(" x ", "×"),
        "rows of tiles together": found["group"],
        "multiplications for each number read": [m * n / (m + n) for m, n, _ in sides],
        "µs": found["triton_us"],
        "TFLOP/s": found["triton_tflops"],
    }
    size, dtype = records[0]["size"], DTYPE_WORDS[narrow_type(records)]
    return _table(columns, f"{size:,} × {size:,} × {size:,} in {dtype}, by tile")


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


def orders(sizes: Sequence[int], programs: int = 132, tile: tuple[int, int] = (128, 256)) -> Table:
    """What the programs that run at once read, row of tiles by row of tiles and eight rows together: reckoned."""
    rows = [(size, *(lines_read(size, group, programs, tile) for group in (1, 8))) for size in sizes]
    columns = ["size", "row by row", "8 rows together"]
    caption = f"Rows and columns that {programs} programs read (reckoned, not measured)"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns, "{:,.0f}"))


# --- by type, and in CUDA C++ --------------------------------------------------------------------------------


def types(records: Sequence[dict]) -> Table:
    """The same tile in each type: which instructions multiply, and how fast."""
    found = median_rows(records, "type", ["dtype"])
    told = {row["dtype"]: row["instructions"] for row in records[0]["rows"] if row["what"] == "type"}
    said = [", ".join(f"{count} {name}" for name, count in told[dtype].items()) for dtype in found["dtype"]]
    columns = {
        "type": found["dtype"],
        "instructions that multiply": said,
        "Triton TFLOP/s": found["triton_tflops"],
        "cuBLAS TFLOP/s": found["cublas_tflops"],
    }
    size = records[0]["size"]
    return _table(columns, f"{size:,} × {size:,} × {size:,}, one small tile in each type")


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
    rows = _rows(records, "way", "bf16")
    shorter = rows["way"].isin(rows.loc[rows["what"] == "bf16", "way"])
    took = (rows[shorter] if shorter.any() else rows).groupby("what")["product_us"].median()
    return float(took.get("bf16", float("nan")) / took["way"])


def ways(records: Sequence[dict]) -> Table:
    """One product in CUDA C++, each kernel with one thing more than the one above it; Triton and cuBLAS below."""
    found = median_rows(records, "way", ["way"])
    columns = {
        "product": found["way"],
        "µs": found["product_us"],
        "TFLOP/s": found["product_tflops"],
        "% of cuBLAS": 100 * found["product_tflops"] / found.set_index("way")["product_tflops"]["cuBLAS"],
        "error / bound": found["product_error_of_bound"],
    }
    size = records[0]["size"]
    return _table(columns, f"{size:,} × {size:,} × {size:,} in FP16, way by way")


def sizes_in_cuda(records: Sequence[dict]) -> Table:
    """WMMA, Triton and cuBLAS by size, smallest first, each with the fastest of its tiles: their shares of cuBLAS."""
    found = median_rows(records, "size", SIZE)
    found = found.loc[found[SIZE].astype(float).prod(axis=1).sort_values(kind="stable").index]
    columns = {
        "rows × columns × inner": _size(found),
        "WMMA / cuBLAS": found["wmma_tflops"] / found["cublas_tflops"],
        "Triton / cuBLAS": found["triton_tflops"] / found["cublas_tflops"],
        "WMMA TFLOP/s": found["wmma_tflops"],
        "Triton TFLOP/s": found["triton_tflops"],
        "cuBLAS TFLOP/s": found["cublas_tflops"],
        "WMMA error / bound": found["wmma_error_of_bound"],
    }
    return _table(columns, "FP16 by size: medians over the runs, GPU time")
