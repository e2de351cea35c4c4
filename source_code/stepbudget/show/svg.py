"""How is a timeline drawn? As one SVG document that needs nothing else, and a script that lets a reader look around.

What is drawn is the whole window, for viewers that run no script: what is wider than a pixel as it is, the rest as high
as the share of the pixel's time in which it ran. Beside it stand all events as numbers, from which ``live.js`` draws
any part of the window in the same way. Of a row with more events than a page should carry, those shorter than a
resolution are kept together with their neighbours of the same look.

A picture shown as an image cannot know its page's ground: its colours read on light and dark alike. Inlined, it takes
the page's own ink, and the colours by class of stepbudget.show.style where the page has them.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from math import log10

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.budget import CAUSES
from stepbudget.show import palette, style
from stepbudget.show.words import duration
from stepbudget.window import Window

WIDE, LEFT, RIGHT = 864, 116, 12  # px: the picture, as wide as the course's figures; what stands beside the rows
PLOT = WIDE - LEFT - RIGHT  # px of the window's time, and columns of what is thinner than one
GAP, AXIS, LINE = 3, 24, 17  # px between rows; of the time axis; of a line of words
LEAST = 0.08  # of a row's height: what ran at all is seen
NARROW, BROAD = "fijlrt.,:;'|()[]! ", "mwMW%@…"
TICKS = 8  # of the time axis at most
MOST_BYTES = 130_000  # of a document: with the script, and written as an image, 150,000
UNITS = 10**7  # the window is no longer than this many units
NAME = 240  # letters of a name in full
RESOLUTIONS_NS = [0, *(digit * 10**power for power in range(2, 12) for digit in (1, 2, 5))]
DIGITS = "0123456789abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVWXYZwxyz-_"  # of numbers in base 32
IDENT = "IDENT"  # stands for the document's own name until all of it is known

FROM_GPU, ELSEWHERE, DRY, QUEUE = "from_gpu", "elsewhere", "dry", "queue"
WORDS = {
    style.CALL: "calls that launch, and the like",
    style.FILL: "memory fills",
    FROM_GPU: "copies to the host",
    ELSEWHERE: "other copies",
    f"pageable_{FROM_GPU}": "copies to pageable memory",
    DRY: "nothing queued: the GPU waits for the CPU",
}
ORDER = [*CAUSES, style.CALL, style.FILL, *WORDS]  # of looks, from the ground of a row upwards
# On light and dark ground alike.
COLOURS = style.looks(is_dark=False) | {
    "profiler": "#5A626C",
    "unexplained": "#B4B4AE",
    FROM_GPU: palette.PINK,
    f"pageable_{FROM_GPU}": palette.PINK,
    ELSEWHERE: palette.MUTED,
    DRY: palette.VERMILION,
    QUEUE: palette.SKY,
}
HATCHES = {cause: style.HATCHES[look.hatch] for cause, look in palette.CAUSES.items() if look.hatch}
HATCHES[f"pageable_{FROM_GPU}"] = style.HATCHES["x"]

_SOURCE = resources.files(__package__).joinpath("live.js").read_text(encoding="utf-8").splitlines()
SCRIPT = " ".join(line.strip() for line in _SOURCE if not line.startswith("//"))


@dataclass(frozen=True)
class Row:
    """A row: bars (``events``: start, end in ns since the window's start, look, label, name, detail), or a curve."""

    title: str
    about: str  # smaller, below the title
    high: int  # px
    events: pd.DataFrame | None = None
    what: str = ""  # the events, in the plural
    said: str = ""  # what stands in it, in words
    key: Sequence[tuple[str, str]] = ()  # look and meaning
    nothing: str = ""  # what an empty row says
    curve: Sequence[float] | np.ndarray = ()  # values of equal parts of the window
    top: float = 0  # what the row's height stands for
    look: str = ""  # of the curve
    unit: str = " %"
    note: str = ""  # below the key

    def __post_init__(self) -> None:
        object.__setattr__(self, "said", self.said or self.nothing)

    @property
    def name(self) -> str:
        """Its title with what stands below it."""
        return f"{self.title} ({self.about.strip('()')})" if self.about else self.title

    @property
    def is_empty(self) -> bool:
        return bool(self.nothing)


def one(what: str) -> str:
    """One of several: ``kernels`` → ``kernel``."""
    return what[:-2] if what.endswith("ches") else what[:-1]


def look_of_copy(name: str) -> str:
    """The hue tells the direction, a hatch the pageable memory."""
    is_pageable = name.endswith("pageable")
    if name.startswith("host to device"):
        return "pageable_copy" if is_pageable else "copies"
    return ELSEWHERE if not name.startswith("device to host") else f"pageable_{FROM_GPU}" if is_pageable else FROM_GPU


def image(svg: str, alternative: str) -> str:
    """The document as an HTML image: what survives where neither SVG nor scripts are let through."""
    source = svg.translate({ord(letter): f"%{ord(letter):02X}" for letter in '%#"&<>'})
    high = svg.partition(" height='")[2].partition("'")[0]
    look = f'width="{WIDE}" height="{high}" style="width: 100%; max-width: 1100px; height: auto"'
    return f'<img class="stepbudget-live" alt="{_plain(alternative)}" {look} src="data:image/svg+xml,{source}">'


def document(title: str, window: Window, rows: Sequence[Row], span_ns: int, alternative: str) -> str:
    """The SVG. ``span_ns``: what fills the width. The same for the same rows, whatever the machine."""
    tops = np.cumsum([24 if title else 2, *(row.high + GAP for row in rows)]).tolist()
    drawn = [_beside(row, top, window, span_ns) for row, top in zip(rows, tops, strict=False)]
    drawn.append(f"<svg class='plot' x='{LEFT}' width='{PLOT}' height='{tops[-1] + AXIS}'>")
    drawn += [_drawn(row, top, window, span_ns) for row, top in zip(rows, tops, strict=False)]
    drawn.append(f"{_axis(tops, span_ns)}</svg>")
    room = MOST_BYTES - len("".join(drawn).encode())
    resolutions, data = _fitting(window, rows, tops, span_ns, room)
    lines = _key_lines(_key(rows), [row.note for row in rows if row.note], tops[-1] + AXIS + 8)
    high = tops[-1] + AXIS + 8 + LINE * (len(lines) + 1)  # the last for the script's words
    merged = ", ".join(f"{row.name} {duration(ns)}" for row, ns in zip(rows, resolutions, strict=True) if ns)
    told = f"{alternative}; neighbours drawn together when shorter than: {merged}" if merged else alternative
    found = "".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDE} {high}' width='{WIDE}' height='{high}' "
            f"id='{IDENT}' role='img' aria-label='{_plain(told)}' color='#757C85' fill='currentColor' "
            "font-family='system-ui,-apple-system,Segoe UI,Roboto,Noto Sans,Ubuntu,sans-serif' font-size='11.5'>",
            f"<metadata><![CDATA[{data}]]></metadata><defs>{_patterns(rows)}</defs>",
            f"<text x='{LEFT}' y='15' font-size='13' font-weight='600'>{_plain(title)}</text>" if title else "",
            *drawn,
            *lines,
            "</svg>",
        ]
    )
    return found.replace(IDENT, "t" + hashlib.sha256(found.encode()).hexdigest()[:8])


# --- what stands around the rows ----------------------------------------------------------------------------


def _beside(row: Row, top: int, window: Window, span_ns: int) -> str:
    """A row's name, its ground, and what it says where it is empty."""
    middle = top + row.high / 2
    wide = PLOT * (window.end - window.start) / span_ns
    names = [(row.title, "", middle + (-1.5 if row.about else 4))]
    names += [(row.about, " font-size='10' opacity='.8'", middle + 10)] if row.about else []
    words = "".join(
        f"<text x='{LEFT - 8}' y='{y:g}' text-anchor='end'{look}>{_plain(name)}</text>" for name, look, y in names
    )
    ground = f"<rect class='ground' x='{LEFT}' y='{top}' width='{wide:.1f}' height='{row.high}' rx='2' opacity='.1'/>"
    nothing = f"<text x='{LEFT + 10}' y='{middle + 4:g}' font-style='italic'>{row.nothing}</text>"
    return words + ground + (nothing if row.nothing else "")


def _axis(tops: Sequence[int], span_ns: int) -> str:
    """Lines through all rows and what their times are, in ms since the window's start."""
    bottom = tops[-1] - GAP
    ticks = [(tick, PLOT * tick / span_ns) for tick in _ticks(span_ns)]
    lines = "".join(f"M{x:.1f} {tops[0]}V{bottom}" for tick, x in ticks if tick)
    words = "".join(
        f"<text x='{x:.1f}' y='{bottom + 15}' text-anchor='{'middle' if tick else 'start'}'>{tick / 1e6:,.9g}</text>"
        for tick, x in ticks
        if x < PLOT - 40
    )
    words += f"<text x='{PLOT}' y='{bottom + 15}' text-anchor='end'>ms</text>"
    return f"<path d='{lines}' stroke='currentColor' opacity='.25'/>{words}"


def _ticks(length: int) -> list[int]:
    """Moments at 1, 2 or 5 times a power of ten, no more than TICKS of them after the first."""
    power = 10 ** max(0, int(log10(length / TICKS))) if length > TICKS else 1
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if length / step <= TICKS)
    return list(range(0, length + 1, step))


def _key(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What the colours mean, those that occur: the ranges first, then what the GPU and the CPU did."""
    pairs = dict.fromkeys(pair for row in rows for pair in row.key)
    named = [pair for pair in pairs if pair[0] in ("", *style.RANGES)]
    return named + sorted({*pairs} - {*named}, key=lambda pair: (_place(pair[0]), pair[1]))


def _key_lines(key: Sequence[tuple[str, str]], notes: Iterable[str], top: int) -> list[str]:
    """The key in lines as wide as the picture, then the notes."""
    lines, at = [""], LEFT
    for look, words in key:
        words = words if len(words) <= 60 else f"{words[:59]}…"
        wide = 16 + width(words)
        if at > LEFT and at + wide > WIDE:
            lines.append("")
            at = LEFT
        y = top + LINE * (len(lines) - 1)
        swatch = f"<rect x='{at:.0f}' y='{y + 2}' width='11' height='11' rx='2' {_fill(look)}/>" if look else ""
        lines[-1] += f"{swatch}<text x='{at + 16:.0f}' y='{y + 12}'>{_plain(words)}</text>"
        at += wide + 12
    lines = [line for line in lines if line]
    y = top + LINE * len(lines) + 12
    return lines + [f"<text x='{LEFT}' y='{y + LINE * i}'>{_plain(note)}</text>" for i, note in enumerate(notes)]


def width(words: str) -> float:
    """Pixels that a text takes at most, in whatever typeface without serifs."""
    return sum(4.6 if letter in NARROW else 11.4 if letter in BROAD else 7.4 for letter in words)


def _fill(look: str) -> str:
    """A look as attributes of a shape."""
    if look in HATCHES:
        return f"fill='url(#{IDENT}-{look})'"
    return f"fill='{COLOURS[look]}' style='fill:var(--{look},{COLOURS[look]})'"


def _ink(look: str) -> str:
    """What can be read on a look, as attributes of a text."""
    ink = style.ink(COLOURS[look])
    return f"fill='{ink}' style='fill:var(--on-{look},{ink})'"


def _patterns(rows: Sequence[Row]) -> str:
    """The hatches that occur."""
    looks = sorted({look for row in rows for look, _ in row.key if look in HATCHES})
    place = "patternUnits='userSpaceOnUse' width='7' height='7'"
    strokes = "fill='none' stroke='#22262B' stroke-opacity='.35'"
    return "".join(
        f"<pattern id='{IDENT}-{look}' {place}><rect width='7' height='7' fill='{COLOURS[look]}' "
        f"style='fill:var(--{look},{COLOURS[look]});stroke:none'/>"
        f"<g {strokes}>{style.STROKES[HATCHES[look]]}</g></pattern>"
        for look in looks
    ).replace('"', "'")


# --- the rows, drawn over the whole window ------------------------------------------------------------------


def _drawn(row: Row, top: int, window: Window, span_ns: int) -> str:
    if row.events is not None:
        return f"<g transform='translate(0 {top})'>{_bars(row, span_ns)}</g>"
    if not len(row.curve):
        return ""
    parts = PLOT * (window.end - window.start) / span_ns
    values = _averaged(np.asarray(row.curve, dtype=float), parts)
    heights = np.round(row.high * np.minimum(values / row.top, 1), 1)
    shape = _outline(heights, row.high, parts / len(values))
    return f"<path transform='translate(0 {top})' {_fill(row.look)} d='{shape}'/>"


def _averaged(values: np.ndarray, most: float) -> np.ndarray:
    """No more values than pixels: the mean of each few; of the last, those that are left."""
    each = max(1, int(np.ceil(len(values) / max(1, most))))
    starts = np.arange(0, len(values), each)
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


def _bars(row: Row, span_ns: int) -> str:
    """What is as wide as a pixel as it is; the rest column by column, the looks stacked."""
    start, end = (row.events[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    looks = row.events["look"].to_numpy(dtype=object)
    at, widths = start * PLOT / span_ns, (end - start) * PLOT / span_ns
    wide = widths >= 1
    found = sorted(row.events["look"].unique(), key=_place)
    layers = [(look, own) for look in found if (own := (looks == look) & ~wide).any()]
    shapes = _shares([(look, start[own], end[own]) for look, own in layers], start[wide], end[wide], row.high, span_ns)
    drawn = [f"<path {_fill(look)} d='{shape}'/>" for look, shape in shapes]
    for look in found:
        places = zip(at[own := wide & (looks == look)].tolist(), widths[own].tolist(), strict=True)
        shape = "".join(f"M{x:.1f} 0h{max(1, width - 0.4):.1f}v{row.high}H{x:.1f}z" for x, width in places)
        drawn += [f"<path {_fill(look)} d='{shape}'/>"] if shape else []
    labels = row.events["label"].to_numpy(dtype=object)
    for i in np.flatnonzero(widths > 15) if row.high >= 16 else ():
        if labels[i] and width(labels[i]) + 8 < widths[i]:
            place = f"x='{at[i] + 4:.1f}' y='{row.high / 2 + 4:g}'"
            drawn.append(f"<text {place} {_ink(looks[i])}>{_plain(labels[i])}</text>")
    return "".join(drawn)


def _shares(
    layers: Iterable[tuple[str, np.ndarray, np.ndarray]], start: np.ndarray, end: np.ndarray, high: int, span_ns: int
) -> list[tuple[str, str]]:
    """Of each column's time that nothing wide takes (from ``start`` to ``end``), the share in which any layer so far
    runs, as the paths of columns; the last layer comes first."""
    edges = span_ns * np.arange(PLOT + 1, dtype=np.int64) // PLOT
    taken = intervals.covered(intervals.from_edges(start, end), edges[:-1], edges[1:])
    free, seen, shapes = np.maximum(np.diff(edges) - taken, 1), intervals.EMPTY, []
    for look, first, last in layers:
        seen = intervals.from_edges(np.append(seen[:, 0], first), np.append(seen[:, 1], last))
        share = intervals.covered(seen, edges[:-1], edges[1:]) / free
        heights = np.where(share > 0, np.round(high * np.clip(share, LEAST, 1)), 0)
        shapes.append((look, _outline(heights, high)))
    return shapes[::-1]


def _outline(heights: np.ndarray, high: int, wide: float = 1) -> str:
    """The path of columns of equal width standing on the ground, those of one height together."""
    last = np.flatnonzero(np.append(np.diff(heights) != 0, True))
    steps = "".join(f"V{high - heights[i]:g}H{round((i + 1) * wide, 1):g}" for i in last.tolist())
    return f"M0 {high}{steps}V{high}z"


def _place(look: str) -> int:
    return ORDER.index(look) if look in ORDER else len(ORDER)


# --- the numbers behind the rows ----------------------------------------------------------------------------


def _fitting(
    window: Window, rows: Sequence[Row], tops: Sequence[int], span_ns: int, room: int
) -> tuple[list[int], str]:
    """The finest resolution (ns) of each row at which all data have room, and the data; 0: each event is kept.

    The row with the most bars is made coarser first, one of kernels only when it has three times as many.
    """
    finest = [0] * len(rows)
    bars = [0.0 if row.events is None else float(len(row.events)) for row in rows]
    most = sum(bars)
    while True:
        while sum(bars) > most and max(finest) < len(RESOLUTIONS_NS) - 1:
            row = max(range(len(rows)), key=lambda row: bars[row] / (3 if rows[row].what == "kernels" else 1))
            finest[row] += 1
            bars[row] = _count(rows[row].events, RESOLUTIONS_NS[finest[row]])
        resolutions = [RESOLUTIONS_NS[place] for place in finest]
        data = _data(window, rows, tops, span_ns, resolutions)
        size = len(data.encode())
        if size <= room or max(finest) == len(RESOLUTIONS_NS) - 1:
            return resolutions, data
        most = 0.95 * sum(bars) * min(1.0, room / size)


def _count(events: pd.DataFrame, resolution: int) -> float:
    """How many bars the events become."""
    start, lasts = events["start"].to_numpy(), (events["end"] - events["start"]).to_numpy()
    short = lasts < resolution
    cells = pd.factorize(events["look"])[0][short] * (1 << 45) + start[short] // resolution
    return float(len(short) - short.sum() + len(np.unique(cells)))


def merged(events: pd.DataFrame, resolution: int) -> pd.DataFrame:
    """The events with ``count`` and ``busy``: those of one look that are shorter than the resolution (ns) and begin in
    the same cell of a grid as wide are one bar, from the first's start to the last's end; ``busy``: ns in which any of
    them ran."""
    events = events.sort_values(["start", "end"], kind="stable").reset_index(drop=True)
    alone = pd.Series(np.arange(len(events)), index=events.index)
    if resolution:
        short = events["end"] - events["start"] < resolution
        together = events.groupby(["look", events["start"] // resolution], sort=False).ngroup() + len(events)
        alone = alone.where(~short, together)
    groups = alone.rename("group")
    reach = events["end"].groupby(groups).cummax().groupby(groups).shift().fillna(0).astype("int64")
    busy = (events["end"] - np.maximum(events["start"], reach)).clip(lower=0)
    table = events.assign(busy=busy, count=1).groupby(groups, sort=False)
    firsts = dict.fromkeys(["look", "label", "name", "detail"], "first")
    return table.agg({"start": "min", "end": "max", "busy": "sum", "count": "sum", **firsts}).reset_index(drop=True)


def _data(window: Window, rows: Sequence[Row], tops: Sequence[int], span_ns: int, resolutions: Sequence[int]) -> str:
    """What the script draws from, as JSON; the numbers of a row as ``_packed``.

    An event is three numbers: its start since the one before and its length, both in units, and twice the number of
    what it is (in ``said``: of its look, the pixels that its label takes, and among ``texts`` its label, name and
    detail). One that stands for several has one more there, and two numbers behind: how many, and for how many units
    any of them ran. A curve is thousandths of the row's height.
    """
    unit = 1
    while span_ns / unit > UNITS:
        unit *= 10
    texts, said, plots = _Numbers(), _Numbers(), []
    looks = _Numbers()
    used = {look for row in rows for look in (*dict(row.key), row.look) if look}
    for look in sorted(sorted(used), key=_place):  # ranges have no place: by their names, the same each time
        looks.of(look)
    for row, top, resolution in zip(rows, tops, resolutions, strict=False):
        own = {"y": top, "h": row.high, "what": row.what}
        if row.events is not None:
            bars = merged(row.events, resolution)
            what = [
                said.of((looks.of(look), round(width(label)), texts.of(label), texts.of(name[:NAME]), texts.of(detail)))
                for look, label, name, detail in zip(bars.look, bars.label, bars["name"], bars.detail, strict=True)
            ]
            start, end, busy = (bars[column].to_numpy(dtype=np.int64) // unit for column in ("start", "end", "busy"))
            several = bars["count"].to_numpy() > 1
            columns = (np.diff(start, prepend=0), end - start, 2 * np.array(what, dtype=np.int64) + several)
            numbers = np.column_stack([*columns, bars["count"].to_numpy(), busy])
            kept = np.column_stack([np.ones((len(bars), 3), dtype=bool), several, several])
            own["bars"] = _packed(numbers[kept].tolist())
        elif len(row.curve):
            values = np.round(1000 * np.minimum(np.asarray(row.curve, dtype=float) / row.top, 1)).astype(int)
            own |= {"look": looks.of(row.look), "top": row.top, "unit": row.unit, "name": row.title}
            own["curve"] = _packed(values.tolist())
        plots.append(own)
    words = dict(pair for row in rows for pair in row.key if pair[0] not in style.RANGES)
    drawn = [[_fill(look), _ink(look), words.get(look, "")] for look in looks]
    told = {"span": span_ns // unit, "end": (window.end - window.start) // unit, "unit": unit, "left": LEFT}
    told |= {"plot": PLOT, "beside": LEFT + RIGHT, "rows": plots, "looks": drawn, "said": [*said], "texts": [*texts]}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).replace("]]>", "]]\\u003e")


class _Numbers(dict):
    """Things in the order in which they were first asked for."""

    def of(self, thing: object) -> int:
        return self.setdefault(thing, len(self))


def _packed(numbers: Iterable[int]) -> str:
    """Whole numbers in base 32, the highest digit first; a number's last digit is one of the second half of DIGITS."""
    written = []
    for number in numbers:
        digits = DIGITS[32 + number % 32]
        while number := number // 32:
            digits = DIGITS[number % 32] + digits
        written.append(digits)
    return "".join(written)


def _plain(text: str) -> str:
    """A text for SVG and HTML: harmless, whatever a program put into its names."""
    return html.escape(text)
