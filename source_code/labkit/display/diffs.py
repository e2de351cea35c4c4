"""What changed between two scripts? A computed diff, to read in a notebook."""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.display import code
from labkit.display.pieces import part
from labkit.errors import LabError
from labkit.paths import script as path

# Row tints that read on a light and on a dark page; the sign in front says the same without colour.
TINTS = {"+": "rgba(0, 158, 115, 0.18)", "-": "rgba(213, 94, 0, 0.18)", "@": "rgba(0, 114, 178, 0.10)"}


HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True)
class Diff:
    """The lines of a unified diff between two scripts; shows itself in a notebook. Made by ``of`` or ``diff``."""

    old: str  # their names
    new: str
    lines: list[str]
    sources: tuple[list[str], list[str]] = field(repr=False)  # all lines of both

    @classmethod
    def of(cls, old: str, before: list[str], new: str, after: list[str], context: int = 1) -> Diff:
        """The diff from the lines ``before``, of a script called ``old``, to those ``after``."""
        lines = difflib.unified_diff(before, after, lineterm="", n=context)
        return cls(old, new, list(lines)[2:], (before, after))  # without its two headers

    def changed(self) -> int:
        """How many lines of the new script are new or rewritten."""
        return sum(line.startswith("+") for line in self.lines)

    def __str__(self) -> str:
        return "\n".join([f"--- {self.old}", f"+++ {self.new}", *self.lines])

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        title = f"{self.old} → {self.new}: {self.changed()} changed lines"
        rows = [code.tinted(line, TINTS.get(sign)) for sign, line in self._coloured()]
        return {"text/html": code.block(title, rows), "text/plain": str(self)}

    def _coloured(self) -> Iterator[tuple[str, str]]:
        """Each line's sign, and the line as HTML in the colours that it has in its whole script."""
        before, after = (code.coloured("\n".join(source)) for source in self.sources)
        old = new = 0
        for line in self.lines:
            sign = line[:1]
            if hunk := HUNK.match(line):
                old, new = (int(first) - 1 for first in hunk.groups())
                yield sign, html.escape(line)
            elif sign == "-":
                yield sign, f"-{before[old]}"
                old += 1
            else:
                yield sign, f"{sign}{after[new]}"
                new, old = new + 1, old + (sign != "+")


def diff(old: str, new: str, context: int = 1) -> Diff:
    """The diff from one script of source_code/ to the next, with ``context`` unchanged lines around each change.

    ``script.py:function`` stands for one function of a script. LabError where the script has none of that name.
    """
    return Diff.of(old, _lines(old), new, _lines(new), context)


def _lines(name: str) -> list[str]:
    script, _, function = name.partition(":")
    text = path(script).read_text()
    if not function:
        return text.splitlines()
    try:
        return part(text, function).splitlines()
    except LabError as error:
        raise LabError(f"{script} has no function called {function}") from error
