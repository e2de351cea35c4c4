"""How long do Keras's epochs take? One bar a step, and every epoch but the first as a dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure

from labkit.figures import style
from labkit.figures.charts import SMALL, _bar, _bar_axes, _reach
from labkit.figures.diagrams import tint


def epoch_bars(runs: Mapping[str, Sequence[dict]], backend: str) -> Figure:
    """Training seconds of an epoch: the later ones as dots and as their median, the first one in words.

    ``runs`` maps a step's name to its records. The label says how many times as fast it is as the first step's.
    """
    epochs = {name: [[e["training_s"] for e in record["epochs"]] for record in found] for name, found in runs.items()}
    later = {name: [seconds for run in found for seconds in run[1:]] for name, found in epochs.items()}
    base = median(next(iter(later.values())))
    with style.house_style():
        fig, ax = _bar_axes(list(runs), f"Training time of an epoch (Keras on {backend})", "seconds")
        _reach(ax, max(map(max, later.values())), words_in=2.2)
        for y, (name, found) in enumerate(epochs.items()):
            middle = median(later[name])
            _bar(ax, y, 0, middle, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(later[name], [y] * len(later[name]), "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            times = f"   {base / middle:.1f}×" if y else ""
            words = f"{middle:.2f} s{times}   first: {median(run[0] for run in found):.1f} s"
            ax.annotate(words, (max(later[name]), y), (8, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
    return fig
