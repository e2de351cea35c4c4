"""What does the reader see when something is wrong? One sentence, and exit status 2 on a command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# What steers a terminal, a notebook's output or the direction of writing; a line's end and a tab stay.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class ReportError(Exception):
    """Something that the reader can mend. The message says what is wrong and what to do about it.

    It may quote a file's names or a program's words: nothing in it steers what shows it.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(visible(str(message)))

    def _render_traceback_(self) -> list[str]:
        """IPython asks for this: in a notebook the sentence stands alone, without a traceback."""
        return [f"{type(self).__name__}: {self}"]


def visible(text: str) -> str:
    """The text with a mark in the place of each character that would steer what shows it; its spaces and lines stay."""
    return STEERING.sub("\ufffd", text)


def printable(text: str) -> str:
    """The text without what would steer a terminal: a file or a program may put anything into its names."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def speak_any_encoding() -> None:
    """From now on letters that the terminal's encoding lacks (ASCII, Latin-1) come out as '?', and break nothing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")


@contextmanager
def one_sentence() -> Iterator[None]:
    """On a command line: print a ReportError as one sentence on stderr and exit with status 2."""
    speak_any_encoding()
    try:
        yield
    except ReportError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
