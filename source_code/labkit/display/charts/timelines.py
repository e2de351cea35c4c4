"""What does a report look like? The rows of Nsight Systems' timeline, for an epoch or for a single step.

From top to bottom as a reader meets them: what the program says it does (NVTX phases), the CUDA calls it makes, what
the GPU runs because of them, and how busy the Tensor Cores are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style
from labkit.display.given import on_reports
from labkit.display.table import short_kernel
from labkit.errors import LabError, near
from stepbudget import intervals, kernel_names
from stepbudget.ask.copies import labelled
from stepbudget.ask.phases import named
from stepbudget.report import OPERATOR, Report, remembered
from stepbudget.show.palette import ink_on, tint
from stepbudget.window import Window

LEFT, RIGHT = 0.115, 0.94  # where the rows begin and end, in widths of the figure
PLOT_IN = style.WIDTH_IN * (RIGHT - LEFT)
PIXELS = round(PLOT_IN * style.DPI)
SMALL = 8  # points
LETTER_IN = 0.6 * SMALL / 72  # an upper estimate of a letter's width: labels must not depend on the font's metrics
TOP_IN, AXIS_IN, KEY_LINE_IN = 0.42, 0.47, 0.19  # heights of the title, the time axis, a line of the key
BAR = (0.12, 0.88)  # lower and upper edge of a bar in its row
MOST_KINDS, OTHERS = 12, "other ranges"  # in the key of the phases

# A single step's kernels, in one word. First match wins; else the kernel's short name.
NICKNAMES = [
    ("conv forward", r"fprop|implicit_convolve"),
    ("conv dgrad", r"dgrad"),
    ("conv wgrad", r"wgrad|Wgrad"),
    ("matmul", r"gemm|nvjet"),
    ("pool backward", r"max_pool_backward"),
    ("pool", r"max_pool_forward"),
    ("layout", r"nchwToNhwc|nhwcToNchw"),
    ("FFT", r"^(void )?fft2d"),
    ("dropout", r"dropout"),
    ("ReLU", r"launch_clamp_scalar"),
    ("ReLU backward", r"threshold_kernel"),
    ("sum", r"reduce_kernel"),
    ("fill", r"FillFunctor"),
    ("add", r"CUDAFunctor_add"),
    ("optimizer", r"multi_tensor_apply"),
    ("loss", r"nll_loss"),
    ("softmax", r"softmax"),
]


@dataclass(frozen=True)
class Bars:
    """Bars of one kind in one row: where (ns, shape ``(n, 2)``), in which colour, what the legend and each bar say."""

    spans: np.ndarray
    colour: str
    legend: str
    labels: Iterable[str] = ()
    hatch: str | None = None


@on_reports
def timeline(
    report: Report,
    window: Window | None = None,
    rows: Sequence[str] = ("phases", "api", "kernels", "copies", "tensor_active"),
    title: str | None = None,
    marked_by: str = "NVTX",
) -> Figure:
    """The report's rows over a window (default: the training range), milliseconds since the window's start.

    ``marked_by`` names what marked the phases, for their label.

    Where more is going on than a pixel can show, a row of kernels or calls becomes a curve: its height is the share of
    the time in which the GPU, or the CPU inside a call, was busy. Nsight Systems does the same when zoomed out.
    """
    window = window or report.window()
    if unknown := sorted({*rows} - {*ROWS}):
        raise LabError(f"no such row: {', '.join(unknown)}. {near(unknown[0], ROWS)}")
    heights = [ROWS[row].high for row in rows]
    with style.house_style(formulas=False):
        fig = Figure(figsize=(style.WIDTH_IN, TOP_IN + sum(heights) + AXIS_IN + KEY_LINE_IN * (len(rows) + 0.5)))
        axes = fig.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        axes[0].set_xlim(0, window.duration_ms)
        keys = {}
        for row, ax in zip((ROWS[row] for row in rows), axes, strict=True):
            row_name(ax, row.name.replace("NVTX", marked_by))
            if handles := row.draw(ax, report, window):
                keys[row.name] = handles
        for ax in axes[:-1]:
            ax.tick_params(bottom=False, labelbottom=False)
        axes[0].set_title(title or _title(report, window), pad=8)
        axes[-1].set_xlabel("milliseconds", size=9)
        axes[-1].tick_params(axis="x", labelsize=9)
        _write_keys(fig, keys)
    return fig


@on_reports
def pick(report: Report, ms_from: float, ms_to: float) -> Window:
    """The stretch of the training range between two times, in milliseconds since its start."""
    training = report.window()
    start, end = (min(training.start + round(1e6 * ms), training.end) for ms in (ms_from, ms_to))
    if not training.start <= start < end:
        raise ValueError(f"{training.name} lasts {training.duration_ms:.0f} ms: nothing from {ms_from} to {ms_to} ms")
    return Window(start, end, f"{training.name} from {ms_from:g} ms")


# --- the rows -----------------------------------------------------------------------------------------------


def _phases(ax: Axes, report: Report, window: Window) -> list[Patch]:
    """NVTX ranges; of nested ones the innermost."""
    found = innermost_ranges(report, window)
    if found.empty:
        return _nothing(ax, "no NVTX ranges in this report")
    kinds = []
    for kind in sorted(found["kind"].unique(), key=_usual_order):
        own = found[found["kind"] == kind]
        kinds.append(_bars(own, phase_colour(kind), kind, own["name"]))
    return _draw_bars(ax, kinds, window)


@remembered
def innermost_ranges(report: Report, window: Window) -> pd.DataFrame:
    """The innermost NVTX range at each moment of the window, but for what lasts all of it.

    Columns: ``start``, ``end`` (ns), ``name``, and ``kind``: the name, or OTHERS for all but the MOST_KINDS that last
    longest. Where there are more ranges than pixels, those of single operators are left out, if there are others.
    """
    ranges = _inside(report.ranges, window)
    ranges = ranges[~((ranges["start"] <= window.start) & (ranges["end"] >= window.end))]
    if len(ranges) > PIXELS:
        operators = named(ranges["raw_name"], OPERATOR.search)
        ranges = ranges if operators.all() else ranges[~operators]
    edges, names = intervals.innermost(*(ranges[column] for column in ("start", "end", "name")))
    found = pd.DataFrame({"start": edges[:-1], "end": edges[1:], "name": names[:-1]}).dropna()
    lasted = (found["end"] - found["start"]).groupby(found["name"]).sum().sort_values(kind="stable")
    kind = found["name"].where(found["name"].isin(lasted.index[-MOST_KINDS:]), OTHERS)
    return found.assign(kind=kind).reset_index(drop=True)


def _api(ax: Axes, report: Report, window: Window) -> list[Patch]:
    """CUDA API calls of all threads, by what they are for."""
    calls = _inside(report.api, window)
    if calls.empty:
        return _nothing(ax, "no CUDA calls in this report")
    waits, copies = named(calls["name"], WAITS), named(calls["name"], COPIES)
    kinds = [
        _bars(calls[~waits & ~copies], style.COLOURS["api"], "launch and the like"),
        _bars(calls[copies], style.COLOURS["copy"], "copy"),
        _bars(calls[waits], style.VERMILION, "wait for the GPU"),
    ]
    return _draw(ax, kinds, window)


def _kernels(ax: Axes, report: Report, window: Window) -> list[Patch]:
    """Kernels on the GPU, Tensor Core kernels apart, as far as their names say."""
    kernels = _inside(report.kernels, window)
    if kernels.empty:
        return _nothing(ax, "no kernels in this stretch")
    verdicts, nicknames = (
        {name: answer(str(name)) for name in kernels["name"].unique()} for answer in (kernel_names.by_name, nickname)
    )
    kinds = []
    for verdict, (colour, legend, hatch) in KERNEL_KINDS.items():
        own = kernels[kernels["name"].map(verdicts) == verdict]
        kinds.append(_bars(own, colour, legend, own["name"].map(nicknames), hatch))
    return _draw(ax, kinds, window)


def _copies(ax: Axes, report: Report, window: Window) -> list[Patch]:
    """Copies between host and GPU, by the kind of host memory."""
    copies = labelled(report, window)
    if copies.empty:
        return _nothing(ax, "no copies in this stretch")
    kinds = []
    groups = copies.groupby(["direction", "host_memory"], sort=True)
    for (direction, memory), own in reversed([*groups]):  # to the GPU first
        legend = COPY_WORDS.get(direction, direction).format(memory=memory)
        sizes = [f"{size / 1e6:.1f} MB" for size in own["bytes"]]
        kinds.append(_bars(own, COPY_COLOURS.get(direction, style.MUTED), legend, sizes))
    return _draw_bars(ax, kinds, window)


def _tensor_active(ax: Axes, report: Report, window: Window) -> list[Patch]:
    """The sampled counter, in per cent of the cycles; the mean of each pixel's samples where there are several."""
    samples = report.counter("Tensor Active")
    samples = samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]
    if samples.empty:
        return _nothing(ax, "Tensor Active was not sampled")
    ms = (samples["time"].to_numpy() - window.start) / 1e6
    per_cent = samples["value"].to_numpy(dtype=float)
    if len(ms) > PIXELS:
        pixel = np.minimum((ms / window.duration_ms * PIXELS).astype(int), PIXELS - 1)
        counts = np.maximum(np.bincount(pixel, minlength=PIXELS), 1)
        per_cent = np.bincount(pixel, per_cent, minlength=PIXELS) / counts
        ms = (np.arange(PIXELS) + 0.5) * window.duration_ms / PIXELS
    _empty_row(ax, (0, 100))  # always all of it: a few per cent are hardly any use of Tensor Cores, and look so
    colour = style.COLOURS["tensor core kernel"]
    ax.fill_between(ms, per_cent, step="mid", facecolor=tint(colour, 0.6), edgecolor=colour, linewidth=0.6)
    _scale(ax, 100, "100 %")
    return []


@dataclass(frozen=True)
class Row:
    """A row of the timeline: its name, who draws it and returns what there is to explain, its height in inches."""

    name: str
    draw: Callable[[Axes, Report, Window], list[Patch]]
    high: float


ROWS = {
    "phases": Row("phases\n(NVTX)", _phases, 0.42),
    "api": Row("CUDA calls", _api, 0.42),
    "kernels": Row("GPU kernels", _kernels, 0.62),
    "copies": Row("GPU copies", _copies, 0.36),
    "tensor_active": Row("Tensor\nActive", _tensor_active, 0.5),
}

KERNEL_KINDS = {  # colour, words, hatch for each answer to "does it run on Tensor Cores?"
    kernel_names.YES: (style.COLOURS["tensor core kernel"], "Tensor Cores", None),
    kernel_names.UNKNOWN: (tint(style.COLOURS["tensor core kernel"], 0.45), "perhaps Tensor Cores", "////"),
    kernel_names.NO: (style.COLOURS["kernel"], "no Tensor Cores", None),
}


WAITS, COPIES = (re.compile(part).search for part in ("Synchronize", "Memcpy"))  # calls, by their names
COPY_WORDS = {"host to device": "from {memory} memory", "device to host": "to {memory} memory"}
COPY_COLOURS = {"host to device": style.COLOURS["copy"], "device to host": style.PINK}


def phase_colour(name: str) -> str:
    """A phase's colour: the palette's, thinned, since the same colours at full strength are GPU work."""
    return tint(style.COLOURS.get(name, style.MUTED), 0.55)


def _usual_order(phase: str) -> int:
    """Where a phase stands among those that the palette knows; the others come behind them."""
    return [*style.COLOURS, phase].index(phase) + (phase == OTHERS)


def nickname(kernel: str) -> str:
    """A kernel's name in a word or two, for a bar: ``conv wgrad``, ``matmul``, ``pool``."""
    for nick, pattern in NICKNAMES:
        if re.search(pattern, kernel):
            return nick
    return re.sub(r"<.*", "", short_kernel(kernel)).rpartition("::")[2]


def _write_keys(fig: Figure, keys: dict[str, list[Patch]]) -> None:
    """What the colours mean: one line for each row that has any to explain, under the time axis."""
    fig.set_figheight(fig.get_figheight() - KEY_LINE_IN * (len(fig.axes) - len(keys)))
    high = fig.get_figheight()
    below = AXIS_IN + KEY_LINE_IN * (len(keys) + 0.5)
    fig.subplots_adjust(left=LEFT, right=RIGHT, top=1 - TOP_IN / high, bottom=below / high, hspace=0.14)
    for number, (name, key) in enumerate(reversed(keys.items())):
        line = KEY_LINE_IN * (number + 0.4) / high
        words = name.partition("\n")[0]
        fig.text(LEFT - 0.01, line + 0.035 / high, words, ha="right", va="baseline", size=SMALL, color=style.MUTED)
        fig.legend(
            handles=key,
            loc="lower left",
            bbox_to_anchor=(LEFT, line),
            ncols=len(key),
            fontsize=SMALL,
            handlelength=1.1,
            handletextpad=0.5,
            columnspacing=1.3,
            borderpad=0,
            borderaxespad=0,
        )


# --- drawing ------------------------------------------------------------------------------------------------


def _draw(ax: Axes, kinds: list[Bars], window: Window) -> list[Patch]:
    """Single bars where a pixel can tell them apart, else the share of time."""
    crowded = sum(len(kind.spans) for kind in kinds) > PIXELS
    return (_draw_shares if crowded else _draw_bars)(ax, kinds, window)


def _draw_bars(ax: Axes, kinds: list[Bars], window: Window) -> list[Patch]:
    """Each bar where it is, at least a pixel wide; its label where it fits."""
    _empty_row(ax, (0, 1))
    kinds = [kind for kind in kinds if len(kind.spans)]
    if sum(len(kind.spans) for kind in kinds) > PIXELS:
        kinds = [_one_a_pixel(kind, window) for kind in kinds]
    pixel = window.duration_ms / PIXELS
    for kind in kinds:
        ms = (np.clip(kind.spans, window.start, window.end) - window.start) / 1e6
        wide = ms[:, 1] - ms[:, 0]
        ends = ms[:, 0] + np.where(wide > 6 * pixel, wide - 0.8 * pixel, np.maximum(wide, pixel))  # neighbours part
        boxes = [_box(*span) for span in zip(ms[:, 0], ends, strict=True)]
        look = {"facecolors": kind.colour, "edgecolors": style.PAPER, "linewidths": 0, "hatch": kind.hatch}
        ax.add_collection(PolyCollection(boxes, **look), autolim=False)
        for (start, _), width, label in zip(ms, wide, kind.labels, strict=False):
            _label(ax, start + width / 2, width / window.duration_ms * PLOT_IN, label, ink_on(kind.colour))
    return [_handle(kind) for kind in kinds]


def _one_a_pixel(kind: Bars, window: Window) -> Bars:
    """The same, but of the bars that are shorter than a pixel and begin in the same one the first, for all of them."""
    pixel = max(1.0, (window.end - window.start) / PIXELS)
    short = kind.spans[:, 1] - kind.spans[:, 0] < pixel
    places = (kind.spans[short, 0] - window.start) // pixel
    first = np.unique(places, return_index=True)[1]
    labels = [label for label, is_short in zip(kind.labels, short, strict=False) if not is_short]
    spans = np.concatenate([kind.spans[~short], kind.spans[short][first]])
    return replace(kind, spans=spans, labels=labels)


def _label(ax: Axes, middle: float, room_in: float, words: str, colour: str) -> None:
    """A bar's name, on one line or on two, where it fits in so many inches."""
    for text in (words, _in_two(words)):
        if LETTER_IN * (max(map(len, text.split("\n"))) + 0.6) < room_in:
            place = {"ha": "center", "va": "center", "size": SMALL, "linespacing": 1.05}
            ax.text(middle, 0.49, text, color=colour, **place)
            return


def _in_two(words: str) -> str:
    """The words on two lines, as even as can be."""
    spaces = [place for place, letter in enumerate(words) if letter == " "]
    if not spaces:
        return words
    cut = min(spaces, key=lambda place: abs(place - len(words) / 2))
    return f"{words[:cut]}\n{words[cut + 1 :]}"


def _draw_shares(ax: Axes, kinds: list[Bars], window: Window) -> list[Patch]:
    """One column a pixel: the share of its time in which each kind runs, stacked; what overlaps counts once."""
    _empty_row(ax, (0, 1))
    edges = np.linspace(window.start, window.end, PIXELS + 1)
    columns = np.repeat((edges - window.start) / 1e6, 2)[1:-1]
    below = np.zeros(PIXELS)
    seen = np.empty((0, 2), dtype=np.int64)
    kinds = [kind for kind in kinds if len(kind.spans)]
    for kind in kinds:
        seen = intervals.union(_frame(seen), _frame(kind.spans))
        above = _share(intervals.clip(seen, window.start, window.end), edges)
        ax.fill_between(
            columns,
            np.repeat(below, 2),
            np.repeat(above, 2),
            facecolor=kind.colour,
            edgecolor="none",
            linewidth=0,
            hatch=kind.hatch,
        )
        below = above
    _scale(ax, 1, "100 %")
    ax.text(-0.012, 0.2, "share of time", transform=ax.transAxes, ha="right", va="center", size=7, color=style.MUTED)
    return [_handle(kind) for kind in kinds]


def _share(busy: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Between each two edges: the share of the time that lies in the intervals."""
    if not len(busy):
        return np.zeros(len(edges) - 1)
    so_far = np.concatenate([[0], np.cumsum(busy[:, 1] - busy[:, 0])])
    times = busy.ravel()
    levels = np.column_stack([so_far[:-1], so_far[1:]]).ravel()
    return np.diff(np.interp(edges, times, levels)) / np.diff(edges)


def _bars(table: pd.DataFrame, colour: str, legend: str, labels: Iterable[str] = (), hatch: str | None = None) -> Bars:
    return Bars(table[["start", "end"]].to_numpy(dtype=np.int64), colour, legend, labels, hatch)


def _inside(table: pd.DataFrame, window: Window) -> pd.DataFrame:
    """The rows that run at any time within the window."""
    return table[(table["end"] > window.start) & (table["start"] < window.end)]


def _frame(spans: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(spans, columns=["start", "end"])


def _box(start: float, end: float) -> list[tuple[float, float]]:
    return [(start, BAR[0]), (end, BAR[0]), (end, BAR[1]), (start, BAR[1])]


def _handle(kind: Bars) -> Patch:
    return Patch(facecolor=kind.colour, edgecolor=style.PAPER, hatch=kind.hatch, label=kind.legend, linewidth=0)


def row_name(ax: Axes, words: str) -> None:
    """The row's name, at its left."""
    ax.text(-0.012, 0.52, words, transform=ax.transAxes, ha="right", va="center", size=9)


def _scale(ax: Axes, top: float, words: str) -> None:
    """What a full row stands for, at its right."""
    ax.set_yticks([top], [words], size=SMALL, va="top")
    ax.tick_params(axis="y", left=False, labelleft=False, right=False, labelright=True)


def _empty_row(ax: Axes, limits: tuple[float, float]) -> None:
    """The ground of a row: idle until something is drawn on it."""
    ax.set(ylim=limits, yticks=[], facecolor=tint(style.IDLE, 0.4))
    ax.spines[:].set_visible(False)


def _nothing(ax: Axes, words: str) -> list[Patch]:
    """A row without content says so."""
    _empty_row(ax, (0, 1))
    ax.text(0.5, 0.48, words, transform=ax.transAxes, ha="center", va="center", size=SMALL, color=style.MUTED)
    return []


def _title(report: Report, window: Window) -> str:
    return f"{report.path.name.split('.')[0]}: {window.name} ({window.duration_ms:,.1f} ms)"
