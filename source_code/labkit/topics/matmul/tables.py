"""How fast is a matrix product of one's own, by size, tile and type?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.matmul.readings import lines_read, median_rows, narrow_type
from labkit.topics.roofline.readings import DTYPE_WORDS


def sizes(records: Sequence[dict]) -> Table:
    """Triton beside cuBLAS by size: time, rate, how far off."""
    found = median_rows(records, "size", ["rows", "columns", "inner"])
    tiles = {}  # autotuning may choose differently in each run
    for record in records:
        for row in record["rows"]:
            if row["what"] == "size":
                tiles.setdefault((row["rows"], row["columns"], row["inner"]), []).append(row["tile"])
    sizes = list(zip(found["rows"], found["columns"], found["inner"], strict=True))
    frame = pd.DataFrame(
        {
            "rows × columns × inner": [" × ".join(map(str, size)) for size in sizes],
            "Triton / cuBLAS": found["triton_tflops"] / found["cublas_tflops"],
            "tile": [" or ".join(sorted(set(tiles[size]))).replace(" x ", "×") for size in sizes],
            "Triton µs": found["triton_us"],
            "cuBLAS µs": found["cublas_us"],
            "Triton TFLOP/s": found["triton_tflops"],
            "cuBLAS TFLOP/s": found["cublas_tflops"],
            "error / bound": found["triton_error_of_bound"],
        }
    )
    frame["tile"] = [f"~{tile}" for tile in frame["tile"]]
    formats = dict.fromkeys(["Triton µs", "cuBLAS µs"], "{:,.1f}")
    formats |= dict.fromkeys(["Triton TFLOP/s", "cuBLAS TFLOP/s"], "{:.0f}")
    formats |= dict.fromkeys(["Triton / cuBLAS", "error / bound"], "{:.2f}")
    caption = f"A matrix product in {DTYPE_WORDS[narrow_type(records)]}: medians over the runs, GPU time"
    return table(frame, caption, formats, list(formats))


def tiles(records: Sequence[dict]) -> Table:
    """The same product by the size of its tiles, and by the order in which they are made."""
    found = median_rows(records, "tile", ["tile", "warps", "stages", "group"])
    sides = [[int(side) for side in tile.split(" x ")] for tile in found["tile"]]
    frame = pd.DataFrame(
        {
            "tile": [tile.replace(" x ", "×") for tile in found["tile"]],
            "rows of tiles together": found["group"],
            "multiplications for each number read": [m * n / (m + n) for m, n, _ in sides],
            "µs": found["triton_us"],
            "TFLOP/s": found["triton_tflops"],
        }
    )
    size, dtype = records[0]["size"], DTYPE_WORDS[narrow_type(records)]
    formats = {"µs": "{:,.0f}", "TFLOP/s": "{:.0f}", "multiplications for each number read": "{:.0f}"}
    return table(frame, f"{size:,} × {size:,} × {size:,} in {dtype}, by tile", formats, ["µs", "TFLOP/s"])


def orders(sizes: Sequence[int], programs: int = 132, tile: tuple[int, int] = (128, 256)) -> Table:
    """What the programs that run at once read, row of tiles by row of tiles and eight rows together: reckoned."""
    rows = [(size, *(lines_read(size, group, programs, tile) for group in (1, 8))) for size in sizes]
    columns = ["size", "row by row", "8 rows together"]
    caption = f"Rows and columns that {programs} programs read (reckoned, not measured)"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns, "{:,.0f}"))


def types(records: Sequence[dict]) -> Table:
    """The same tile in each type: which instructions multiply, and how fast."""
    found = median_rows(records, "type", ["dtype"])
    told = {row["dtype"]: row["instructions"] for row in records[0]["rows"] if row["what"] == "type"}
    frame = pd.DataFrame(
        {
            "type": found["dtype"],
            "instructions that multiply": [
                "~" + ", ".join(f"{count} {name}" for name, count in told[dtype].items()) for dtype in found["dtype"]
            ],
            "Triton TFLOP/s": found["triton_tflops"],
            "cuBLAS TFLOP/s": found["cublas_tflops"],
        }
    )
    formats = dict.fromkeys(["Triton TFLOP/s", "cuBLAS TFLOP/s"], "{:.0f}")
    size = records[0]["size"]
    return table(frame, f"{size:,} × {size:,} × {size:,}, one small tile in each type", formats, list(formats))


def ways(records: Sequence[dict]) -> Table:
    """One product in CUDA C++, each kernel with one thing more than the one above it; Triton and cuBLAS below."""
    found = median_rows(records, "way", ["way"])
    of_cublas = found.set_index("way")["product_tflops"]["cuBLAS"]
    frame = pd.DataFrame(
        {
            "product": found["way"],
            "µs": found["product_us"],
            "TFLOP/s": found["product_tflops"],
            "% of cuBLAS": 100 * found["product_tflops"] / of_cublas,
            "error / bound": found["product_error_of_bound"],
        }
    )
    formats = {"µs": "{:,.0f}", "TFLOP/s": "{:.0f}", "% of cuBLAS": "{:.0f}", "error / bound": "{:.2f}"}
    size = records[0]["size"]
    return table(frame, f"{size:,} × {size:,} × {size:,} in FP16, way by way", formats, list(formats))


def in_cuda(records: Sequence[dict]) -> Table:
    """WMMA, Triton and cuBLAS by size, smallest first, each with the fastest of its tiles: their shares of cuBLAS."""
    found = median_rows(records, "size", ["rows", "columns", "inner"])
    work = found["rows"].astype(float) * found["columns"] * found["inner"]
    found = found.loc[work.sort_values(kind="stable").index]
    sizes = zip(found["rows"], found["columns"], found["inner"], strict=True)
    frame = pd.DataFrame(
        {
            "rows × columns × inner": [" × ".join(map(str, size)) for size in sizes],
            "WMMA / cuBLAS": found["wmma_tflops"] / found["cublas_tflops"],
            "Triton / cuBLAS": found["triton_tflops"] / found["cublas_tflops"],
            "WMMA TFLOP/s": found["wmma_tflops"],
            "Triton TFLOP/s": found["triton_tflops"],
            "cuBLAS TFLOP/s": found["cublas_tflops"],
            "error / bound": found["wmma_error_of_bound"],
        }
    )
    formats = dict.fromkeys(["WMMA / cuBLAS", "Triton / cuBLAS", "error / bound"], "{:.2f}")
    formats |= dict.fromkeys(["WMMA TFLOP/s", "Triton TFLOP/s", "cuBLAS TFLOP/s"], "{:.0f}")
    return table(frame, "The same product in FP16 by size: medians over the runs, GPU time", formats, list(formats))
