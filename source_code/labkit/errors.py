"""What does the reader see when something is wrong? One sentence, as from the report reader."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stepbudget.errors import ReportError, one_sentence, speak_any_encoding

__all__ = ["LabError", "NotHere", "NotRecorded", "near", "one_sentence", "speak_any_encoding"]

FEW = 8  # names that a sentence lists where none of them is near


class LabError(ReportError):
    """Something in the course that the reader can mend. The message says what is wrong and what to do about it."""


class NotHere(LabError):
    """Something that this machine cannot do as it is; the course has it recorded."""


class NotRecorded(LabError):
    """Something that nobody recorded on that machine."""


def near(name: str, there: Iterable[str]) -> str:
    """A sentence to end with: which of the names that there are come near one that there is not, or the first few."""
    names = list(there)
    close = get_close_matches(name, names, n=3)
    if close:
        return f"Near it: {', '.join(close)}."
    return f"There are: {', '.join(names[:FEW])}{' …' if len(names) > FEW else '.'}" if names else "There are none."
