"""What does a table look like? Text left, numbers right, no index: as text, as HTML and as Markdown, of the same cells.

The HTML carries its style with it, in attributes: JupyterLab takes style sheets, scripts and inline SVG out of a
notebook that it does not trust yet.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from numbers import Number
from textwrap import wrap

import pandas as pd

from stepbudget.errors import ReportError, printable, visible
from stepbudget.show import markdown
from stepbudget.show.bars import swatch
from stepbudget.show.words import breakable
from stepbudget.signs import signed

Format = str | Callable[[object], str]

WIDTH = 120  # letters of a line of text
NOTHING = "–"  # there is no number here
TEXT, HTML, MARKDOWN = "text", "html", "markdown"
LINE = "1px solid rgba(128, 128, 128, 0.3)"  # between two rows, on light and on dark ground
STYLES = {
    "table": "border-collapse: collapse; margin: 0.4em 0; color: inherit",
    "caption": "caption-side: top; text-align: left; padding-bottom: 0.4em; font-size: 0.9em; color: inherit; "
    "opacity: 0.7",
    "head": "padding: 0.25em 0.8em; vertical-align: bottom; border-bottom: 1px solid currentColor",
    "cell": f"padding: 0.25em 0.8em; vertical-align: top; border-bottom: {LINE}",
    "number": "text-align: right",
    "text": "text-align: left",
    "unbroken": "white-space: nowrap",  # numbers; text and heads wrap where the page is narrow
    "total": "border-top: 2px solid rgba(128, 128, 128, 0.6)",  # wider than a row's line, which it lies on
    "more": "padding: 0.25em 0.8em; text-align: left; opacity: 0.7",
}


class Picture(str):
    """What a format may return for HTML: an image, shown as it is."""


@dataclass(frozen=True)
class Table:
    """Rows that show themselves: HTML in a notebook, aligned text elsewhere. Made by ``table()``."""

    frame: pd.DataFrame
    caption: str | None = None
    formats: Mapping[str, Format] = field(default_factory=dict)
    totals: Sequence[int] = ()
    looks: Sequence[str | None] = ()
    names: Sequence[str] = ()
    most: int | None = None
    only: Mapping[str, str] = field(default_factory=dict)

    def cells(self, where: str = HTML) -> list[list[str]]:
        """The rows as they are shown in TEXT, HTML or MARKDOWN."""
        columns = [self._column(name) for name in self.columns(where)]
        return [list(row) for row in zip(*columns, strict=True)]

    def __str__(self) -> str:
        return "\n".join(self.text())

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": str(self)}

    def text(self, captioned: bool = True) -> list[str]:
        """The lines of the table, its caption before them."""
        columns = self.columns(TEXT)
        rows = [[printable(cell) for cell in row] for row in ([*map(str, columns)], *self.cells(TEXT))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pads = [str.rjust if self._is_numeric(name) else str.ljust for name in columns]
        lines = ["  ".join(pad(*cell) for pad, *cell in zip(pads, row, widths, strict=True)).rstrip() for row in rows]
        rule = "  ".join("─" * width for width in widths)
        for row in sorted(self.totals, reverse=True):
            lines.insert(row + 1, rule)
        lines.insert(1, rule)
        more = [f"and {self.more:,} more"] if self.more else []
        return [*(wrap(self.caption, WIDTH) if self.caption and captioned else []), *lines, *more]

    def html(self) -> str:
        """The table as HTML that needs no style sheet."""
        columns = self.columns(HTML)
        kinds = ["number" if self._is_numeric(name) else "text" for name in columns]
        head = [_tag("th", breakable(str(name)), kind, "head") for name, kind in zip(columns, kinds, strict=True)]
        body = []
        rows = zip(self.frame[columns].itertuples(index=False, name=None), self.cells(HTML), strict=False)
        for row, (whole, shown) in enumerate(rows):
            more = ["total"] * (row in self.totals)
            cells = [self._html_cell(row, *cell, more) for cell in zip(columns, whole, shown, kinds, strict=True)]
            body.append(f"<tr>{''.join(cells)}</tr>")
        if self.more:
            body.append(f'<tr><td colspan="{len(columns)}" style="{STYLES["more"]}">and {self.more:,} more</td></tr>')
        caption = [_tag("caption", breakable(self.caption), "caption")] if self.caption else []
        lines = [f'<table style="{STYLES["table"]}">', *caption, f"<thead><tr>{''.join(head)}</tr></thead>"]
        return "\n".join([*lines, "<tbody>", *body, "</tbody>", "</table>"])

    def markdown(self) -> list[str]:
        """The lines of the table as GitHub draws it."""
        columns = self.columns(MARKDOWN)
        rules = ["--:" if self._is_numeric(name) else ":--" for name in columns]
        lines = [[markdown.plain(str(name)) for name in columns], rules]
        for row in self.cells(MARKDOWN):
            pairs = zip(columns, row, strict=True)
            lines.append([markdown.code(text, in_table=True) if name in self.names else markdown.plain(text)
                          for name, text in pairs])  # fmt: skip
        more = ["", f"and {self.more:,} more"] if self.more else []
        return [*(f"| {' | '.join(line)} |" for line in lines), *more]

    @property
    def more(self) -> int:
        """How many rows are counted and not shown."""
        return max(0, len(self.frame) - self.most) if self.most is not None else 0

    def columns(self, where: str) -> list:
        """The names of the columns that are shown in TEXT, HTML or MARKDOWN."""
        return [name for name in self.frame.columns if self.only.get(name, where) == where]

    def _is_numeric(self, name: str) -> bool:
        """Is every value of this column a number, or no value at all?"""
        values = list(self.frame[name])
        return any(_is_number(value) for value in values) and all(_is_number(v) or _is_missing(v) for v in values)

    def _column(self, name: str) -> list[str]:
        """The cells of those rows that are shown, written as the whole column asks for."""
        values = list(self.frame[name])
        shape = self.formats.get(name) or _usual_format(values)
        return [_shown(value, shape) for value in values[: self.most]]

    def _html_cell(self, row: int, column: str, whole: object, shown: str, kind: str, more: list[str]) -> str:
        """One cell; text that its format made shorter keeps its whole length as a tooltip."""
        if isinstance(shown, Picture):
            return _tag("td", shown, kind, "cell", *more)
        cut = isinstance(whole, str) and visible(whole) != shown
        title = f' title="{html.escape(visible(whole))}"' if cut else ""
        inner = breakable(shown)
        if column in self.names:
            inner = f"<code>{inner}</code>"
        first = column == self.frame.columns[0] and row < len(self.looks)
        if first and (look := self.looks[row]):
            inner = f"{swatch(look)} {inner}"
        return _tag("td", inner, kind, "cell", *more, *["unbroken"] * (kind == "number"), attributes=title)


def table(
    df: pd.DataFrame,
    caption: str | None = None,
    formats: Mapping[str, Format] | None = None,
    totals: Sequence[int] = (),
    looks: Sequence[str | None] = (),
    names: Sequence[str] = (),
    most: int | None = None,
    only: Mapping[str, str] | None = None,
) -> Table:
    """The rows of ``df`` as a table.

    ``formats`` says for a column how its values are written (``"{:.1f}"`` or a function); else whole numbers get
    thousands separators, and others three significant digits of the column's largest. A missing value is a dash.
    ``totals``: rows that add others up, by number, -1 for the last. ``looks``: a colour of the palette before the first
    cell of each row. ``names``: columns of names that a program gave. ``most``: so many rows are shown, the others
    counted. ``only``: column → TEXT, HTML or MARKDOWN, where alone it is shown. ReportError for a column that is
    not there.
    """
    formats, only = formats or {}, only or {}
    unknown = sorted(map(str, {*formats, *names, *only} - {*df.columns}))
    if unknown:
        near = get_close_matches(unknown[0], map(str, df.columns), 3, 0.5) or map(str, df.columns)
        raise ReportError(f"the table has no column {', '.join(unknown)}. There are: {', '.join(near)}.")
    sums = tuple(sorted(row % len(df) for row in totals)) if len(df) else ()
    own = df.reset_index(drop=True)
    words = caption and visible(caption)
    return Table(own, words, dict(formats), sums, tuple(looks), tuple(names), most, dict(only))


def _tag(name: str, inner: str, *styles: str, attributes: str = "") -> str:
    return f'<{name} style="{"; ".join(STYLES[style] for style in styles)}"{attributes}>{inner}</{name}>'


def _shown(value: object, shape: Format) -> str:
    if _is_missing(value):
        return NOTHING
    if isinstance(value, str) and not callable(shape):
        return visible(value)
    text = shape(value) if callable(shape) else shape.format(value)
    if isinstance(text, Picture):
        return text
    text = visible(text)
    return signed(text) if _is_number(value) else text


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
