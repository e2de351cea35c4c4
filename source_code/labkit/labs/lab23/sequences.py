"""What do formats and sizes do to attention and to a recurrent network? ``bench_attention.py``, ``bench_lstm.py``."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from stepbudget.show.table import Table, table

SMALL = 8.5  # points
MULTIPLE = 8


def fastest(record: dict, length: int) -> dict[str, float]:
    """µs of attention's fastest kernel by number type, at one length."""
    rows = pd.DataFrame(record["rows"])
    return rows[rows["length"] == length].groupby("dtype")["us"].min().dropna().to_dict()


def attention(record: dict, length: int) -> Table:
    """A row a type, a column a kernel: ms forward and back; error and memory of the fastest kernel."""
    columns = ["length", "dtype", "kernel", "us", "error", "extra_bytes"]
    found = pd.DataFrame(record["rows"]).reindex(columns=columns)
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
    return table(
        frame,
        f"Attention, length {length:,}, forward and back: ms; error: of the result, relative, against FP64",
        formats,
    )


def cases(record: dict) -> pd.DataFrame:
    """The rows of ``bench_lstm.py``, with ``size``, the one that was varied, and the time beside the usual size's.

    ``relative``: µs over those of the usual size in the same type; ``a_symbol``: ns a symbol.
    """
    found = pd.DataFrame(record["rows"])
    usual = found[found["varied"] == ""].set_index("dtype")
    found["size"] = [row[row["varied"]] if row["varied"] else None for _, row in found.iterrows()]
    for part in ("us", "lstm_us"):
        found[f"relative_{part}"] = found[part] / found["dtype"].map(usual[part])
    found["ns_a_symbol"] = 1e3 * found["us"] / (found["batch"] * found["length"])
    return found


def around(found: pd.DataFrame, varied: str, dtype: str) -> pd.DataFrame:
    """The rows of ``cases`` with one thing varied, and the usual ones among them, by size."""
    own = found[(found["dtype"] == dtype) & found["varied"].isin([varied, ""])]
    return own.assign(size=own[varied]).sort_values("size")


def narrow(found: Sequence[str]) -> str:
    """Of the types that were measured the one to show: BF16, else FP16."""
    return "bf16" if "bf16" in set(found) else "fp16"


def recurrent_types(record: dict, odd: int) -> Table:
    """The recurrent network by number type, in its usual hidden size and in an odd one: ms, and the LSTM alone."""
    found = cases(record)
    rows = []
    for dtype in ("fp32", "tf32", "fp16", "bf16"):
        own = around(found, "hidden", dtype).set_index("size")
        if len(own):
            usual = int(own.loc[own["varied"] == "", "hidden"].iloc[0])
            row = {"type": dtype.upper()}
            for part, name in (("us", "whole"), ("lstm_us", "LSTM alone")):
                row |= {f"{name}, {size:,}: ms": own[part][size] / 1e3 for size in (usual, odd)}
            rows.append(row)
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(frame.columns[1:], "{:.2f}")
    return table(frame, "The recurrent network by type, forward and back, and its hidden size", formats)


def recurrent(record: dict, varied: str) -> Table:
    """The recurrent network with one size varied, in the narrow type: ms, TFLOP/s, and the LSTM alone."""
    found = cases(record)
    own = around(found, varied, narrow(found["dtype"]))
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
    return table(rows, f"The recurrent network, {varied} varied", formats)


def sizes(found: pd.DataFrame) -> Figure:
    """Time of the recurrent network beside that of its usual size, one size varied in each panel.

    ``found``: ``cases``. Grey behind multiples of 8.
    """
    dtype = narrow(found["dtype"])
    with style.chart(3.1, 1, 2, sharey=True, w_pad=0.1) as (fig, axes):
        for ax, varied in zip(axes, ("hidden", "vocabulary"), strict=True):
            own = around(found, varied, dtype)
            for x, size in enumerate(own["size"]):
                if size % MULTIPLE == 0:
                    ax.axvspan(x - 0.5, x + 0.5, color=style.GRID, lw=0, zorder=0)
            places = range(len(own))
            ax.plot(places, 100 * own["relative_us"], "o", color=style.BLUE, label="whole network")
            ax.plot(places, 100 * own["relative_lstm_us"], "s", mfc="none", mec=style.ORANGE, label="LSTM alone")
            ax.set_xticks(places, [str(int(size)) for size in own["size"]], rotation=90, fontsize=SMALL)
            ax.set_xlim(-0.6, len(own) - 0.4)
            ax.set_title(varied)
            ax.grid(axis="y")
        fig.axes[0].set_ylim(bottom=0)
        fig.axes[0].set_ylabel("time, % of the usual size's")
        fig.axes[1].legend(fontsize=SMALL, loc="lower left")
        style.suptitle(fig, f"A recurrent network in other sizes, {dtype.upper()} (grey: multiples of {MULTIPLE})")
    return fig
