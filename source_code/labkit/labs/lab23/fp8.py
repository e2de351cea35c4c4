"""When does FP8 pay? Square products and linear layers of ``bench_fp8.py`` by size, and what bounds the gain."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from stepbudget.show.table import Table, table

SHEET_TFLOPS = {"bf16": 989.0, "fp8": 1979.0}  # dense, of an H200 or H100 SXM, by NVIDIA's data sheets
NAN = float("nan")  # not measured here


def us(record: dict, what: str) -> pd.DataFrame:
    """µs of its ``"product"`` rows or its ``"layers"``: a row a size, a column a way to run it; NaN: refused."""
    size = {"product": "size", "layers": "width"}[what]
    found = pd.DataFrame([row for row in record["rows"] if row["what"] == what]).reindex(columns=[size, "how", "us"])
    return found.pivot(index=size, columns="how", values="us").astype(float)


def products(record: dict) -> Table:
    """TFLOP/s of square products by size, and FP8's gain."""
    found = us(record, "product").reindex(columns=["bf16", "fp8", "fp8 exact sums", "fp8 row-wise"])
    found = found.rdiv(2 * found.index.to_series() ** 3 / 1e6, axis="index")
    found["FP8 times as fast"] = found["fp8"] / found["bf16"]
    names = {"bf16": "BF16", "fp8": "FP8", "fp8 exact sums": "FP8, sums in FP32", "fp8 row-wise": "FP8, a scale a row"}
    found = found.rename(columns=names).rename_axis("size").reset_index()
    formats = dict.fromkeys(names.values(), "{:.0f}") | {"FP8 times as fast": "{:.2f}"}
    return table(found, "Square products, TFLOP/s; FP8 numbers made beforehand", formats)


def layers(record: dict) -> Table:
    """Four linear layers forward and back, in ms, by width."""
    found = us(record, "layers") / 1e3
    names = {
        "bf16": "BF16",
        "fp8": "FP8",
        "bf16 compiled": "BF16 compiled",
        "fp8 compiled": "FP8 compiled",
        "torchao compiled": "torchao compiled",
    }
    found = found.reindex(columns=list(names)).rename(columns=names).rename_axis("width").reset_index()
    caption = "Four linear layers and GELU, 8,192 rows, forward and back: ms"
    return table(found, caption, dict.fromkeys(names.values(), "{:.2f}"))


def bounds(record: dict, width: int) -> Table:
    """How many times as fast FP8 could make the layers of a width, by what one takes into account, and made them.

    By twice the rate; by the measured rates of the square product of that size; with the eight-bit copies, too, of
    three matrices a layer, each made once, in compiled code. NaN where a size was not measured.
    """
    ways = ["fp8", "fp8 exact sums", "bf16"]
    forward, back, plain = us(record, "product").reindex(index=[width], columns=ways).iloc[0]
    casts = {(row["size"], row["how"]): row.get("us") for row in record["rows"] if row["what"] == "cast"}
    cast_us = casts.get((width, "compiled")) or NAN
    rows = [
        ("twice the rate, says the data sheet", SHEET_TFLOPS["fp8"] / SHEET_TFLOPS["bf16"]),
        ("the measured rates of the products", 3 * plain / (forward + 2 * back)),
        ("an estimate: products, and making FP8 numbers", 3 * plain / (forward + 2 * back + 3 * cast_us)),
        ("measured", speedup(record, width)),
    ]
    column = "times as fast"
    frame = pd.DataFrame(rows, columns=["what is counted", column])
    return table(frame, f"FP8 against BF16, both compiled, width {width:,}", {column: "{:.2f}"})


def has_fp8(record: dict) -> bool:
    """Was any product in FP8 measured? Older GPUs than Ada and Hopper have none."""
    return bool(us(record, "product")["fp8"].notna().any())


def speedup(record: dict, width: int, how: str = "compiled") -> float:
    """How many times as fast the layers of a width are in FP8, both ``how``; NaN where one was refused."""
    found, ending = us(record, "layers").loc[width], f" {how}" if how else ""
    return float(found.get(f"bf16{ending}", NAN) / found.get(f"fp8{ending}", NAN))


def small_and_large(record: dict) -> dict[str, float]:
    """How many times as fast FP8 makes layers of width 256 as PyTorch runs them, and of 8,192 compiled.

    And the ``limit``, by the data sheet's rates. Nothing where the GPU has no FP8.
    """
    if not has_fp8(record):
        return {}
    limit = SHEET_TFLOPS["fp8"] / SHEET_TFLOPS["bf16"]
    return {"small": speedup(record, 256, ""), "large": speedup(record, 8192), "limit": limit}


def gains(record: dict) -> Figure:
    """How many times as fast FP8 makes four linear layers, by their width: as PyTorch runs them, and compiled."""
    found = us(record, "layers")
    with style.chart(3.1) as (fig, ax):
        for how, ending, colour in (("as PyTorch runs them", "", style.ORANGE), ("compiled", " compiled", style.BLUE)):
            both = [f"bf16{ending}", f"fp8{ending}"]
            own = found.reindex(columns=both).dropna()
            if len(own):
                ax.plot([str(width) for width in own.index], own[both[0]] / own[both[1]], "o-", color=colour, label=how)
        ax.axhline(1, color=style.MUTED, lw=1)
        limit = SHEET_TFLOPS["fp8"] / SHEET_TFLOPS["bf16"]
        ax.axhline(limit, color=style.GREEN, lw=1.4, ls=":", label="the data sheet's rates")
        ax.set_ylim(0, 1.15 * limit)
        ax.set_xlabel("width of the layers")
        ax.set_ylabel("FP8: times as fast as BF16")
        ax.legend(loc="lower right", fontsize=8.5)
        style.suptitle(fig, "What FP8 gains, four linear layers forward and back")
    return fig
