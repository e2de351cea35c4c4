"""How long do Keras's epochs take, and how much of that time does the GPU work? Bars of epochs; counters over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import SMALL, bar, bar_axes, key, reach
from labkit.topics.keras.readings import last_event_ms, later_epochs, steps_window
from stepbudget.report import Report
from stepbudget.say.palette import tint
from stepbudget.window import Window

MS = 1_000_000  # ns
CLOSE_MS = 8  # of the steps, shown sample by sample
SMS, TENSOR = tint(style.COLOURS["kernel"], 0.45), style.COLOURS["tensor core kernel"]


def epoch_bars(runs: Mapping[str, Sequence[dict]], backend: str) -> Figure:
    """Training seconds of an epoch: the later ones as dots and as their median, the first one in words.

    ``runs`` maps a step's name to its records. The label says how many times as fast it is as the first step's.
    """
    later = later_epochs(runs)
    base = median(next(iter(later.values())))
    with style.house_style():
        title = f"Training time of an epoch but the first: each a dot, and their median (Keras on {backend})"
        fig, ax = bar_axes(list(runs), title, "seconds")
        reach(ax, max(map(max, later.values())), words_in=2.2)
        for y, (name, found) in enumerate(runs.items()):
            middle = median(later[name])
            bar(ax, y, 0, middle, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(later[name], [y] * len(later[name]), "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            times = f"   {base / middle:.1f}×" if y else ""
            words = f"{middle:.2f} s{times}   first: {median(run['epochs'][0]['training_s'] for run in found):.1f} s"
            ax.annotate(words, (max(later[name]), y), (8, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
    return fig


def counter_panels(reports: Mapping[str, Report]) -> Figure:
    """A row a report: SMs Active and Tensor Active. Left the mean of each ms, right 8 ms of the steps by the sample.

    On the left a bar above the curve marks the training steps, and a line where the program's events end.
    """
    with style.house_style():
        fig = style.figure(0.9 + 1.45 * len(reports))
        axes = fig.subplots(len(reports), 2, sharey=True, squeeze=False, width_ratios=(1.5, 1))
        for (name, report), (left, right) in zip(reports.items(), axes, strict=True):
            whole, steps = report.window(), steps_window(report)
            middle = (steps.start + steps.end) // 2
            _draw_counters(left, report, whole, MS)
            _draw_counters(right, report, Window(middle - CLOSE_MS * MS // 2, middle + CLOSE_MS * MS // 2, "close"))
            edges = [(edge - whole.start) / MS for edge in (steps.start, steps.end)]
            left.plot(edges, [105, 105], color=style.INK, lw=3, solid_capstyle="butt")
            left.axvline(last_event_ms(report), color=style.VERMILION, lw=1.4, ls="--")
            left.set(xlim=(0, whole.duration_ms), ylim=(0, 110))
            left.set_title(name, size=10)
            left.set_ylabel("%", size=9)
            right.set_xlim(0, CLOSE_MS)
        axes[0][1].set_title(f"{CLOSE_MS} ms from the middle of the steps", size=10)
        for ax in axes[-1]:
            ax.set_xlabel("milliseconds", size=9)
        kinds = {"SMs Active": SMS, "Tensor Active": TENSOR, "training steps": style.INK}
        kinds |= {"the program's last recorded event": style.VERMILION}
        key(fig, kinds, 4)
    return fig


def _draw_counters(ax: Axes, report: Report, window: Window, bin_ns: int = 1) -> None:
    """Both counters as areas over a window, the mean of each ``bin_ns``."""
    for counter, colour in (("SMs Active", SMS), ("Tensor Active", TENSOR)):
        samples = report.counter(counter, window)
        if not len(samples):
            ax.text(0.5, 0.5, f"{counter} was not sampled", transform=ax.transAxes, ha="center", size=SMALL)
            return
        number = (samples["time"].to_numpy(np.int64) - window.start) // bin_ns
        number, which = np.unique(number, return_inverse=True)
        mean = np.bincount(which, samples["value"].to_numpy(np.float64)) / np.bincount(which)
        ax.fill_between(number * bin_ns / MS, mean, step="post", color=colour, linewidth=0)
    ax.tick_params(labelsize=9)
