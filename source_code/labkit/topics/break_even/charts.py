"""When does a step pay for itself? Whole-process seconds against epochs: a line a step, a mark where two cross."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from labkit.display import style
from labkit.topics.break_even.costs import Cost, break_even

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


def break_even_lines(costs: Mapping[str, Cost], most_epochs: int, ran: int = 10) -> Figure:
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
            crossing = break_even(first, own)
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
        ax.set_title("Whole process, by number of epochs")
        ax.legend(fontsize=SMALL, loc="lower right", handlelength=2.6)
    return fig
