"""Which events does a Chrome trace hold? One after another, as they are read, whatever the file's size.

A trace is an object whose ``traceEvents`` is a list of objects, or that list alone; packed by gzip or not. The text is
read in pieces, and each event by Python's own scanner of JSON, so that no more than a piece and an event lie in memory.

Traces come damaged: cut off where a disk was full or a program killed, with bytes that are no UTF-8 in a kernel's name,
with quotes that nobody escaped. What can be read is read: an event that is no JSON is passed over up to the next one,
and counted; at a sudden end the reading ends. ``Damage`` says both.

Source: Google, "Trace Event Format".
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stepbudget.errors import ReportError

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 4 << 20  # bytes read at once
PACKED = 1 << 18  # bytes of a packed file
GZIP = 16 + zlib.MAX_WBITS
LONGEST = 1 << 20  # letters of one event: what is no JSON by then is damaged, not cut by the piece's end
LONGEST_HEAD = 64 << 20  # letters before the list of events
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
EVENT = re.compile(r'\{\s*"(?:ph|cat|name|ts|pid|tid)"\s*:')  # how an event may begin
BETWEEN = re.compile(r"[\s,]*")


@dataclass
class Damage:
    """What could not be read of a trace."""

    events: int = 0  # that are no JSON, or whose times are none
    cut: bool = False  # the file ends before its list of events does

    def sentences(self) -> Iterator[str]:
        """What is to be said of it; each tells that events may be missing, if they may."""
        if self.cut:
            yield "the trace ends in the middle: it was read up to there, and what came later may be missing"
        if self.events:
            are = "event is" if self.events == 1 else "events are"
            yield f"{self.events:,} {are} damaged and left out, so that work or calls may be missing"


def begins_like_one(head: bytes) -> bool:
    """May a file that begins with these bytes be a trace?"""
    return head.startswith(GZIP_MAGIC) or head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"[")


class Events:
    """The events of a trace, to be gone through once; ``about`` is what stands before them, known from the first on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage = Damage()
        self.about: dict = {}
        self._scan: Callable[[str, int], tuple[object, int]] = json.JSONDecoder(strict=False).scan_once
        self._text, self._at, self._ended = "", 0, False

    def __iter__(self) -> Iterator[dict]:
        """Each event; ReportError, in one sentence, where the file is no trace or cannot be read at all."""
        try:
            with self.path.open("rb") as file:
                packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
                file.seek(0)
                raw = _unpacked(file) if packed else iter(partial(file.read, PIECE), b"")
                pieces = map(codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode, raw)
                self._head(pieces)
                yield from self._events(pieces)
        except OSError as error:
            raise ReportError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def _more(self, pieces: Iterator[str]) -> bool:
        """Read on; False at the file's end."""
        piece = next(pieces, None)
        if piece is None:
            self._ended = True
            return False
        self._text, self._at = self._text[self._at :] + piece, 0
        return True

    def _head(self, pieces: Iterator[str]) -> None:
        """Read up to the list of events."""
        while self._more(pieces):
            text = self._text.lstrip()
            if text.startswith("["):
                self._text = text[1:]
                return
            if found := EVENTS.search(text):
                head, self._text = text[: found.start()], text[found.end() :]
                self.about = _about(head)
                return
            if len(text) > LONGEST_HEAD or text[:1] not in ("{", ""):
                break
        if self._text.strip():
            raise ReportError(f"{self.path} is no trace of torch.profiler: it holds no traceEvents.")
        raise ReportError(f"{self.path} is damaged: nothing in it can be unpacked or read.")

    def _events(self, pieces: Iterator[str]) -> Iterator[dict]:
        scan, between = self._scan, BETWEEN.match
        text, at = self._text, self._at
        while True:
            at = between(text, at).end()
            try:
                event, at = scan(text, at)
            except (StopIteration, ValueError, RecursionError):
                if text[at : at + 1] == "]":
                    return
                self._at = at
                if not self._ended and len(text) - at < LONGEST:
                    self._more(pieces)
                elif not self._skip(pieces):
                    return
                text, at = self._text, self._at
                continue
            if isinstance(event, dict):
                yield event
            else:
                self.damage.events += 1

    def _skip(self, pieces: Iterator[str]) -> bool:
        """Go on to the next event behind one that is no JSON; False where there is none."""
        while True:
            if found := EVENT.search(self._text, self._at + 1):
                self._at = found.start()
                self.damage.events += 1
                return True
            self._at = max(self._at, len(self._text) - 64)  # an event's beginning may be cut by the piece's end
            if not self._more(pieces):
                self.damage.cut = True
                return False


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """What a gzip file holds, of one that is cut off or damaged all before that."""
    unpacker = zlib.decompressobj(GZIP)
    while raw := unpacker.unused_data or file.read(PACKED):
        if unpacker.eof:
            unpacker = zlib.decompressobj(GZIP)  # one more file packed behind the first
        try:
            if plain := unpacker.decompress(raw):
                yield plain
        except zlib.error:
            return


def _about(head: str) -> dict:
    """What stands before the list of events, as far as it is JSON."""
    try:
        found = json.loads(head.rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
