"""Which sign stands before a number that is read? A true minus, and none before a zero, whatever was rounded to it."""

from __future__ import annotations

import re

MINUS = "−"
_SIGN = re.compile(r"(?<![^\s(|>])[+-](?=(\d[\d,]*(?:\.\d+)?)(?![\w.-]*\w))")  # at a word's start: no date, no flag


def signed(text: str) -> str:
    """A text with its numbers' signs as they are printed: ``by -3,370 ms, +0.0 %`` → ``by −3,370 ms, 0.0 %``."""
    return _SIGN.sub(lambda found: "" if not found[1].strip("0.,") else MINUS if found[0] == "-" else "+", text)
