"""What does a roofline look like? The roofs as measured, and every step or kernel as a point under its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

from labkit.display import style
from labkit.subjects.roofline import COUNTED, DTYPE_WORDS, Peaks, Point
from stepbudget.show.palette import tint

SMALL = 8.5  # points
LETTER = 0.62 * SMALL / 72  # an upper estimate of a letter's width, inches
LINE = 1.35 * SMALL / 72  # from one line of text to the next
PLOT_IN = (8.05, 3.9)  # about how large the plot is, without its axes' labels
ROOFS = {  # type → colour of its roof and of the points under it
    "fp32": style.VERMILION,
    "tf32": style.PINK,
    "fp16": style.BLUE,
    "bf16": style.GREEN,
}
MEMORY = style.INK
HALO = [withStroke(linewidth=3, foreground=style.PAPER)]  # a line behind words stops at them
ROOM = 2.0  # factor by which the axes go beyond what they hold


def roofline(
    peaks: Peaks,
    points: Sequence[Point],
    labels: Mapping[str, str] | None = None,
    title: str = "How close each step comes to what the GPU can do",
    path: bool = False,
) -> Figure:
    """Roofs of ``peaks`` and ``points`` under them: FLOP/byte and TFLOP/s, both logarithmic.

    A full dot's bytes were counted by Nsight Compute, a hollow one's from shapes. Each point is labelled with its name
    (or what ``labels`` says for it) and its share of the roof above it, which a thin line leads up to. Drawn
    are the roofs that a point stands under. ``path``: join the points, in their order.
    """
    dtypes = list(dict.fromkeys(point.dtype for point in points)) or [peaks.narrow]
    with style.chart(5.0, formulas=False) as (fig, ax):
        _axes(ax, peaks, points, dtypes)
        _draw_roofs(ax, peaks, dtypes)
        if path:
            way = [(point.intensity, point.tflops) for point in points]
            ax.plot(*zip(*way, strict=True), color=style.MUTED, lw=5, alpha=0.22, solid_joinstyle="round", zorder=2)
        for point in points:
            _draw_point(ax, peaks, point)
        _label(ax, peaks, points, dtypes, labels or {})
        ax.set_title(title)
        _key(fig, points)
    return fig


def _axes(ax: Axes, peaks: Peaks, points: Sequence[Point], dtypes: Sequence[str]) -> None:
    ridges = [peaks.ridge(dtype) for dtype in dtypes]
    x = [*(point.intensity for point in points), *ridges]
    y = [*(point.tflops for point in points), *(peaks.rate(dtype) for dtype in dtypes)]
    ax.set(xscale="log", yscale="log")
    ax.set(xlim=(min(x) / ROOM**1.3, max(x) * ROOM**1.6), ylim=(min(y) / ROOM, max(y) * ROOM))
    ax.set(xlabel="arithmetic intensity: FLOP for each byte through the GPU's memory", ylabel="TFLOP/s")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(lambda value, _: "")
    ax.grid(which="major", lw=0.6)


def _draw_roofs(ax: Axes, peaks: Peaks, dtypes: Sequence[str]) -> None:
    """The slope that memory allows, up to the highest ridge; from each ridge a level roof; and a shade beyond them."""
    left, right = ax.get_xlim()
    low, high = ax.get_ylim()
    top = max(dtypes, key=peaks.rate)
    start = max(left, low / peaks.tb_per_s)
    ends = np.array([start, peaks.ridge(top)])
    ax.plot(ends, ends * peaks.tb_per_s, color=MEMORY, lw=1.8, solid_capstyle="round", zorder=3)
    reach = [start, peaks.ridge(top), right]
    ax.fill_between(reach, [peaks.roof(x, top) for x in reach], high, color=tint(style.IDLE, 0.3), lw=0, zorder=0)
    if start > left:
        ax.fill_between([left, start], low, high, color=tint(style.IDLE, 0.3), lw=0, zorder=0)
    for dtype in dtypes:
        ridge, height = peaks.ridge(dtype), peaks.rate(dtype)
        ax.plot([ridge, right], [height, height], color=ROOFS[dtype], lw=1.8, zorder=3)
        ax.plot([ridge, ridge], [low, height], color=ROOFS[dtype], lw=0.8, ls=(0, (1, 3)), zorder=1)
        ax.plot([ridge], [height], "o", ms=4.5, mfc=style.PAPER, mec=ROOFS[dtype], mew=1.4, zorder=4)


def _draw_point(ax: Axes, peaks: Peaks, point: Point) -> None:
    roof, colour = peaks.roof(point.intensity, point.dtype), ROOFS[point.dtype]
    x = [point.intensity, point.intensity]
    ax.plot(x, [point.tflops, roof], color=colour, lw=0.9, alpha=0.55, zorder=2)
    face = colour if point.source == COUNTED else style.PAPER
    ax.plot(x[:1], [point.tflops], "o", ms=8, mfc=face, mec=colour, mew=1.8, zorder=6)


# --- words that stand in nobody's way ------------------------------------------------------------------------


class _Places:
    """Where words may stand: boxes in inches, none over another, over a dot, or beyond the plot."""

    def __init__(self, ax: Axes) -> None:
        self.left, self.right = map(log10, ax.get_xlim())
        self.low, self.high = map(log10, ax.get_ylim())
        self.taken: list[tuple[float, ...]] = []
        self.dots: list[tuple[float, float]] = []

    def inches(self, x: float, y: float) -> tuple[float, float]:
        """A place in the data's units → inches from the plot's lower left corner."""
        wide, tall = PLOT_IN
        across = (log10(x) - self.left) / (self.right - self.left) * wide
        return across, (log10(y) - self.low) / (self.high - self.low) * tall

    def overlap(self, box: tuple[float, ...]) -> float:
        """Square inches of a box that are taken or outside."""
        left, low, right, high = box
        inside = max(0.0, min(right, PLOT_IN[0]) - max(left, 0)) * max(0.0, min(high, PLOT_IN[1]) - max(low, 0))
        shared = [
            max(0.0, min(right, other[2]) - max(left, other[0])) * max(0.0, min(high, other[3]) - max(low, other[1]))
            for other in self.taken
        ]
        return 3 * ((right - left) * (high - low) - inside) + sum(shared)

    def dots_near(self, box: tuple[float, ...], own: tuple[float, float]) -> int:
        """How many other dots are so near to a box, or to the way there, that its words might be taken for theirs."""
        left, low, right, high = box
        way = np.linspace(own, ((left + right) / 2, (low + high) / 2), 12)
        return sum(
            max(left - x, x - right, low - y, y - high) < 0.22 or np.hypot(*(way - (x, y)).T).min() < 0.12
            for x, y in self.dots
            if (x, y) != own
        )

    def crossed(self, box: tuple[float, ...], own: tuple[float, float]) -> int:
        """How much of the way from a dot to a box leads over what is taken, in steps of a twelfth."""
        left, low, right, high = box
        way = np.linspace(own, ((left + right) / 2, (low + high) / 2), 13)[3:9]
        return sum(any(a <= x <= c and b <= y <= d for a, b, c, d in self.taken) for x, y in way)

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float = 0.04) -> None:
        """Take the place of a line, a small box at a time."""
        (x0, y0), (x1, y1) = start, end
        pieces = max(2, int(max(abs(x1 - x0), abs(y1 - y0)) / 0.08))
        for share in np.linspace(0, 1, pieces):
            x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            self.taken.append((x - width, y - width, x + width, y + width))


# From a dot, in inches: how its words lie, where they begin, and how many lines above it. The first are the best.
AROUND = [
    ("left", 0.14, -0.5),
    ("right", -0.14, -0.5),
    ("left", 0.14, 0.1),
    ("left", 0.14, -1.1),
    ("right", -0.14, 0.1),
    ("right", -0.14, -1.1),
    ("center", 0.0, -1.7),
    ("center", 0.0, 0.7),
    *[
        (across, dx, lines)
        for lines in (-2.0, 1.0, -3.0, 2.0, -4.2, 3.2)
        for across, dx in (("left", 0.3), ("right", -0.3))
    ],
    *[(across, dx, lines) for lines in (-1.2, 0.2, -2.4, 1.4) for across, dx in (("left", 0.6), ("right", -0.6))],
]
BESIDE = 8  # so many of them are beside the dot; from others a line leads to it


def _label(ax: Axes, peaks: Peaks, points: Sequence[Point], dtypes: Sequence[str], labels: Mapping[str, str]) -> None:
    """Words at the roofs, then at the dots, each where it covers the least."""
    places = _Places(ax)
    _, right = ax.get_xlim()
    low, _ = ax.get_ylim()
    top = max(dtypes, key=peaks.rate)
    for dtype in dtypes:
        words = f"{DTYPE_WORDS[dtype]}: {peaks.rate(dtype):,.0f} TFLOP/s"
        above = not any(1 < peaks.rate(other) / peaks.rate(dtype) < 1.25 for other in dtypes)
        where = {"xytext": (-4, 4 if above else -4), "ha": "right", "va": "bottom" if above else "top"}
        look = {"color": tint(ROOFS[dtype], 0.9), "weight": "bold", "size": SMALL + 0.5}
        ax.annotate(words, (right, peaks.rate(dtype)), textcoords="offset points", **where, **look)
        end, height = places.inches(right, peaks.rate(dtype))
        base = height if above else height - 1.6 * LINE
        places.taken.append((end - 1.1 * LETTER * len(words), base, end, base + 1.6 * LINE))
        corner = places.inches(peaks.ridge(dtype), peaks.rate(dtype))
        places.line(corner, (end, height))
        places.line(corner, (corner[0], 0), 0.01)
    ridge, (start, _) = peaks.ridge(top), ax.get_xlim()
    begin = max(start, low / peaks.tb_per_s)
    slope = places.inches(begin, begin * peaks.tb_per_s), places.inches(ridge, peaks.rate(top))
    places.line(*slope)
    angle = float(np.degrees(np.arctan2(slope[1][1] - slope[0][1], slope[1][0] - slope[0][0])))
    middle = begin**0.5 * ridge**0.5
    words = f"memory: {peaks.tb_per_s:.2f} TB/s"
    turned = {"rotation": angle, "rotation_mode": "anchor", "ha": "center", "va": "bottom"}
    ax.annotate(words, (middle, middle * peaks.tb_per_s), (-3, 4), textcoords="offset points", weight="bold",
                size=SMALL + 0.5, **turned)  # fmt: skip
    for point in points:
        x, y = places.inches(point.intensity, point.tflops)
        places.dots.append((x, y))
        places.taken.append((x - 0.08, y - 0.08, x + 0.08, y + 0.08))
        places.line((x, y), places.inches(point.intensity, peaks.roof(point.intensity, point.dtype)), 0.02)
    words = [f"{labels.get(point.name, point.name)}  {_percent(point.share(peaks))}" for point in points]
    for number, place in enumerate(_arranged(places, words)):
        _write_beside(ax, points[number], words[number], place)


def _arranged(places: _Places, words: Sequence[str]) -> list[int]:
    """A place of AROUND for the words of each dot: in turn the best one beside all the others, until none moves."""
    wide = [TextPath((0, 0), line, size=SMALL).get_extents().width / 72 + 0.04 for line in words]
    boxes = [[_box(dot, width, *place) for place in AROUND] for dot, width in zip(places.dots, wide, strict=True)]
    alone = [
        [
            places.overlap(box) + 0.002 * number + 0.03 * places.dots_near(box, dot) + 0.01 * places.crossed(box, dot)
            for number, box in enumerate(own)
        ]
        for dot, own in zip(places.dots, boxes, strict=True)
    ]
    chosen = [min(range(len(AROUND)), key=costs.__getitem__) for costs in alone]
    fixed = places.taken
    for _ in range(8):
        before = list(chosen)
        for own in range(len(words)):
            places.taken = [boxes[other][chosen[other]] for other in range(len(words)) if other != own]
            costs = [alone[own][number] + 2 * places.overlap(box) for number, box in enumerate(boxes[own])]
            chosen[own] = costs.index(min(costs))
        if chosen == before:
            break
    places.taken = fixed
    return chosen


def _box(dot: tuple[float, float], wide: float, across: str, dx: float, lines: float) -> tuple[float, ...]:
    """Left, low, right, high in inches: where words so wide stand at this place around a dot."""
    left = dot[0] + dx - {"left": 0, "right": 1, "center": 0.5}[across] * wide
    low = dot[1] + lines * LINE
    return left, low, left + wide, low + LINE


def _write_beside(ax: Axes, point: Point, words: str, place: int) -> None:
    across, dx, lines = AROUND[place]
    far = place >= BESIDE
    arrow = {"arrowstyle": "-", "color": style.MUTED, "lw": 0.7, "shrinkA": 1, "shrinkB": 5} if far else None
    offset = (72 * dx, 72 * (lines + 0.5) * LINE)
    ax.annotate(words, (point.intensity, point.tflops), offset, textcoords="offset points", ha=across, va="center",
                size=SMALL, arrowprops=arrow, path_effects=HALO, zorder=7)  # fmt: skip


def _percent(share: float) -> str:
    """``62 %``, ``1.3 %``, ``0.08 %``"""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %" if percent >= 0.95 else f"{percent:.2g} %"


def _key(fig: Figure, points: Sequence[Point]) -> None:
    """What a full dot and a hollow one mean, and the percentages beside them."""
    kinds = {"bytes counted by Nsight Compute": style.MUTED, "bytes counted from shapes": style.PAPER}
    used = {point.source == COUNTED for point in points}
    look = {"ls": "", "marker": "o", "ms": 7, "mec": style.MUTED, "mew": 1.5}
    handles = [
        Line2D([], [], mfc=face, label=label, **look)
        for (label, face), counted in zip(kinds.items(), (True, False), strict=True)
        if counted in used
    ]
    handles.append(Line2D([], [], color=style.MUTED, lw=0.9, label="up to the roof above; per cent: share of it"))
    fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=SMALL + 0.5, columnspacing=1.8)
