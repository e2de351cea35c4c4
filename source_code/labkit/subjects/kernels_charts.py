"""What do kernels of one's own look like beside the libraries'?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from labkit.display import style

SMALL = 8.5  # points
WAYS = {  # way → label, colour, line
    "operators": ("operator by operator", style.VERMILION, "-"),
    "torch": ("torch.softmax", style.GREEN, "-"),
    "compiled": ("torch.compile", style.PINK, "-"),
    "triton": ("ours", style.BLUE, "-"),
    "pieces": ("ours, in pieces", style.SKY, "--"),
    "naive": ("naive: a kernel an operator", style.VERMILION, "-"),
    "flash": ("FlashAttention-2, in PyTorch", style.GREEN, "-"),
    "cudnn": ("cuDNN, in PyTorch", style.ORANGE, "-"),
    "flash 3": ("FlashAttention-3", style.PINK, "-"),
    "a tile each": ("ours, a tile a program", style.VERMILION, "-"),
    "stream": ("ours, equal stretches (stream-K)", style.BLUE, "-"),
    "cublas": ("cuBLAS", style.GREEN, "-"),
}


def lines(ax: Axes, found: pd.DataFrame, labelled: bool = True) -> None:
    """A line a column, in the colour of its way."""
    for way, values in found.items():
        label, colour, line = WAYS[way]
        text = label if labelled else None
        ax.plot(values.index, values, color=colour, ls=line, marker="o", ms=3.5, lw=1.8, label=text)


def by_twos(ax: Axes, values: pd.Index) -> None:
    """An axis of powers of two, each with its number."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(values), [f"{value:,}" for value in values], size=SMALL)
    ax.xaxis.set_minor_locator(NullLocator())


def word(ax: Axes, text: str, x: float, y: float) -> None:
    """Words above a level line, at the left end (``x``: 0 to 1, of the axis)."""
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "size": SMALL}
    ax.annotate(text, (x, y), (4, 3), va="bottom", **where)
