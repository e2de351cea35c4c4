"""What do formats do to a training, and when does FP8 pay? Losses by seed, gains by width, a network's sizes."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from labkit.topics.formats import readings

SMALL = 8.5  # points
MULTIPLE = 8


def losses(record: dict) -> Figure:
    """Test loss above the least possible one: a row a format, a dot a seed, a line at the mean."""
    names = [name for name in readings.WORDS if any(row["variant"] == name for row in record["rows"])]
    seeds = len({row["seed"] for row in record["rows"]})
    with style.house_style():
        fig = style.figure(1.2 + 0.32 * len(names), w_pad=0.1)
        ax = fig.subplots()
        for y, name in enumerate(names):
            own = [row["test_loss"] for row in record["rows"] if row["variant"] == name]
            own = [loss - record["least_loss"] for loss in own if loss is not None]
            colour = style.VERMILION if name in ("bf16 AdamW", "bf16 nearest") else style.BLUE
            ax.plot(own, [y] * len(own), "o", mfc="none", mec=colour, ms=5)
            if own:
                ax.plot([sum(own) / len(own)] * 2, [y - 0.3, y + 0.3], color=colour, lw=2)
        ax.set_yticks(range(len(names)), [readings.WORDS[name] for name in names])
        ax.invert_yaxis()
        ax.set_xlim(left=0)
        ax.grid(axis="x")
        ax.set_xlabel("nats a symbol above the least possible loss")
        style.suptitle(fig, f"Test loss by format: a dot a seed ({seeds} seeds), a line at their mean")
    return fig


def gains(record: dict) -> Figure:
    """How many times as fast FP8 makes four linear layers, by their width: as PyTorch runs them, and compiled."""
    found = readings.layers(record)
    with style.house_style():
        fig = style.figure(3.1)
        ax = fig.subplots()
        for how, ending, colour in (("as PyTorch runs them", "", style.ORANGE), ("compiled", " compiled", style.BLUE)):
            both = [f"bf16{ending}", f"fp8{ending}"]
            own = found.reindex(columns=both).dropna()
            if len(own):
                ax.plot([str(width) for width in own.index], own[both[0]] / own[both[1]], "o-", color=colour, label=how)
        ax.axhline(1, color=style.MUTED, lw=1)
        limit = readings.SHEET_TFLOPS["fp8"] / readings.SHEET_TFLOPS["bf16"]
        ax.axhline(limit, color=style.GREEN, lw=1.4, ls=":", label="the data sheet's rates")
        ax.set_ylim(0, 1.15 * limit)
        ax.set_xlabel("width of the layers")
        ax.set_ylabel("FP8: times as fast as BF16")
        ax.legend(loc="lower right", fontsize=SMALL)
        style.suptitle(fig, "What FP8 gains, four linear layers forward and back")
    return fig


def sizes(found: pd.DataFrame) -> Figure:
    """Time of the recurrent network beside that of its usual size, one size varied in each panel.

    ``found``: ``readings.recurrent``. Grey behind multiples of 8.
    """
    dtype = readings.narrow(found["dtype"])
    with style.house_style():
        fig = style.figure(3.1, w_pad=0.1)
        for ax, varied in zip(fig.subplots(1, 2, sharey=True), ("hidden", "vocabulary"), strict=True):
            own = readings.around(found, varied, dtype)
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
