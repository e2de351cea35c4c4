"""What changed between two scripts? A computed diff, to read in a notebook."""

from __future__ import annotations

import difflib
import html
from dataclasses import dataclass

from labkit.display.pieces import part
from labkit.errors import LabError
from labkit.scripts import script as path

# Row tints that read on a light and on a dark page; the sign in front says the same without colour.
TINTS = {"+": "rgba(0, 158, 115, 0.18)", "-": "rgba(213, 94, 0, 0.18)", "@": "rgba(0, 114, 178, 0.10)"}


@dataclass(frozen=True)
class Diff:
    """The lines of a unified diff between two step scripts; shows itself in a notebook."""

    old: str
    new: str
    lines: list[str]

    def changed(self) -> int:
        """How many lines of the new script are new or rewritten."""
        return sum(line.startswith("+") for line in self.lines)

    def __str__(self) -> str:
        return "\n".join([f"--- {self.old}", f"+++ {self.new}", *self.lines])

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        rows = [f"<b>{html.escape(self.old)} → {html.escape(self.new)}: {self.changed()} changed lines</b>"]
        for line in self.lines:
            tint = TINTS.get(line[:1])
            style = f' style="display: block; background: {tint}"' if tint else ' style="display: block"'
            rows.append(f"<span{style}>{html.escape(line) or ' '}</span>")
        body = "".join(rows)
        return {"text/html": f'<pre style="line-height: 1.35; margin: 0">{body}</pre>', "text/plain": str(self)}


def diff(old: str, new: str, context: int = 1) -> Diff:
    """The diff from one script of source_code/ to the next, with ``context`` unchanged lines around each change.

    ``script.py:function`` stands for one function of a script. LabError where the script has none of that name.
    """
    lines = list(difflib.unified_diff(_lines(old), _lines(new), lineterm="", n=context))[2:]  # without its two headers
    return Diff(old, new, lines)


def _lines(name: str) -> list[str]:
    script, _, function = name.partition(":")
    text = path(script).read_text(encoding="utf-8")
    if not function:
        return text.splitlines()
    try:
        return part(text, function).splitlines()
    except LabError as error:
        raise LabError(f"{script}: {error}") from error
