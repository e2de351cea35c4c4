"""What do the experiments on formats say? Their records as tables."""

from __future__ import annotations

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.formats import readings

KEPT = ("fp32", "bf16 nearest", "bf16 stochastic", "bf16 master")  # ways of which the memory is shown


def trainings(record: dict) -> Table:
    """A row a format: loss, accuracy, what a step left unchanged, time."""
    found = readings.trainings(record)
    names = {
        "format": "format",
        "excess": "nats above the least",
        "more_pct": "more than FP32 %",
        "at_most_pct": "at most %",
        "p": "p",
        "possible_pct": "possible guesses %",
        "step_ms": "ms a step",
    }
    formats = {names["excess"]: "{:.4f}", "p": _p, names["possible_pct"]: "{:.2f}", "ms a step": "{:.1f}"}
    formats |= dict.fromkeys([names["more_pct"], names["at_most_pct"]], "{:+.1f}")
    caption = "Test loss, mean over seeds (at most: with 99 % confidence; p: chance shows as much, were it no worse)"
    return table(found[list(names)].rename(columns=names), caption, formats, list(names.values())[1:])


def memory(record: dict, weights: float = 7e9) -> Table:
    """What each way keeps for a weight, gradient and optimizer's state included, and for a model of so many."""
    found = readings.trainings(record)
    found = found[found["variant"].isin(KEPT)]
    total = f"GB for {weights / 1e9:g} billion"
    rows = found.assign(**{total: found["bytes"] * weights / 1e9, "bytes": found["bytes"].round(2)})
    rows = rows.rename(columns={"bytes": "bytes a weight", "unchanged_pct": "left unchanged late %"})
    rows = rows[["format", "bytes a weight", total, "left unchanged late %"]]
    formats = {"bytes a weight": "{:.0f}", total: "{:.0f}", "left unchanged late %": "{:.0f}"}
    return table(rows, "Weights, gradients and state", formats, ["left unchanged late %"])


def products(record: dict) -> Table:
    """TFLOP/s of square products by size, and FP8's gain."""
    found = readings.products(record).pivot(index="size", columns="how", values="tflops")
    found = found.reindex(columns=["bf16", "fp8", "fp8 exact sums", "fp8 row-wise"]).astype(float)
    found["FP8 times as fast"] = found["fp8"] / found["bf16"]
    names = {"bf16": "BF16", "fp8": "FP8", "fp8 exact sums": "FP8, sums in FP32", "fp8 row-wise": "FP8, a scale a row"}
    found = found.rename(columns=names).rename_axis("size").reset_index()
    formats = dict.fromkeys(names.values(), "{:.0f}") | {"FP8 times as fast": "{:.2f}"}
    return table(found, "Square products, TFLOP/s; FP8 numbers made beforehand", formats, list(formats))


def layers(record: dict) -> Table:
    """Four linear layers forward and back, in ms, by width."""
    found = readings.layers(record) / 1e3
    names = {
        "bf16": "BF16",
        "fp8": "FP8",
        "bf16 compiled": "BF16 compiled",
        "fp8 compiled": "FP8 compiled",
        "torchao compiled": "torchao compiled",
    }
    found = found.reindex(columns=list(names)).rename(columns=names).rename_axis("width").reset_index()
    caption = "Four linear layers and GELU, 8,192 rows, forward and back: ms"
    return table(found, caption, dict.fromkeys(names.values(), "{:.2f}"), list(names.values()))


def bounds(record: dict, width: int) -> Table:
    """What FP8 could gain at most, by what one takes into account, beside what it gained."""
    limits = readings.layer_bounds(record, width)
    names = {
        "data sheet": "twice the rate, says the data sheet",
        "products": "the measured rates of the products",
        "products and casts": "an estimate: products, and making FP8 numbers",
    }
    rows = [(names[name], value) for name, value in limits.items()]
    rows.append(("measured", readings.speedup(record, width)))
    column = "times as fast"
    frame = pd.DataFrame(rows, columns=["by", column])
    return table(frame, f"FP8 against BF16, both compiled, width {width:,}", {column: "{:.2f}"}, [column])


def attention(record: dict, length: int) -> Table:
    """A row a type, a column a kernel: ms forward and back; error and memory of the fastest kernel."""
    found = readings.attention(record)
    found = found[found["length"] == length]
    names = {"math": "plain products", "efficient": "memory-efficient", "flash": "flash", "cudnn": "cuDNN"}
    types = list(dict.fromkeys(found["dtype"]))
    ms = found.pivot(index="dtype", columns="kernel", values="us").astype(float) / 1e3
    ms = ms.reindex(index=types, columns=list(names)).rename(columns=names)
    found = found.astype({"us": float, "extra_bytes": float, "error": float})
    plain = found[found["kernel"] == "math"].set_index("dtype")
    fastest = found.dropna(subset="us").sort_values("us").drop_duplicates("dtype").set_index("dtype")
    ms["plain: extra GB"] = plain["extra_bytes"] / 1e9
    ms["fastest: extra GB"] = fastest["extra_bytes"] / 1e9
    ms["fastest: error"] = fastest["error"]
    frame = ms.rename_axis("type").reset_index()
    frame["type"] = frame["type"].str.upper()
    formats = dict.fromkeys(names.values(), "{:.2f}")
    formats |= {"plain: extra GB": "{:.2f}", "fastest: extra GB": "{:.2f}", "fastest: error": "{:.0e}"}
    return table(frame, f"Attention, length {length:,}, forward and back: ms", formats, list(formats))


def recurrent_types(record: dict, odd: int) -> Table:
    """The recurrent network by number type, in its usual hidden size and in an odd one: ms, and the LSTM alone."""
    found = readings.recurrent(record)
    rows = []
    for dtype in ("fp32", "tf32", "fp16", "bf16"):
        own = readings.around(found, "hidden", dtype).set_index("size")
        if len(own):
            usual = int(own.loc[own["varied"] == "", "hidden"].iloc[0])
            row = {"type": dtype.upper()}
            for part, name in (("us", "whole"), ("lstm_us", "LSTM alone")):
                row |= {f"{name}, {size:,}: ms": own[part][size] / 1e3 for size in (usual, odd)}
            rows.append(row)
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(frame.columns[1:], "{:.2f}")
    return table(frame, "The recurrent network by type, forward and back, and its hidden size", formats, list(formats))


def recurrent(record: dict, varied: str) -> Table:
    """The recurrent network with one size varied, in the narrow type: ms, TFLOP/s, and the LSTM alone."""
    found = readings.recurrent(record)
    own = readings.around(found, varied, readings.narrow(found["dtype"]))
    rows = pd.DataFrame(
        {
            varied: own["size"],
            "multiple of 8": ["yes" if size % 8 == 0 else "no" for size in own["size"]],
            "ms": own["us"] / 1e3,
            "TFLOP/s": own["tflops"],
            "LSTM alone ms": own["lstm_us"] / 1e3,
            "ns a symbol": own["ns_a_symbol"],
        }
    )
    formats = {"ms": "{:.2f}", "TFLOP/s": "{:.0f}", "LSTM alone ms": "{:.2f}", "ns a symbol": "{:.0f}"}
    return table(rows, f"The recurrent network, {varied} varied", formats, list(formats))


def block_formats(errors: pd.DataFrame) -> Table:
    """What block formats lose, of ``blocks.errors``."""
    formats = {"bits a number": "{:g}"} | {name: "{:.1f}" for name in errors.columns[2:]}
    return table(errors, "Rounded and back: the median number's error, and what became zero", formats)


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.01 else f"{value:.2f}"
