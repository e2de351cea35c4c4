"""What do more GPUs bring, as a picture? Measured efficiency, and the model's line to a thousand GPUs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts import bars
from stepbudget import intervals
from stepbudget.ask import collectives, iterations
from stepbudget.ask.ranks import Rank, Ranks

ROWS = ("rank {}: CPU", "its GPU computes", "and averages")
LIKE = {"data": "data loading", "gather": "data loading", "optimizer": "optimizer step"}  # phase → whose colour it has
LIBRARIES = ("nccl", "cub::")  # how the names of their ranges begin
OWN, WAITS, MOVES = style.BLUE, style.VERMILION, style.GREEN
LANE, APART = 0.8, 0.5  # height of a row, and what lies between two ranks, in rows


def one_step(found: Ranks, last_row: str = ROWS[-1]) -> Figure:
    """A step of each rank on one clock: the CPU's phases, what the GPU computes, its collectives split in two.

    The step is the first rank's of median length. ValueError where no range says where a step begins.
    """
    first = found.ranks[0]
    steps = sorted(iterations.step_windows(first.report, first.window), key=lambda one: (one.duration_ms, one.start))
    if not steps:
        raise ValueError("no NVTX range says where a step begins")
    usual = steps[len(steps) // 2]
    start, end = (int(time) for time in first.clock.there([usual.start, usual.end]))
    with style.chart(1.1 + 0.85 * len(found.ranks), formulas=False) as (fig, ax):
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
