"""When does a step pay for itself? What a process costs before and beside its epochs; its seconds against epochs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.spread import spread
from labkit.display.table import Table, table

SMALL = 8.5  # points
LOOKS = [
    (style.MUTED, "-"),
    (style.BLUE, "-"),
    (style.GREEN, "-"),
    (style.GREEN, "--"),
    (style.PINK, "-"),
    (style.ORANGE, "-"),
]
# fmt: off
WORDS = {
    "textcoords": "offset points", "ha": "left", "va": "top", "size": SMALL, "color": style.INK,
    "bbox": {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8},
}
# fmt: on


@dataclass(frozen=True)
class Cost:
    """A whole process as a straight line: seconds that it takes anyway, and seconds for each epoch (training, test)."""

    fixed_s: float
    epoch_s: float

    def seconds(self, epochs: float) -> float:
        """How long a process of so many epochs takes."""
        return self.fixed_s + epochs * self.epoch_s


def cost(records: Sequence[dict]) -> Cost:
    """The line through a step's whole-process runs: medians over its runs.

    An epoch is an epoch after the first; what the first takes longer is part of what the process takes anyway, and
    so are start-up, warm-up and the end of the process.
    """
    epochs_s = [
        statistics.median(epoch["training_s"] + epoch["test_s"] for epoch in record["epochs"][1:]) for record in records
    ]
    fixed_s = [
        record["process_s"] - len(record["epochs"]) * epoch_s for record, epoch_s in zip(records, epochs_s, strict=True)
    ]
    return Cost(statistics.median(fixed_s), statistics.median(epochs_s))


def epochs_until_even(slow: Cost, fast: Cost) -> float:
    """After how many epochs a process of ``fast`` has caught up with one of ``slow``: 0 at once, infinity never."""
    ahead_s, gains_s = fast.fixed_s - slow.fixed_s, slow.epoch_s - fast.epoch_s
    if ahead_s <= 0:
        return 0.0 if gains_s >= 0 else inf
    return ahead_s / gains_s if gains_s > 0 else inf


def in_words(epochs: float) -> str:
    """What ``epochs_until_even`` found, for a sentence: ``at once``, ``after ~60 epochs``, ``never``."""
    return "at once" if epochs == 0 else "never" if epochs == inf else f"after ~{epochs:.0f} epochs"


def end_s(records: Sequence[dict]) -> float:
    """Seconds from the last line of a script to the end of its process: the median over its runs."""
    return statistics.median(record["process_s"] - record["wall_s"] for record in records)


def ends_table(runs: Mapping[str, Sequence[dict]]) -> Table:
    """Seconds of whole processes before the first epoch and after the last, a row a step; medians over its runs."""
    rows = []
    for name, records in runs.items():
        startup_s, process_s = (spread(records, part).median for part in ("startup_s", "process_s"))
        warm_up_s = statistics.median(record["extras"].get("warm_up_s", 0.0) for record in records)
        rows.append((name, startup_s, warm_up_s, end_s(records), process_s))
    columns = ["step", "start-up s", "warm-up s", "end s", "process s"]
    caption = "Before the first epoch and after the last (medians; what is missing to the process are the epochs)"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:], "{:.1f}"), columns[1:])


def lines_table(costs: Mapping[str, Cost]) -> Table:
    """Each step as a line, and after how many epochs it has caught up with the first."""
    name, first = next(iter(costs.items()))
    crossings = {other: epochs_until_even(first, own) for other, own in costs.items()} | {name: None}
    rows = [(other, own.fixed_s, 1e3 * own.epoch_s, crossings[other]) for other, own in costs.items()]
    caught_up = f"caught up with {name.partition(':')[0]} after epochs"
    columns = ["step", "anyway s", "ms an epoch, with its test", caught_up]
    formats = {"anyway s": "{:.1f}"} | dict.fromkeys(columns[2:], "{:.0f}")
    return table(pd.DataFrame(rows, columns=columns), "Each step as a line", formats, columns[1:])


def lines_chart(costs: Mapping[str, Cost], most_epochs: int, ran: int = 10) -> Figure:
    """Seconds of a whole process against its epochs, up to ``most_epochs``; the runs themselves had ``ran``.

    A dot marks where a line falls below that of the first step, if it was above. At most six steps.
    """
    if len(costs) > len(LOOKS):
        raise ValueError(f"{len(costs)} steps, and {len(LOOKS)} looks")
    first = next(iter(costs.values()))
    epochs = np.array([0, most_epochs])
    with style.house_style():
        fig = style.figure(3.9)
        ax = fig.subplots()
        for (name, own), (colour, line) in zip(costs.items(), LOOKS, strict=False):
            ax.plot(epochs, own.seconds(epochs), line, color=colour, lw=1.8, label=name)
            crossing = epochs_until_even(first, own)
            if 0 < crossing <= most_epochs:
                ax.plot([crossing], [own.seconds(crossing)], "o", ms=6, mfc=style.PAPER, mec=colour, mew=1.6)
                at_left = crossing < most_epochs / 10  # no room beside the axis: write it to the right
                note = {"ha": "left", "va": "top"} if at_left else {"ha": "right", "va": "bottom"}
                place = (7, -3) if at_left else (-6, 4)
                ax.annotate(f"{crossing:.0f} epochs", (crossing, own.seconds(crossing)), place, **WORDS | note)
        ax.axvline(ran, color=style.MUTED, lw=1, ls=":")
        ax.annotate(f"our {ran} epochs", (ran, 1), (4, -2), xycoords=("data", "axes fraction"), **WORDS)
        highest = max(own.seconds(most_epochs) for own in costs.values())
        ax.set(xlim=(0, most_epochs), ylim=(0, 1.05 * highest), xlabel="epochs", ylabel="seconds")
        ax.grid(axis="y")
        ax.set_title("Whole process, by number of epochs (a line: medians of a step's runs)")
        ax.legend(fontsize=SMALL, loc="lower right", handlelength=2.6)
    return fig
