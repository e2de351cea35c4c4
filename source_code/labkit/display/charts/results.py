"""What do whole runs look like, and gradients that underflow? Each chart takes data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import median_low

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import (
    LETTER_IN,
    PLOT_IN,
    SMALL,
    bar,
    bar_axes,
    beside,
    key,
    reach,
    seconds,
)
from labkit.display.spread import speedup, spread
from stepbudget.show.palette import ink_on, tint

# What a whole process's bar is made of.
PARTS = {
    "start-up": style.MUTED,
    "training": style.BLUE,
    "test": style.COLOURS["test"],
    "the rest": style.COLOURS["idle"],
}


# --- whole runs ---------------------------------------------------------------------------------------------


def ladder(steps: Mapping[str, Sequence[dict]]) -> Figure:
    """One bar a step: the median of its runs in seconds, their range, each run as a dot; speedup against the first."""
    first = next(iter(steps.values()))
    spreads = {name: spread(records) for name, records in steps.items()}
    longest = max(own.high for own in spreads.values())
    counts = sorted({own.n for own in spreads.values()})
    title = f"Whole process: median and range of {'–'.join(map(str, counts))} runs"
    with style.house_style():
        fig, ax = bar_axes(list(steps), title, "seconds")
        reach(ax, longest, words_in=1.1)
        for y, (name, records) in enumerate(steps.items()):
            own = spreads[name]
            bar(ax, y, 0, own.median, tint(style.COLOURS["kernel"], 0.7))
            ax.plot([own.low, own.high], [y, y], color=style.INK, lw=1.3, solid_capstyle="butt")
            ax.plot(own.values, [y] * own.n, "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            beside(ax, own.high, y, _result(own.median, speedup(first, records) if y else None))
    return fig


def ladder_parts(steps: Mapping[str, Sequence[dict]]) -> Figure:
    """One bar a step, its median run in seconds: start-up, training, test, and what none of them covers."""
    runs = {name: median_run(records) for name, records in steps.items()}
    longest = max(run["process_s"] for run in runs.values())
    first = next(iter(runs.values()))["process_s"]
    with style.house_style():
        fig, ax = bar_axes(list(steps), "Where a whole run's time goes: the median run of each step", "seconds")
        reach(ax, longest, words_in=1.1)
        for y, run in enumerate(runs.values()):
            left = 0.0
            for label, width in process_parts(run).items():
                bar(ax, y, left, width, PARTS[label])
                words = seconds(width)
                if LETTER_IN * (len(words) + 1) < width / longest * (PLOT_IN - 1.1):
                    place = {"ha": "center", "va": "center", "size": SMALL}
                    ax.text(left + width / 2, y, words, color=ink_on(PARTS[label]), **place)
                left += width
            beside(ax, run["process_s"], y, _result(run["process_s"], first / run["process_s"] if y else None))
        key(fig, PARTS, len(PARTS))
    return fig


def _result(took_s: float, factor: float | None) -> str:
    """``4.34 s   3.1×``; the first step has no factor."""
    return f"{seconds(took_s)} s" + (f"   {factor:.1f}×" if factor else "")


def median_run(records: Sequence[dict]) -> dict:
    """The run in the middle by its process's seconds: one that happened, so its parts add up."""
    middle = median_low(record["process_s"] for record in records)
    return next(record for record in records if record["process_s"] == middle)


def process_parts(run: dict) -> dict[str, float]:
    """The seconds of a run, in the order in which they pass; they add up to the process's."""
    parts = {"start-up": run["startup_s"], "training": run["training_s"], "test": run["test_s"]}
    return parts | {"the rest": max(0.0, run["process_s"] - sum(parts.values()))}


# --- benchmarks ---------------------------------------------------------------------------------------------


def underflow(rows: Sequence[dict]) -> Figure:
    """Per layer: per cent of the gradients that FP16 makes zero, over epochs, by loss scale (not zero at every scale).

    ``rows``: dicts with ``epoch``, ``scale``, ``layer``, ``zero_share`` and, where known, ``not_finite_share``;
    a cross marks where some gradient overflowed.
    """
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    scales = sorted({row["scale"] for row in rows})
    colours = dict(zip(scales, cycle([style.VERMILION, style.ORANGE, style.BLUE, style.GREEN]), strict=False))
    epochs = [row["epoch"] for row in rows]
    top = 100 * max(row["zero_share"] for row in rows) or 1
    with style.chart(3.2, 1, len(layers), sharex=True, sharey=True) as (fig, axes):
        for ax, layer in zip(axes, layers, strict=True):
            for scale, colour in colours.items():
                own = sorted((r for r in rows if (r["layer"], r["scale"]) == (layer, scale)), key=lambda r: r["epoch"])
                _underflow_line(ax, own, colour, "no loss scaling" if scale == 1 else f"loss × {scale:,.0f}")
            ax.set(title=layer, xlabel="epochs trained")
            ax.set(xlim=(min(epochs) - 0.4, max(epochs) + 0.4), ylim=(-0.03 * top, 1.08 * top))
            ax.grid(axis="y")
        axes[0].set_ylabel("per cent")
        style.suptitle(fig, "Gradients that FP16 turns into zero")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(scales), fontsize=9)
    return fig


def _underflow_line(ax: Axes, rows: Sequence[dict], colour: str, label: str) -> None:
    points = [(row["epoch"], 100 * row["zero_share"]) for row in rows]
    ax.plot(*zip(*points, strict=True), color=colour, marker="o", ms=3.5, lw=1.6, label=label)
    overflowed = [point for point, row in zip(points, rows, strict=True) if row.get("not_finite_share")]
    if overflowed:
        ax.plot(*zip(*overflowed, strict=True), "x", color=style.INK, ms=7, mew=1.4)
