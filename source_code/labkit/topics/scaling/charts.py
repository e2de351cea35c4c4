"""What do more GPUs bring, as a picture? Measured efficiency, and the model's line to a thousand GPUs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts import bars
from labkit.topics.scaling import model, readings
from labkit.topics.scaling.readings import PROGRAMS, Records
from stepbudget import intervals
from stepbudget.ask import collectives, iterations
from stepbudget.ask.ranks import Rank, Ranks

_HUES = (style.BLUE, style.SKY, style.ORANGE, style.VERMILION, style.GREEN)
COLOURS = dict(zip(PROGRAMS, _HUES, strict=True))
ASIDE = dict(zip(PROGRAMS, (0.9, 0.95, 1.0, 1.05, 1.1), strict=True))  # points beside one another
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ROWS = ("rank {}: CPU", "its GPU computes", "and averages")
LIKE = {"data": "data loading", "gather": "data loading", "optimizer": "optimizer step"}  # phase → whose colour it has
LIBRARIES = ("nccl", "cub::")  # how the names of their ranges begin
OWN, WAITS, MOVES = style.BLUE, style.VERMILION, style.GREEN
LANE, APART = 0.8, 0.5  # height of a row, and what lies between two ranks, in rows


def efficiency(kind: str, found: Records | None = None, programs: Collection[str] = tuple(PROGRAMS)) -> Figure:
    """Percent of what as many single GPUs do, by number of GPUs: the model's lines, and points with their ranges.

    Both are held against the program's own run on one GPU. A line ends where the batch does.
    """
    runs = readings.frame(found or readings.records())
    runs = runs[runs["scaling"] == kind]
    steps = [one for one in model.ahead(sizes=SIZES) if one.scaling == kind and one.is_possible]
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        for program in dict.fromkeys(one.job.program for one in steps if one.job.program in programs):
            line = [one for one in steps if one.job.program == program]
            shares = [100 * model.efficiency(one, line[0]) for one in line]
            colour = COLOURS[program]
            dashes = "--" if PROGRAMS[program].network == "digits" else "-"  # lines that lie on one another are seen
            ax.plot([one.n for one in line], shares, dashes, color=colour, lw=1.6, label=PROGRAMS[program].label)
            own = runs[runs["program"] == program]
            for size in sorted({*own["ranks"]} - {1}):
                gain = readings.gained(own, program, kind, size)
                if gain:
                    low, middle, high = (100 * part / size for part in (gain.low, gain.median, gain.high))
                    reach = [[middle - low], [high - middle]]
                    ax.errorbar(
                        [size * ASIDE[program]], [middle], yerr=reach, fmt="o", color=colour, ms=5, capsize=3, lw=1
                    )
        ax.set_xscale("log", base=2)
        ax.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        ax.set(xlabel="GPUs, 8 a host", ylabel="% of its own run on one GPU", ylim=(0, 125))
        ax.set_title(f"{kind.capitalize()} scaling: lines are the model's, points measured medians with their range")
        ax.legend(loc="best", fontsize=8.5)
    return fig


def step(found: Ranks, last_row: str = ROWS[-1]) -> Figure:
    """A step of each rank on one clock: the CPU's phases, what the GPU computes, its collectives split in two.

    The step is the first rank's of median length. ValueError where no range says where a step begins.
    """
    first = found.ranks[0]
    steps = sorted(iterations.step_windows(first.report, first.window), key=lambda one: (one.duration_ms, one.start))
    if not steps:
        raise ValueError("no NVTX range says where a step begins")
    usual = steps[len(steps) // 2]
    start, end = (int(time) for time in first.clock.there([usual.start, usual.end]))
    with style.house_style(formulas=False):
        fig = style.figure(1.1 + 0.85 * len(found.ranks))
        ax = fig.subplots()
        phases, names = {}, {}
        for place, rank in enumerate(found.ranks):
            top = place * (len(ROWS) + APART)
            names |= {top + row: words.format(rank.number) for row, words in enumerate((*ROWS[:-1], last_row))}
            phases |= _phases(ax, top, rank, start, end)
            busy = collectives.others(rank.report, rank.window.gpu)
            _lane(ax, top + 1, rank.clock.there(busy), start, end, OWN)
            for spans, colour in zip(_waits_and_moves(found, rank), (WAITS, MOVES), strict=True):
                _lane(ax, top + 2, spans, start, end, colour)
        ax.set(xlim=(0, (end - start) / 1e6), ylim=(max(names) + 0.6, -0.6), xlabel="milliseconds")
        ax.set_yticks(list(names), list(names.values()), size=bars.SMALL)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_title("One step of each rank, on one clock")
        bars.key(fig, phases | {"GPU computes": OWN, "waits for the last rank": WAITS, "transfer": MOVES}, columns=5)
    return fig


def _phases(ax: Axes, y: float, rank: Rank, start: int, end: int) -> dict[str, str]:
    """What a rank's program does, by its own ranges, no library's; the phases that are drawn and their colours."""
    ranges, window = rank.report.ranges, rank.window
    inside = (ranges["start"] < window.end) & (ranges["end"] > window.start) & ~ranges["name"].str.startswith(LIBRARIES)
    own = ranges[inside & ((ranges["start"] > window.start) | (ranges["end"] < window.end))]
    own = own if window.process is None else own[own["process"] == window.process]
    edges, names = intervals.innermost(*(own[column] for column in ("start", "end", "name")))
    edges, drawn = rank.clock.there(edges), {}
    for name in dict.fromkeys(filter(None, names)):
        at = [place for place, other in enumerate(names[:-1]) if other == name]
        spans = np.column_stack([edges[at], edges[[place + 1 for place in at]]])
        if len(intervals.clip(spans, start, end)):
            drawn[name] = style.phase_colour(LIKE.get(name, name))
            _lane(ax, y, spans, start, end, drawn[name])
    return drawn


def _waits_and_moves(found: Ranks, rank: Rank) -> tuple[np.ndarray, np.ndarray]:
    """When a rank's collectives wait for the last rank, and when they transfer; on the clock of reference."""
    own = found.table[(found.table["rank"] == rank.number) & found.table["last_start"].notna()]
    arrived = np.minimum(own["last_start"].to_numpy(dtype=np.int64), own["end"].to_numpy(dtype=np.int64))
    moves = intervals.from_edges(arrived, own["end"])
    return intervals.subtract(intervals.from_edges(own["start"], arrived), moves), moves


def _lane(ax: Axes, y: float, spans: np.ndarray, start: int, end: int, colour: str) -> None:
    """Bars in a row, of what lies between two times."""
    inside = (intervals.clip(spans, start, end) - start) / 1e6
    ax.broken_barh(
        [(begin, stop - begin) for begin, stop in inside], (y - LANE / 2, LANE), facecolor=colour, linewidth=0
    )
