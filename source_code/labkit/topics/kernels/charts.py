"""What do kernels of one's own look like beside the libraries', and under their bounds?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from labkit.display import style
from labkit.topics.kernels import readings
from labkit.topics.roofline.readings import Peaks

SMALL = 8.5  # points
WAYS = {  # way → label, colour, line
    "operators": ("operator by operator", style.VERMILION, "-"),
    "torch": ("torch.softmax", style.GREEN, "-"),
    "compiled": ("torch.compile", style.PINK, "-"),
    "triton": ("ours", style.BLUE, "-"),
    "pieces": ("ours, in pieces", style.SKY, "--"),
    "naive": ("naive: a kernel an operator", style.VERMILION, "-"),
    "flash": ("PyTorch's flash kernel", style.GREEN, "-"),
    "a tile each": ("ours, a tile a program", style.VERMILION, "-"),
    "stream": ("ours, equal stretches (stream-K)", style.BLUE, "-"),
    "cublas": ("cuBLAS", style.GREEN, "-"),
}
CHAIN_COLOURS = (style.VERMILION, style.ORANGE, style.GREEN, style.BLUE)


def softmax(records: Sequence[dict], peaks: Peaks) -> Figure:
    """TB/s of what a softmax has to move, by the length of a row, a line a way, under the memory's roof."""
    shares = readings.softmax_shares(records, peaks) * peaks.tb_per_s
    with style.house_style():
        fig = style.figure(3.8)
        ax = fig.subplots()
        _lines(ax, shares)
        ax.axhline(peaks.tb_per_s, color=style.INK, lw=1.4)
        _word(ax, f"the memory's roof: {peaks.tb_per_s:.2f} TB/s", 0, peaks.tb_per_s)
        _by_twos(ax, shares.index)
        ax.set(ylim=(0, 1.2 * max(peaks.tb_per_s, np.nanmax(shares))), xlabel="columns: numbers in a row")
        ax.set(ylabel="TB/s, one reading and one writing")
        ax.set_title(f"Softmax of the same {_numbers(records):,} numbers, by the length of a row")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


def attention(records: Sequence[dict], peaks: Peaks) -> Figure:
    """Milliseconds of attention by length, full and causal, each way, and the bounds of both forms."""
    times, floors = readings.attention_times(records), readings.attention_floors(records, peaks)
    with style.house_style():
        fig = style.figure(4.2)
        axes = fig.subplots(1, 2, sharey=True)
        for ax, causal in zip(axes, (False, True), strict=True):
            own = times.xs(causal, level="causal") / 1e3
            floor = floors.xs(causal, level="causal") / 1e3
            _lines(ax, own, labelled=not causal)
            least = floor[["arithmetic", "memory"]].max(axis=1)
            labels = ("bound of one kernel", "bound of the naive form") if not causal else (None, None)
            ax.plot(least.index, least, color=style.INK, lw=1.3, ls=":", label=labels[0])
            ax.plot(floor.index, floor["naive memory"], color=style.VERMILION, lw=1.3, ls=":", label=labels[1])
            _by_twos(ax, own.index)
            ax.set(yscale="log", xlabel="places")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter(NullFormatter())
            ax.grid(axis="y", lw=0.6)
            ax.set_title("causal: each place sees those before" if causal else "each place sees every other")
        axes[0].set_ylabel("ms, logarithmic")
        style.suptitle(fig, "Attention forward, the same number of numbers at each length")
        fig.legend(loc="outside lower center", ncols=3, fontsize=SMALL)
    return fig


def chains(records: Sequence[dict]) -> Figure:
    """Multiply-adds a clock of a multiprocessor by its warps, a line for each number of chains a thread."""
    found = readings.chains(records)
    best = float(np.nanmax(found))
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        for place, ((count, values), colour) in enumerate(zip(found.items(), CHAIN_COLOURS, strict=False)):
            label = f"{count} chain{'s' * (count > 1)} a thread"
            wide = 1.8 + 1.2 * (found.shape[1] - 1 - place)  # of lines that coincide, all are seen
            ax.plot(found.index, values, color=colour, marker="o", ms=4 + wide, lw=wide, label=label)
        ax.axhline(best, color=style.INK, lw=1.2, ls=":")
        _word(ax, f"the most that was reached: {best:.0f}", 0, best)
        _by_twos(ax, found.index)
        ax.set(ylim=(0, 1.2 * best), xlabel="warps on a multiprocessor", ylabel="multiply-adds a clock")
        ax.set_title("More warps, or more independent chains in each")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


def waves(records: Sequence[dict]) -> Figure:
    """µs of a product by its number of tiles: a tile a program, equal stretches, cuBLAS; where a round is full."""
    found, sms = readings.wave_times(records), records[0]["multiprocessors"]
    with style.house_style():
        fig = style.figure(3.9)
        ax = fig.subplots()
        for round_ in range(1, int(found.index.max() / sms) + 1):
            ax.axvline(round_ * sms, color=style.GRID, lw=1.5, zorder=0)
            times = "once" if round_ == 1 else f"{round_} times"
            where = {"xytext": (3, 3), "textcoords": "offset points", "va": "bottom", "size": SMALL}
            place = {"xycoords": ("data", "axes fraction"), "color": style.MUTED}
            ax.annotate(f"{round_ * sms} tiles:\nthe GPU {times}", (round_ * sms, 0), **place, **where)
        _lines(ax, found)
        ax.set(ylim=(0, 1.1 * np.nanmax(found)), xlim=(0, None), xlabel="tiles of the result", ylabel="µs")
        ax.set_title("The same inner dimension, more and more tiles")
        fig.legend(loc="outside right center", fontsize=SMALL)
    return fig


def _lines(ax: Axes, found: pd.DataFrame, labelled: bool = True, ways: Mapping = WAYS) -> None:
    """A line a column, in the colour of its way."""
    for way, values in found.items():
        label, colour, line = ways[way]
        text = label if labelled else None
        ax.plot(values.index, values, color=colour, ls=line, marker="o", ms=3.5, lw=1.8, label=text)


def _by_twos(ax: Axes, values: pd.Index) -> None:
    """An axis of powers of two, each with its number."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(values), [f"{value:,}" for value in values], size=SMALL)
    ax.xaxis.set_minor_locator(NullLocator())


def _word(ax: Axes, text: str, x: float, y: float) -> None:
    """Words above a level line, at the left end (``x``: 0 to 1, of the axis)."""
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "size": SMALL}
    ax.annotate(text, (x, y), (4, 3), va="bottom", **where)


def _numbers(records: Sequence[dict]) -> int:
    found = readings.rows(records, "softmax")
    return int(found["rows"][0] * found["columns"][0])
