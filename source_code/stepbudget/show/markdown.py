"""How does a text become Markdown that GitHub draws as it is meant?

Names come from programs: they stand in code spans, and sentences that hold some are written so that nothing in them
formats, links or calls anybody.

Source: GitHub Flavored Markdown Spec, "Backslash escapes", "Code spans", "Tables (extension)".
"""

from __future__ import annotations

import re

from stepbudget.errors import printable

NAME = 80  # letters
SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$&]")
# What GitHub turns into a mention, a link or a picture, with or without an escape; falls apart behind the match.
CALLING = re.compile(r"@|#(?=\d)|GH-(?=\d)|www(?=\.)|(?<=\w)(?=://)|:(?=[\w+-]+:)")
SPACE = "\u200b"  # without width; written as an entity, which survives copying


def code(name: str, width: int = NAME, in_table: bool = False) -> str:
    """A name as a code span, on one line and not longer than ``width`` letters."""
    name = _line(name) or "(no name)"
    name = name if len(name) <= width else name[: width - 1] + "…"
    fence = "`" * (1 + max(map(len, re.findall("`+", name)), default=0))
    pad = " " if name.startswith("`") or name.endswith("`") else ""
    name = name.replace("|", "\\|") if in_table else name
    return f"{fence}{pad}{name}{pad}{fence}"


def plain(text: str) -> str:
    """A sentence in which nothing is Markdown."""
    text = CALLING.sub(rf"\g<0>{SPACE}", _line(text))
    return SPECIAL.sub(r"\\\g<0>", text).replace(SPACE, "&#8203;")


def _line(text: str) -> str:
    """On one line, and nothing in it that cannot be seen."""
    return " ".join(printable(re.sub(r"\s", " ", text)).split())
