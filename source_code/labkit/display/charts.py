"""What do the numbers look like? Bars, lines and small multiples for what the labs measure; each takes data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from statistics import median_low

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from labkit.display import style
from labkit.display.diagrams.drawn import ink_on, tint
from labkit.display.spread import Spread, speedup, spread

SMALL = 8.5  # points
LETTER_IN = 0.6 * SMALL / 72  # an upper estimate of a letter's width
PLOT_IN = 7.2  # about how wide the bars' part of a chart is
BAR_IN, THICK = 0.46, 0.62  # height of a bar's place in inches, and the bar's share of it

# What a whole process's bar is made of.
PARTS = {
    "start-up": style.MUTED,
    "training": style.BLUE,
    "test": style.COLOURS["test"],
    "the rest": style.COLOURS["idle"],
}


# --- whole runs ---------------------------------------------------------------------------------------------


def ladder(steps: Mapping[str, Sequence[dict]], field: str = "process_s", log: bool = False) -> Figure:
    """One bar a step: the median of its runs in seconds, their range, each run as a dot; speedup against the first."""
    first = next(iter(steps.values()))
    spreads = {name: spread(records, field) for name, records in steps.items()}
    longest = max(own.high for own in spreads.values())
    counts = sorted({own.n for own in spreads.values()})
    title = f"{FIELD_WORDS.get(field, field)}: median and range of {'–'.join(map(str, counts))} runs"
    with style.house_style():
        fig, ax = _bar_axes(list(steps), title, "seconds")
        if log:
            _reach_log(ax, min(own.low for own in spreads.values()), longest)
        else:
            _reach(ax, longest, words_in=1.1)
        for y, (name, records) in enumerate(steps.items()):
            own = spreads[name]
            _bar(ax, y, 0, own.median, tint(style.COLOURS["kernel"], 0.7))
            ax.plot([own.low, own.high], [y, y], color=style.INK, lw=1.3, solid_capstyle="butt")
            runs = [record[field] for record in records]
            ax.plot(runs, [y] * len(runs), "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            _beside(ax, own.high, y, _result(own.median, speedup(first, records, field) if y else None))
    return fig


def ladder_parts(steps: Mapping[str, Sequence[dict]]) -> Figure:
    """One bar a step, its median run in seconds: start-up, training, test, and what none of them covers."""
    runs = {name: median_run(records) for name, records in steps.items()}
    longest = max(run["process_s"] for run in runs.values())
    first = next(iter(runs.values()))["process_s"]
    with style.house_style():
        fig, ax = _bar_axes(list(steps), "Where a whole run's time goes: the median run of each step", "seconds")
        _reach(ax, longest, words_in=1.1)
        for y, run in enumerate(runs.values()):
            left = 0.0
            for label, width in process_parts(run).items():
                _bar(ax, y, left, width, PARTS[label])
                words = _seconds(width)
                if LETTER_IN * (len(words) + 1) < width / longest * (PLOT_IN - 1.1):
                    place = {"ha": "center", "va": "center", "size": SMALL}
                    ax.text(left + width / 2, y, words, color=ink_on(PARTS[label]), **place)
                left += width
            _beside(ax, run["process_s"], y, _result(run["process_s"], first / run["process_s"] if y else None))
        _key(fig, {label: (colour, None) for label, colour in PARTS.items()}, len(PARTS))
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


FIELD_WORDS = {
    "process_s": "Whole process",
    "training_s": "Training, all epochs",
    "test_s": "Test, all epochs",
    "startup_s": "Start-up",
}


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
        fig = _figure(3.4)
        left, right = fig.subplots(1, 2, width_ratios=(1.2, 1))
        _returned_and_done(left, {kind: found[(size_mb, *kind)] for kind in TRANSFERS}, size_mb)
        for kind, (words, colour, line) in TRANSFERS.items():
            gb_per_s = [1e3 * size / found[(size, *kind)]["done_us"] for size in sizes]
            right.plot(sizes, gb_per_s, line, color=colour, marker="o", ms=4, label=words)
        right.set(xscale="log", xlabel="MB a copy", title="GB/s until the copy is done")
        right.set_xticks(sizes, [f"{size:g}" for size in sizes])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_ylim(0, None)
        right.grid(axis="y")
        right.legend(fontsize=SMALL, loc="best", handlelength=2.4)
        shades = {"until the call returns": (style.INK, None), "until the copy is done": (tint(style.INK, 0.3), None)}
        _key(fig, shades, 2)
    return fig


def _returned_and_done(ax: Axes, rows: Mapping[tuple, dict], size_mb: float) -> None:
    """For each kind of copy a pale bar until it is done, and in it a dark one until the call returned."""
    longest = max(row["done_us"] for row in rows.values())
    for y, (kind, row) in enumerate(rows.items()):
        colour = TRANSFERS[kind][1]
        _bar(ax, y, 0, row["done_us"], tint(colour, 0.3))
        ax.barh(y, row["returned_us"], THICK / 2, color=colour, linewidth=0)
        _beside(ax, max(row["done_us"], row["returned_us"]), y, f"{row['returned_us']:,.0f} / {row['done_us']:,.0f} µs")
    ax.set(xlim=(0, 1.45 * longest), ylim=(len(rows) - 0.45, -0.55), xlabel="µs")
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
        fig = _figure(3.6)
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
        _plain_numbers(ax.yaxis)
        ax.grid(axis="y", which="both", lw=0.5)
        ax.set_title("An epoch of training, by number of loader workers")
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
        fig = _figure(3.2)
        axes = fig.subplots(1, len(layers), sharex=True, sharey=True, squeeze=False)[0]
        for ax, layer in zip(axes, layers, strict=True):
            for scale, colour in colours.items():
                own = sorted((r for r in rows if (r["layer"], r["scale"]) == (layer, scale)), key=lambda r: r["epoch"])
                _underflow_line(ax, own, colour, "no loss scaling" if scale == 1 else f"loss × {scale:,.0f}")
            ax.set(title=layer, xlabel="epochs trained")
            ax.set(xlim=(min(epochs) - 0.4, max(epochs) + 0.4), ylim=(-0.03 * top, 1.08 * top))
            ax.grid(axis="y")
        axes[0].set_ylabel("per cent")
        fig.suptitle("Gradients that FP16 turns into zero", x=0.01, ha="left", size=11, weight="bold")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(scales), fontsize=9)
    return fig


def _underflow_line(ax: Axes, rows: Sequence[dict], colour: str, label: str) -> None:
    points = [(row["epoch"], 100 * row["zero_share"]) for row in rows]
    ax.plot(*zip(*points, strict=True), color=colour, marker="o", ms=3.5, lw=1.6, label=label)
    overflowed = [point for point, row in zip(points, rows, strict=True) if row.get("not_finite_share")]
    if overflowed:
        ax.plot(*zip(*overflowed, strict=True), "x", color=style.INK, ms=7, mew=1.4)


# --- drawing ------------------------------------------------------------------------------------------------


def _figure(high_in: float) -> Figure:
    """An empty figure whose parts find their places, with a margin around them."""
    return Figure(figsize=(style.WIDTH_IN, high_in), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06))


def _bar_axes(names: Sequence[str], title: str, unit: str) -> tuple[Figure, Axes]:
    """An empty chart with room for one horizontal bar a name, the first one on top."""
    fig = _figure(1.25 + BAR_IN * len(names))
    ax = fig.subplots()
    ax.set(ylim=(len(names) - 0.4, -0.6), title=title, xlabel=unit)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig, ax


def _bar(ax: Axes, y: float, left: float, width: float, colour: str, hatch: str | None = None) -> None:
    if width > 0:
        ax.barh(y, width, THICK, left=left, color=colour, hatch=hatch, edgecolor=style.PAPER, linewidth=0)


def _beside(ax: Axes, end: float, y: float, words: str) -> None:
    """What a bar amounts to, right of its end."""
    ax.annotate(words, (end, y), (7, 0), textcoords="offset points", va="center", size=SMALL + 0.5)


def _reach(ax: Axes, longest: float, words_in: float) -> None:
    """Let the time axis reach so far that so many inches are left for words beside the longest bar."""
    ax.set_xlim(0, longest * PLOT_IN / (PLOT_IN - words_in))


def _reach_log(ax: Axes, least: float, longest: float) -> None:
    """The same on a logarithmic axis: a bar's length then says little, its end and the ticks everything."""
    ax.set(xscale="log", xlim=(least / 2, longest * 2.2 * (longest / least) ** 0.15))
    _plain_numbers(ax.xaxis)


def _plain_numbers(axis: Axis) -> None:
    """2, 5, 10, 20 on a logarithmic axis instead of powers of ten."""

    def number(value: float, _: int) -> str:
        return f"{value:g}" if f"{value:.0e}"[0] in "125" else ""

    axis.set_major_formatter(number)
    axis.set_minor_formatter(number)


def _key(fig: Figure, kinds: Mapping[str, tuple[str, str | None]], columns: int) -> None:
    """What the colours mean, under the chart: label → (colour, hatch)."""
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=style.PAPER, linewidth=0, label=label)
        for label, (colour, hatch) in kinds.items()
    ]
    look = {"fontsize": SMALL + 0.5, "handlelength": 1.2, "handletextpad": 0.5, "columnspacing": 1.5}
    fig.set_figheight(fig.get_figheight() + 0.2 * -(-len(handles) // columns))
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, **look)


def _seconds(value: float) -> str:
    """Three significant digits, no exponent: 0.031, 4.34, 13.4, 134."""
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if value >= limit), 3)
    return f"{value:.{decimals}f}"
