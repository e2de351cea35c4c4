"""What does a report look like? Pictures of a page as SVG: bars of causes, and a timeline, drawn without a browser.

A picture is as wide as its place and never scales its words: shapes lie in a box of their own that is stretched, words
beside them at a share of the width. Colours are classes, which the page gives a meaning on light and on dark ground.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepbudget.errors import printable
from stepbudget.say.words import three

COLUMNS, HIGH = 1000, 100  # of a picture, in the stretched box
NARROW = 560  # px: a row's width on the narrowest page; what is written has to fit there
LETTER = 6.6  # px, an upper estimate


def escaped(text: object) -> str:
    """A text for a page: harmless, whatever a program put into its names."""
    return html.escape(printable(str(text)))


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
