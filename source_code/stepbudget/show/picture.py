"""What does a report look like? Pictures of a page as SVG: bars of causes, and a timeline, drawn without a browser.

A picture is as wide as its place and never scales its words: shapes lie in a box of their own that is stretched, words
beside them at a share of the width. Colours are classes, which the page gives a meaning on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log10

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.show.words import duration, escaped, three
from stepbudget.window import Window

COLUMNS = 1000  # of a row: what is shorter than one is drawn as its column's share
HIGH = 100  # of a row, in the stretched box
LEAST = 6  # of HIGH: what ran at all is seen
NARROW = 560  # px: a row's width on the narrowest page; what is written has to fit there
LETTER = 6.6  # px, an upper estimate
TOLD = 150  # shapes of a row that say what they are when pointed at: the widest
TOLD_COLUMNS = 2  # narrower ones can hardly be pointed at
TICKS = 8  # of a time axis at most
UNITS = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


# --- bars of causes -----------------------------------------------------------------------------------------


def bar(parts: Sequence[tuple[str, str, float]], whole: float, label: str) -> str:
    """A stacked bar. ``parts``: class, words and ms of each; ``whole``: ms that fill the width; ``label``: alt text."""
    shapes, at = [], 0.0
    for look, words, ms in parts:
        if ms > 0 and whole > 0:
            share, amount = 100 * ms / whole, f"{three(ms)} ms"
            written = next((text for text in (f"{words}, {amount}", words, amount) if _fits(text, share)), "")
            place = f'x="{at:.3f}%" y="0" width="{share:.3f}%" height="100%"'
            title = f"<title>{escaped(words)}: {ms:,.1f} ms</title>"
            shapes.append(f"<svg {place}>{title}{box(look)}{_text(look, '', 7, written)}</svg>")
            at += share
    return _svg("stacked", 40, label, shapes)


def box(look: str) -> str:
    """All of a place in a cause's colour, with its hatch."""
    return "".join(f'<rect class="{look}{more}" width="100%" height="100%"/>' for more in ("", " hatch"))


def columns(parts: Mapping[str, Sequence[float]], highest: float, label: str) -> str:
    """A column a step, stacked. ``parts``: class → ms of each step; ``highest``: ms that fill the height."""
    count = max(map(len, parts.values()), default=0)
    wide = COLUMNS / max(1, count)
    gap = 0.12 * wide if wide > 4 else 0.0
    below, shapes = np.zeros(count), []
    for look, own in parts.items():
        own = np.asarray(own, dtype=float)
        above = below + own
        tops = zip(np.flatnonzero(own).tolist(), above[own > 0].tolist(), own[own > 0].tolist(), strict=True)
        path = "".join(
            f"M{wide * i + gap / 2:.1f} {HIGH * (1 - top / highest):.2f}h{wide - gap:.1f}"
            f"v{HIGH * ms / highest:.2f}h-{wide - gap:.1f}z"
            for i, top, ms in tops
        )
        shapes += [f'<path class="{look}" d="{path}"/>'] if path else []
        below = above
    return _svg("each-step", 110, label, [_stretched(shapes)])


def whisker(low: float, middle: float, high: float, reach: float) -> str:
    """Between what a change lies: a line from low to high, a dot at its middle; ``reach``: half of the width."""

    def x(value: float) -> float:
        return 50 + 47 * max(-1.0, min(1.0, value / reach)) if reach else 50.0

    side = "less" if high < 0 else "more" if low > 0 else "same"
    return (
        f'<svg class="whisker {side}" width="100%" height="16" aria-hidden="true">'
        '<line class="zero" x1="50%" x2="50%" y1="0" y2="16"/>'
        f'<line x1="{x(low):.2f}%" x2="{x(high):.2f}%" y1="8" y2="8"/>'
        f'<circle cx="{x(middle):.2f}%" cy="8" r="2.5"/></svg>'
    )


# --- the timeline -------------------------------------------------------------------------------------------


def strip(
    events: pd.DataFrame,
    window: Window,
    label: str,
    order: Sequence[str] = (),
    write: Callable[[str], str] | None = None,
) -> str:
    """A row of the timeline: ``events`` with ``start``, ``end`` (ns), ``name``, ``look`` (a class).

    What is as wide as one of COLUMNS is drawn as it is. The rest is drawn column by column, as high as the share of the
    column's time in which it ran, the looks stacked in the order of ``order``. ``write``: name → what stands in a shape
    with room for it; ``label``: alt text.
    """
    length = max(1, window.end - window.start)
    edges = (events[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    start, end = (edge.clip(window.start, window.end) - window.start for edge in edges)
    codes, found = pd.factorize(events["look"])  # comparing numbers is faster than comparing words
    known = {look: codes == found.get_loc(look) for look in (*(one for one in order if one in found), *found)}
    looks, names = (events[column].to_numpy(dtype=object) for column in ("look", "name"))
    at, widths = start * COLUMNS / length, (end - start) * COLUMNS / length
    wide = widths >= 1
    thin = [(look, start[own & ~wide], end[own & ~wide]) for look, own in known.items()]
    shapes = [_grid(length), *_shares(thin, intervals.from_edges(start[wide], end[wide]), length)]
    big = np.flatnonzero(widths >= TOLD_COLUMNS)
    told = big[np.argsort(-widths[big], kind="stable")][:TOLD]
    silent = wide.copy()
    silent[told] = False
    for look, own in known.items():
        places = zip(at[own & silent].tolist(), widths[own & silent].tolist(), strict=True)
        path = "".join(f"M{x:.1f} 0h{width:.1f}v{HIGH}h-{width:.1f}z" for x, width in places)
        shapes += [f'<path class="{look}" d="{path}"/>'] if path else []
    words = []
    for i in sorted(told.tolist(), key=lambda i: (at[i], -widths[i])):
        place = f'x="{at[i]:.1f}" width="{max(0.5, widths[i] - 0.4):.1f}" height="{HIGH}"'
        title = escaped(f"{names[i]}: {duration(end[i] - start[i])}, from {duration(start[i])} on")
        shapes.append(f'<rect class="{looks[i]}" {place}><title>{title}</title></rect>')
        text = write(str(names[i])) if write else ""
        if _fits(text, 100 * widths[i] / COLUMNS):
            words.append(_text(looks[i], f'x="{100 * at[i] / COLUMNS:.2f}%"', 5, text))
    return _svg("strip", "100%", label, [_stretched(shapes), *words])


def curve(time: np.ndarray, value: np.ndarray, window: Window, top: float, look: str, label: str) -> str:
    """A row with a sampled counter: the mean of each column's samples; where they are fewer, each until the next."""
    length = max(1, window.end - window.start)
    first = np.searchsorted(time, window.start + length * np.arange(COLUMNS + 1) / COLUMNS)
    counts, sums = np.diff(first), np.append(0.0, np.cumsum(value))
    held = np.append(0.0, value)[first[:-1]]  # the last one before the column
    means = np.where(counts > 0, np.diff(sums[first]) / np.maximum(counts, 1), held)
    shape = f'<path class="{look}" d="{_outline(np.round(HIGH * means / top, 1))}"/>'
    return _svg("strip", "100%", label, [_stretched([_grid(length), shape])])


def axis(window: Window) -> str:
    """The time since the window's start, for all rows above it."""
    length = max(1, window.end - window.start)
    unit, size = next((unit, size) for unit, size in UNITS if length >= 3 * size or size == 1)
    texts = []
    for tick in _ticks(length):
        place = 100 * tick / length
        anchor = "start" if place < 2 else "end" if place > 97 else "middle"
        words = f"{tick / size:,g}" + (f" {unit}" if tick == 0 else "")
        texts.append(f'<text x="{place:.2f}%" y="13" text-anchor="{anchor}">{words}</text>')
    return f'<svg width="100%" height="18" aria-hidden="true">{"".join(texts)}</svg>'


def _shares(layers: Iterable[tuple[str, np.ndarray, np.ndarray]], taken: np.ndarray, length: int) -> list[str]:
    """Of each column's time that is not taken, the share in which any of the layers so far runs; the last comes first.

    What is ``taken`` is drawn over it.
    """
    edges = (length * np.arange(COLUMNS + 1) / COLUMNS).astype(np.int64)
    widths = np.maximum(np.diff(edges) - intervals.covered(taken, edges[:-1], edges[1:]), 1)
    seen, shapes = intervals.EMPTY, []
    for look, start, end in layers:
        if len(start):
            seen = intervals.from_edges(np.append(seen[:, 0], start), np.append(seen[:, 1], end))
            share = intervals.covered(seen, edges[:-1], edges[1:]) / widths
            heights = np.where(share > 0, np.clip(np.round(HIGH * share), LEAST, HIGH), 0)
            shapes.append(f'<path class="{look}" d="{_outline(heights)}"/>')
    return shapes[::-1]


def _outline(heights: np.ndarray) -> str:
    """The path of a row of columns standing on the ground, those of one height together."""
    last = np.flatnonzero(np.append(np.diff(heights) != 0, True))
    steps = "".join(f"V{HIGH - heights[i]:g}H{i + 1}" for i in last.tolist())
    return f"M0 {HIGH}{steps}V{HIGH}z"


def _fits(words: str, share: float) -> bool:
    """Is there room for the words in so many per cent of the width?"""
    return bool(words) and LETTER * len(words) + 14 < share * NARROW / 100


def _text(look: str, place: str, indent: int, words: str) -> str:
    return f'<text class="on {look}" {place} dx="{indent}" y="50%" dy=".36em">{escaped(words)}</text>' if words else ""


def _svg(look: str, high: object, label: str, shapes: Iterable[str]) -> str:
    title = f"<title>{escaped(label)}</title>"
    return f'<svg class="{look}" width="100%" height="{high}" role="img">{title}{"".join(shapes)}</svg>'


def _stretched(shapes: Iterable[str]) -> str:
    place = f'viewBox="0 0 {COLUMNS} {HIGH}" preserveAspectRatio="none" width="100%" height="100%"'
    return f"<svg {place}>{''.join(shapes)}</svg>"


def _grid(length: int) -> str:
    lines = "".join(f"M{COLUMNS * tick / length:.1f} 0V{HIGH}" for tick in _ticks(length) if tick)
    return f'<path class="grid" d="{lines}"/>'


def _ticks(length: int) -> list[int]:
    """Moments at 1, 2 or 5 times a power of ten, no more than TICKS of them after the first."""
    power = 10 ** max(0, int(log10(length / TICKS))) if length > TICKS else 1
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if length / step <= TICKS)
    return list(range(0, length + 1, step))
