"""What do the numbers look like? Bars, lines and small multiples for what the labs measure; each takes data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from statistics import median_low

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from labkit.display import style
from labkit.display.charts.bars import (
    LETTER_IN,
    PLOT_IN,
    SMALL,
    THICK,
    bar,
    bar_axes,
    beside,
    key,
    plain_numbers,
    reach,
)
from labkit.display.spread import Spread, speedup, spread
from stepbudget.say.palette import ink_on, tint

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
                words = _seconds(width)
                if LETTER_IN * (len(words) + 1) < width / longest * (PLOT_IN - 1.1):
                    place = {"ha": "center", "va": "center", "size": SMALL}
                    ax.text(left + width / 2, y, words, color=ink_on(PARTS[label]), **place)
                left += width
            beside(ax, run["process_s"], y, _result(run["process_s"], first / run["process_s"] if y else None))
        key(fig, PARTS, len(PARTS))
    return fig


def _result(seconds: float, factor: float | None) -> str:
    """``4.34 s   3.1×``; the first step has no factor."""
    return f"{_seconds(seconds)} s" + (f"   {factor:.1f}×" if factor else "")


def median_run(records: Sequence[dict]) -> dict:
    """The run in the middle by its process's seconds: one that happened, so its parts add up."""
    middle = median_low(record["process_s"] for record in records)
    return next(record for record in records if record["process_s"] == middle)


def process_parts(run: dict) -> dict[str, float]:
    """The seconds of a run, in the order in which they pass; they add up to the process's."""
    parts = {"start-up": run["startup_s"], "training": run["training_s"], "test": run["test_s"]}
    return parts | {"the rest": max(0.0, run["process_s"] - sum(parts.values()))}


# --- benchmarks ---------------------------------------------------------------------------------------------

TRANSFERS = {  # memory, non_blocking → words, colour, line
    ("pageable", False): ("pageable", style.VERMILION, "-"),
    ("pageable", True): ("pageable, non_blocking", style.VERMILION, "--"),
    ("pinned", False): ("pinned", style.BLUE, "-"),
    ("pinned", True): ("pinned, non_blocking", style.BLUE, "--"),
}


def transfer_grid(rows: Sequence[dict], size_mb: float = 3.2) -> Figure:
    """Copies to the GPU. Left, at one size: µs until the call returns and until the copy is done. Right: GB/s by size.

    ``rows``: one dict a size and kind of copy with ``size_mb``, ``memory``, ``non_blocking``, ``returned_us``,
    ``done_us``.
    """
    found = {(row["size_mb"], row["memory"], row["non_blocking"]): row for row in rows}
    sizes = sorted({row["size_mb"] for row in rows})
    if size_mb not in sizes:
        raise ValueError(f"not measured at {size_mb} MB, but at: {', '.join(map(str, sizes))}")
    with style.house_style():
        fig = style.figure(3.4)
        left, right = fig.subplots(1, 2, width_ratios=(1.2, 1))
        _returned_and_done(left, {kind: found[(size_mb, *kind)] for kind in TRANSFERS}, size_mb)
        for kind, (words, colour, line) in TRANSFERS.items():
            gb_per_s = [1e3 * size / found[(size, *kind)]["done_us"] for size in sizes]
            right.plot(sizes, gb_per_s, line, color=colour, marker="o", ms=4, label=words)
        right.set(xscale="log", xlabel="MB a copy (medians)", title="GB/s until the copy is done")
        right.set_xticks(sizes, [f"{size:g}" for size in sizes])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_ylim(0, None)
        right.grid(axis="y")
        right.legend(fontsize=SMALL, loc="best", handlelength=2.4)
        shades = {"until the call returns": style.INK, "until the copy is done": tint(style.INK, 0.3)}
        key(fig, shades, 2)
    return fig


def _returned_and_done(ax: Axes, rows: Mapping[tuple, dict], size_mb: float) -> None:
    """For each kind of copy a pale bar until it is done, and in it a dark one until the call returned."""
    longest = max(row["done_us"] for row in rows.values())
    for y, (kind, row) in enumerate(rows.items()):
        colour = TRANSFERS[kind][1]
        bar(ax, y, 0, row["done_us"], tint(colour, 0.3))
        ax.barh(y, row["returned_us"], THICK / 2, color=colour, linewidth=0)
        beside(ax, max(row["done_us"], row["returned_us"]), y, f"{row['returned_us']:,.0f} / {row['done_us']:,.0f} µs")
    ax.set(xlim=(0, 1.45 * longest), ylim=(len(rows) - 0.45, -0.55), xlabel="µs, medians")
    ax.set_yticks(range(len(rows)), [TRANSFERS[kind][0].replace(", ", ",\n") for kind in rows])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_title(f"A copy of {size_mb:g} MB: µs until returned / done")


def worker_sweep(points: Iterable[tuple[int, Spread]]) -> Figure:
    """Seconds an epoch against the number of loader workers, with the line on which twice the workers take half.

    ``points``: (workers, median and range in seconds). Without a worker (0) the main process loads: half a step left.
    """
    points = sorted(points, key=lambda point: point[0])
    (fewest, first), *_ = [point for point in points if point[0]]
    x = [number or fewest / 2 for number, _ in points]
    median, low, high = ([getattr(own, part) for _, own in points] for part in ("median", "low", "high"))
    parallel = [number for number in x if number >= fewest]
    ideal = [first.median * fewest / number for number in parallel]
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        ax.plot(parallel, ideal, ls=":", color=style.MUTED, lw=1.4)
        ax.annotate("ideal: 1/n", (parallel[-1], ideal[-1]), (8, 0), **ABOVE | {"ha": "left", "va": "center"})
        ax.vlines(x, low, high, color=style.INK, lw=1.4)
        ax.plot(parallel, median[-len(parallel) :], color=style.BLUE, lw=1.8)
        ax.plot(x, median, "o", color=style.BLUE, ms=6)
        for i, (place, top, seconds) in enumerate(zip(x, high, median, strict=True)):
            beside = i and place / x[i - 1] < CLOSE  # no room above: write it to the right
            where = {"ha": "left", "va": "center"} if beside else {}
            ax.annotate(
                f"{_seconds(seconds)} s",
                (place, seconds if beside else top),
                (9, 0) if beside else (0, 6),
                **ABOVE | where,
            )
        ax.set(xscale="log", yscale="log", xlabel="loader workers", ylabel="seconds an epoch")
        ax.set(xlim=(x[0] / 1.25, x[-1] * 1.6), ylim=(min(*ideal, *low) / 1.25, max(high) * 1.5))
        ax.set_xticks(x, [str(number) if number else "none: the main\nprocess loads" for number, _ in points])
        ax.xaxis.set_minor_locator(NullLocator())
        plain_numbers(ax.yaxis)
        ax.grid(axis="y", which="both", lw=0.5)
        ax.set_title("An epoch of training, by number of loader workers: median and range")
    return fig


CLOSE = 1.3  # two points of a logarithmic axis whose labels would meet
ABOVE = {"textcoords": "offset points", "ha": "center", "va": "bottom", "size": SMALL}


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
    with style.house_style():
        fig = style.figure(3.2)
        axes = fig.subplots(1, len(layers), sharex=True, sharey=True, squeeze=False)[0]
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


def _seconds(value: float) -> str:
    """Three significant digits, no exponent: 0.031, 4.34, 13.4, 134."""
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if value >= limit), 3)
    return f"{value:.{decimals}f}"
