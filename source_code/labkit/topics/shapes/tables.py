"""What do sizes and memory layouts cost? What ``labkit.topics.shapes.readings`` reads, as tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.display.spread import MEASURED, Spread
from labkit.display.table import Table, short_kernel, table
from labkit.topics.shapes.charts import LAYOUTS, WORDS
from labkit.topics.shapes.readings import TYPES, by_channels, half_type
from stepbudget.ask.ops import Summary
from stepbudget.ask.tensor_cores import TensorActive, kernels
from stepbudget.kernel_names import CHANGES_LAYOUT, NO
from stepbudget.report import Report

UNITS = {"us": "µs", "tflops": "TFLOP/s"}
MOVES = {"layout copies": CHANGES_LAYOUT.pattern, "pooling": "max_pool", "other copies": "direct_copy"}


def rate(products: pd.DataFrame, caption: str, columns: Sequence[str] = ("m", "n", "k", "dtype")) -> Table:
    """Products as rows: the given columns, µs, TFLOP/s, relative error, and which kernel multiplied."""
    names = {"dtype": "type", "stride": "lines in memory", "layout": "layout", "part": "product"}
    frame = products[[*columns, "us", "tflops", "error", "tensor_cores", "kernel"]].copy()
    if "dtype" in frame:
        frame["dtype"] = frame["dtype"].map(WORDS)
    heads = {"us": "µs", "tflops": "TFLOP/s", "tensor_cores": "Tensor Cores"}
    frame = frame.rename(columns={name: name.upper() for name in "mnk"} | names | heads)
    formats = {"µs": "{:,.1f}", "TFLOP/s": "{:,.1f}", "error": "{:.1e}", "kernel": _kernel}
    measured = ["µs", "TFLOP/s", "error"]
    formats |= {name.upper(): "{}" for name in columns if name in ("m", "n", "k")}  # 4096, no thousands' separator
    return table(frame, caption, formats, measured)


def _kernel(name: object) -> str:
    return short_kernel(name) if isinstance(name, str) else "–"


def by_layout(products: pd.DataFrame) -> Table:
    """Microseconds of a product, a column for each way to store both matrices (``n``: by rows, ``t``: by columns)."""
    own = products[products["part"] == "layout"]
    wide = own.pivot_table(index=["dtype", "m"], columns="layout", values="us").reindex(TYPES, level="dtype")
    wide = wide.add_suffix(" µs").rename(index=WORDS).reset_index(names=["type", "m = n = k"])
    measured = list(wide)[2:]
    return table(wide, "A product by the layout of A and B", dict.fromkeys(measured, "{:,.1f}"), measured)


def channels(rows: pd.DataFrame, caption: str) -> Table:
    """A convolution by its channels, of which the largest power of two is shown; ``rows``: of ``by_channels``."""
    heads = {f"{layout}_{what}": f"{layout} {unit}" for what, unit in UNITS.items() for layout in LAYOUTS}
    frame = rows[["channels", *heads]].rename(columns=heads)
    frame.insert(1, "a multiple of", frame["channels"].map(lambda number: number & -number))
    measured = list(heads.values())
    return table(frame, caption, dict.fromkeys(measured, "{:,.0f}"), measured)


def epochs(each: Mapping[str, Sequence[float]]) -> Table:
    """Milliseconds of an epoch of each network, a number a run; per cent against the first network, run by run."""
    plain = next(iter(each.values()))
    rows = []
    for name, own in each.items():
        ratio = Spread.of([ms / base for ms, base in zip(own, plain, strict=True)])
        span = f"{MEASURED}{min(own):.1f}–{max(own):.1f}"
        rows.append((name, Spread.of(own).median, span, 100 * (ratio.median - 1)))
    frame = pd.DataFrame(rows, columns=["network", "epoch ms", "each run ms", "longer by %"])
    formats = {"epoch ms": "{:.1f}", "longer by %": "{:+.1f}"}
    caption = "A training epoch without the profiler, first epochs left out; per cent: in pairs of runs"
    return table(frame, caption, formats, list(formats))


def moves(reports: Mapping[str, Report]) -> Table:
    """Kernel time of what moves images or reads each of their numbers once, a column a report."""
    frame = pd.DataFrame({"kernels": list(MOVES)})
    for name, report in reports.items():
        own = kernels(report)
        found = [own["kernel"].astype(str).str.contains(pattern) for pattern in MOVES.values()]
        frame[name] = [own.loc[hit, "gpu_ms"].sum() for hit in found]
    return table(frame, "Kernel time of an epoch, ms", dict.fromkeys(reports, "{:.1f}"), list(reports))


def switches(rows: Sequence[Mapping], caption: str) -> Table:
    """What each set of switches makes of an FP32 product and convolution.

    ``rows``: of ``bench_tf32.py``. The errors are relative to FP64's result.
    """
    lines = []
    for row in rows:
        line = {"statements": row["statements"] or "nothing"}
        for name, words in (("matmul", "product"), ("conv", "convolution")):
            line |= {words: row[name] or "refused", f"{words}'s error": row[f"{name}_error"]}
        lines.append(line | {"complaint": ", ".join(row["refused"]) or "–"})
    errors = ["product's error", "convolution's error"]
    formats = dict.fromkeys(errors, "{:.1e}") | {"statements": lambda text: text.replace("torch.backends.", "")}
    return table(pd.DataFrame(lines), caption, formats, errors)


def environment(rows: Sequence[Mapping], caption: str) -> Table:
    """The same probes in each environment, a row an environment: of what type products are, and convolutions."""
    lines = {}
    for row in rows:
        head = re.sub(r"torch\.backends\.|cuda\.matmul\.|cudnn\.", "", row["statements"] or "nothing")
        one, *more = head.split("; ")
        head = f"both {one}" if more else one
        both = f"{row['matmul'] or 'refused'}, {row['conv'] or 'refused'}"
        lines.setdefault(row["environment"] or "none", {})[head] = both
    return table(pd.DataFrame(lines).T.rename_axis("environment").reset_index(), caption)


def claims(
    products: pd.DataFrame, convolutions: pd.DataFrame, bad: Summary, good: Summary, active: TensorActive | None
) -> Table:
    """Both texts' statements, in our words, beside what was measured.

    ``bad``, ``good``: the operations of an epoch with 127 and with 128 units; ``active``: the counter, where it was
    sampled.
    """
    half = half_type(products)
    word = WORDS[half]
    one = products[products["part"] == "one"].set_index(["dtype", "m", "n", "k"])["us"]
    base = {dtype: one.get((dtype, 4096, 4096, 4096), float("nan")) for dtype in TYPES}
    m, n = (one[(half, *size)] / base[half] for size in ((4095, 4096, 4096), (4096, 4095, 4096)))
    tf32 = one.get(("tf32", 4096, 4092, 4096), float("nan")) / base["tf32"]
    short = products[products["dtype"].isin(["tf32", "fp16", "bf16"]) & products["refused"].isna()]
    rows = products[(products["part"] == "layout") & (products["m"] == 4096)]
    layouts = rows.pivot_table(index="dtype", columns="layout", values="us")
    gain = layouts["nn"] / layouts.min(axis=1)  # both matrices row by row, against the best layout
    taken = rows.loc[(rows["dtype"] == "fp8") & rows["refused"].isna(), "layout"]
    wide = by_channels(convolutions, "wide", half).set_index("channels")["channels_last_tflops"]
    shares = [f"{MEASURED}{100 * own.efficiency:.0f} %" if own.efficiency else "unknown" for own in (bad, good)]
    found = f"on average {MEASURED}{active.mean_pct:.1f} %, at most {MEASURED}{active.max_pct:.0f} %" if active else ""
    claims = [
        (
            "A",
            "fastest in multiples of 8 or 16, depending on the architecture",
            f"N = 4095 takes {_times(n)} as long in {word}, M = 4095 {_times(m)}; in TF32, N = 4092 {_times(tf32)}",
        ),
        (
            "B",
            "without multiples of 8, no Tensor Cores",
            f"of {len(short)} products in TF32, FP16 and BF16, {(short['tensor_cores'] == NO).sum()} ran without",
        ),
        ("B", "the batch size, too, in multiples of 8", f"forward, the batch is M: M = 4095 takes {_times(m)} as long"),
        ("B", "also an LSTM's units", "lab 23 measures an LSTM, in good sizes and bad ones"),
        (
            "B",
            "bad layer sizes show in DLProf's report",
            f"efficiency {shares[0]} with 127 units, {shares[1]} with 128",
        ),
        (
            "A",
            "column-major can be much faster",
            f"row by row takes {_times(gain.get(half))} as long as the best of four in {word}, "
            f"{_times(gain.get('tf32'))} in TF32; FP8 takes {len(taken)} of four",
        ),
        (
            "A",
            "FP32 gains little from Tensor Cores",
            f"as TF32 {_times(base['fp32'] / base['tf32'])} FP32's rate, in {word} {_times(base['fp32'] / base[half])}",
        ),
        (
            "B",
            "filters in multiples of 8",
            "TFLOP/s by channels: "
            + ", ".join(f"{width}: {MEASURED}{wide[width]:.0f}" for width in (256, 257, 264, 320)),
        ),
        ("B", "nvidia-smi cannot show Tensor Core use", "its dmon --gpm-metrics can, from Hopper on (lab 19)"),
        ("B", "nor can Nsight Systems", f"it can: Tensor Active, {found or 'which was not sampled here'}"),
    ]
    return table(pd.DataFrame(claims, columns=["text", "says", "measured"]), measured=["measured"])


def _times(ratio: float | None) -> str:
    return "(not here)" if ratio is None or pd.isna(ratio) else f"{MEASURED}{ratio:.2f} times"
