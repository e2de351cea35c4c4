"""How are shares drawn? Bars, columns and whiskers as SVG images, which stay where a viewer takes inline SVG away.

An image is as wide as its place and never scales its words: shapes lie at a share of the width. It follows the system's
light or dark mode by itself, and has no ground of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

import numpy as np

from stepbudget.show import palette, style
from stepbudget.show.words import escaped, three

SAFE = " !$'()*+,-./:;=?@_~"  # what a quoted address holds as it is
FONT = "system-ui,sans-serif"
NARROW, LETTER = 560, 6.6  # px: a bar's width on the narrowest page, and an upper estimate of a letter's
COLUMNS, HIGH = 1000, 100  # the box of the columns
GOOD, BAD, SAME = "good", "bad", "quiet"  # colours of a change, by the palette's names


def swatch(look: str) -> str:
    """A small square in a cause's colour, with its hatch, to stand before its name."""
    css = "display: inline-block; vertical-align: -1px; margin: 0 0.4em 0 0; width: 12px; height: 12px"
    return _img(_document([_box(look)], [look], "width='12' height='12'"), "", css)


def bar(parts: Sequence[tuple[str, str, float]], whole: float, label: str) -> str:
    """A stacked bar. ``parts``: cause, words and ms of each; ``whole``: ms that fill the width; ``label``: alt text."""
    shapes, at = [], 0.0
    for look, words, ms in parts:
        if ms > 0 and whole > 0:
            share, amount = 100 * ms / whole, f"{three(ms)} ms"
            written = next((text for text in (f"{words}, {amount}", words, amount) if _fits(text, share)), "")
            place = f"x='{at:.3f}%' y='0' width='{share:.3f}%' height='100%'"
            text = f"<text class='on-{look}' x='7' y='50%' dy='.35em'>{escaped(written)}</text>" if written else ""
            shapes.append(f"<svg {place}>{_box(look)}{text}</svg>")
            at += share
    drawn = _document(shapes, [look for look, _, ms in parts if ms > 0], "width='100%' height='40'")
    return _img(drawn, label, "display: block; width: 100%; height: 40px; border-radius: 3px; margin: 6px 0")


def columns(parts: Mapping[str, Sequence[float]], highest: float, label: str) -> str:
    """A column a step, stacked. ``parts``: cause → ms of each step; ``highest``: ms that fill the height."""
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
        shapes += [f"<path class='{look}' d='{path}'/>"] if path else []
        below = above
    box = f"viewBox='0 0 {COLUMNS} {HIGH}' preserveAspectRatio='none' width='100%' height='110'"
    css = "display: block; width: 100%; height: 110px; margin: 6px 0"
    drawn = [look for look, own in parts.items() if np.any(own)]
    return _img(_document(shapes, drawn, box), label, css)


def whisker(low: float, middle: float, high: float, reach: float) -> str:
    """Between what a change lies: a line from low to high, a dot at its middle; ``reach``: half of the width."""

    def x(value: float) -> float:
        return 50 + 47 * max(-1.0, min(1.0, value / reach)) if reach else 50.0

    look = GOOD if high < 0 else BAD if low > 0 else SAME
    shapes = [
        f"<line class='zero' x1='50%' x2='50%' y1='0' y2='16'/>"
        f"<line class='between {look}' x1='{x(low):.2f}%' x2='{x(high):.2f}%' y1='8' y2='8'/>"
        f"<circle class='{look}' cx='{x(middle):.2f}%' cy='8' r='2.5'/>"
    ]
    drawn = _document(shapes, [look], "width='100%' height='16'")
    return _img(drawn, "", "display: block; width: 140px; height: 16px")


def _box(look: str) -> str:
    """All of a place in a cause's colour, with its hatch."""
    hatch = palette.CAUSES[look].hatch if look in palette.CAUSES else ""
    ground = f"<rect class='{look}' width='100%' height='100%'/>"
    return ground + (f"<rect fill='url(#{style.HATCHES[hatch]})' width='100%' height='100%'/>" if hatch else "")


def _document(shapes: Iterable[str], looks: Sequence[str], size: str) -> str:
    """The whole image: the colours and hatches that it uses, then its shapes."""
    looks = [*dict.fromkeys(looks)]
    light, dark = (_rules(looks, is_dark) for is_dark in (False, True))
    hatches = [*dict.fromkeys(palette.CAUSES[look].hatch for look in looks if look in palette.CAUSES)]
    patterns = "".join(
        f"<pattern id='{style.HATCHES[own]}' patternUnits='userSpaceOnUse' width='7' height='7'>"
        f"{style.STROKES[style.HATCHES[own]]}</pattern>"
        for own in hatches
        if own
    )
    css = f"text{{font:12px {FONT}}}pattern{{fill:none}}.between{{stroke-width:7;stroke-opacity:.4}}{light}"
    css += f"@media(prefers-color-scheme:dark){{{dark}}}"
    defs = f"<defs>{patterns}</defs>" if patterns else ""
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}><style>{css}</style>{defs}{''.join(shapes)}</svg>"


def _rules(looks: Sequence[str], is_dark: bool) -> str:
    theme, rules = palette.DARK if is_dark else palette.LIGHT, ""
    for look in looks:
        own = palette.CAUSES.get(look)
        colour = theme[look] if own is None else own.dark if is_dark else own.light
        rules += f".{look}{{fill:{colour};}}"
        rules += (
            f".between.{look}{{stroke:{colour}}}" if own is None else f".on-{look}{{fill:{palette.ink_on(colour)}}}"
        )
    return rules + f"pattern *{{stroke:{theme['strokes']};fill:none}}.zero{{stroke:{theme['quiet']}}}"


def _fits(text: str, share: float) -> bool:
    return LETTER * len(text) + 14 < NARROW * share / 100


def _img(document: str, label: str, css: str) -> str:
    return f'<img alt="{escaped(label)}" src="data:image/svg+xml,{quote(document, SAFE)}" style="{css}">'
