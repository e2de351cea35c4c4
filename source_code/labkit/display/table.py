"""How does a table look in a notebook? Text left, numbers right, no index; markup says which ones were measured."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number

import pandas as pd

from labkit.display.spread import MEASURED, without_marks
from labkit.errors import LabError, near
from stepbudget.errors import visible
from stepbudget.kernel_names import short as short_kernel  # the format of a column of kernels
from stepbudget.signs import signed

__all__ = ["Format", "Table", "short_kernel", "table"]

NOTHING = "–"  # there is no number here
Format = str | Callable[[object], str]

TABLE_STYLE = "border-collapse: collapse; margin: 0.4em 0; color: inherit"
CAPTION_STYLE = (
    "caption-side: top; text-align: left; padding-bottom: 0.4em; font-size: 0.9em; color: inherit; opacity: 0.7"
)
TOTAL_RULE = "border-top: 1px solid currentColor"
PADDING = "padding: 0.25em 0.8em"
HEAD_STYLE = f"{PADDING}; vertical-align: bottom; border-bottom: 1px solid currentColor"
CELL_STYLE = f"{PADDING}; vertical-align: top"
NUMBER_STYLE = "text-align: right; white-space: nowrap"  # text and heads wrap where the page is narrow
TEXT_STYLE = "text-align: left"
LONG_WORD = re.compile(r"\S{32,}")  # names of kernels, files and metrics
JOINTS = re.compile(r"(::|[_/,.])(?=\w)")  # where such a name may go on in the next line


@dataclass(frozen=True)
class Table:
    """A table that shows itself: HTML in a notebook, aligned text elsewhere. Made by ``table()``.

    What was measured is marked with ``~`` in the text, for tests, and in HTML by its cell's class alone. The rows
    numbered in ``totals`` add up others, and a rule sets them off.
    """

    frame: pd.DataFrame
    caption: str | None = None
    formats: Mapping[str, Format] = field(default_factory=dict)
    measured: Sequence[str] = ()
    totals: Sequence[int] = ()

    def cells(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [list(row) for row in zip(*(self._column(name) for name in self.frame.columns), strict=True)]

    def __str__(self) -> str:
        names = [str(name) for name in self.frame.columns]
        rows = [names, *self.cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pads = [str.rjust if self._is_numeric(name) else str.ljust for name in self.frame.columns]
        lines = ["  ".join(pad(*cell) for pad, *cell in zip(pads, row, widths, strict=True)).rstrip() for row in rows]
        rule = "  ".join("─" * width for width in widths)
        for row in sorted(self.totals, reverse=True):
            lines.insert(row + 1, rule)
        lines.insert(1, rule)
        return "\n".join([self.caption, *lines] if self.caption else lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": str(self)}

    def _html(self) -> str:
        names = list(self.frame.columns)
        numeric = [self._is_numeric(name) for name in names]
        head = [
            f'<th style="text-align: {"right" if number else "left"}; {HEAD_STYLE}">{_breakable(str(name))}</th>'
            for name, number in zip(names, numeric, strict=True)
        ]
        body = []
        rows = zip(self.frame.itertuples(index=False, name=None), self.cells(), strict=True)
        for row, (whole, shown) in enumerate(rows):
            rule = f"; {TOTAL_RULE}" if row in self.totals else ""
            looks = [f"{NUMBER_STYLE if number else TEXT_STYLE}; {CELL_STYLE}{rule}" for number in numeric]
            cells = [_html_cell(*cell) for cell in zip(whole, shown, looks, strict=True)]
            body.append(f"<tr>{''.join(cells)}</tr>")
        caption = [_html_part("caption", self.caption, CAPTION_STYLE)] if self.caption else []
        kind = "measured" if self.measured else "exact"
        return "\n".join(
            [
                f'<table class="{kind}" style="{TABLE_STYLE}">',
                *caption,
                f"<thead><tr>{''.join(head)}</tr></thead>",
                "<tbody>",
                *body,
                "</tbody>",
                "</table>",
            ]
        )

    def _is_numeric(self, name: str) -> bool:
        """Is every value of this column a number, or no value at all?"""
        values = list(self.frame[name])
        return any(_is_number(value) for value in values) and all(_is_number(v) or _is_missing(v) for v in values)

    def _column(self, name: str) -> list[str]:
        values = list(self.frame[name])
        shape = self.formats.get(name) or _usual_format(values)
        mark = MEASURED if name in self.measured else ""
        return [_shown(value, shape, mark) for value in values]


def table(
    df: pd.DataFrame,
    caption: str | None = None,
    formats: Mapping[str, Format] | None = None,
    measured: Sequence[str] = (),
    totals: Sequence[int] = (),
) -> Table:
    """The rows of ``df`` as a table of the course.

    ``formats`` says for a column how its values are written (``"{:.1f}"`` or a function); else whole numbers get
    thousands separators, and others three significant digits of the column's largest. Numbers in the columns
    ``measured`` are marked: on another machine they differ. A missing value is a dash. ``totals``: rows that
    add others up, by number, -1 for the last.
    """
    formats = formats or {}
    unknown = {*formats, *measured} - {*df.columns}
    if unknown:
        wrong = sorted(map(str, unknown))
        raise LabError(f"the table has no column {', '.join(wrong)}. {near(wrong[0], map(str, df.columns))}")
    sums = tuple(sorted(row % len(df) for row in totals)) if len(df) else ()
    return Table(df.reset_index(drop=True), caption and visible(caption), dict(formats), tuple(measured), sums)


def _html_cell(whole: object, shown: str, style: str) -> str:
    """One cell; text that its format made shorter keeps its whole length as a tooltip."""
    cut = isinstance(whole, str) and visible(whole) != shown
    title = f' title="{html.escape(without_marks(visible(whole)))}"' if cut else ""
    return _html_part("td", shown, style, title)


def _html_part(tag: str, text: str, style: str, more: str = "") -> str:
    """A cell or the caption. Its class says that it was measured; the marks that say so in plain text are left out."""
    plain = without_marks(text)
    kind = ' class="measured"' if plain != text else ""
    return f'<{tag}{kind} style="{style}"{more}>{_breakable(plain)}</{tag}>'


def _breakable(text: str) -> str:
    """The text as HTML; a long name in it may go on in the next line after its joints, and nowhere else."""
    return LONG_WORD.sub(lambda word: JOINTS.sub(r"\1<wbr>", word[0]), html.escape(text))


def _shown(value: object, shape: Format, mark: str) -> str:
    if _is_missing(value):
        return NOTHING
    if isinstance(value, str) and not callable(shape):
        return visible(value)
    text = visible(shape(value) if callable(shape) else shape.format(value))
    text = signed(text) if _is_number(value) else text
    return mark + text if mark and _is_number(value) and not text.startswith(mark) else text


def _usual_format(values: list) -> Format:
    """How a column's values are written where nobody said: the same number of decimals all the way down."""
    numbers = [value for value in values if _is_number(value) and not _is_missing(value)]
    if not numbers:
        return _plain
    if all(float(number).is_integer() for number in numbers):
        return "{:,.0f}"
    largest = max(abs(float(number)) for number in numbers)
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if largest >= limit), 3)
    return f"{{:,.{decimals}f}}"


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[bool(value)] if pd.api.types.is_bool(value) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, Number) and not pd.api.types.is_bool(value)


def _is_missing(value: object) -> bool:
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))
