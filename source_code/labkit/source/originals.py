"""Is a recorded file the one that was recorded? Each is held against its checksum before anything is read out of it.

A file that is whole in its form may still be cut short, or be another's. ``provenance.json`` of its machine lists a
SHA-256 for each. What was made live has none, and is read as it is.
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT

PROVENANCE = "provenance.json"
# Without which nothing can be said of a machine's recordings.
NEEDED = {"gpu": str, "recorded": str, "finished": str, "sha256": dict}
AGAIN = "Fetch the checkout's reports again (git checkout -- reports/recorded)"
ALL = "python3 -m labkit.recording --check names every file that differs"
CHANGED, UNLISTED, MISSING = "not the file that was recorded", "not in the list of what was recorded", "missing"


_opened: set[str] = set()  # recorded files that this process has opened, from reports/recorded/


def opened() -> list[str]:
    """The recorded files that this process has opened so far, by their names from reports/recorded/."""
    return sorted(_opened)


def about(folder: Path) -> dict:
    """The content of a machine's ``provenance.json``; LabError where it is damaged, or says too little."""
    file = folder / PROVENANCE
    content = _parsed(file, *_state(file))
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in NEEDED.items()):
        raise LabError(f"{shown(file)} does not say what was recorded, and where. {AGAIN}.")
    return content


def original(file: Path) -> Path:
    """The file, if it is as it was recorded, or was made live. LabError by name where it is another, or not listed."""
    folder = file.parents[1]
    if not (folder / PROVENANCE).is_file():
        return file
    name = file.relative_to(folder).as_posix()
    known = about(folder)["sha256"].get(name)
    _opened.add(f"{folder.name}/{name}")
    if known and not file.is_file():
        raise LabError(f"{shown(file)} is {MISSING}. {AGAIN}; {ALL}.")
    if known != _checksum(file, *_state(file)):
        what = CHANGED if known else UNLISTED
        raise LabError(f"{shown(file)} is {what} (by its checksum). {AGAIN}; {ALL}.")
    return file


def read(file: Path) -> dict:
    """The JSON object in a file that is as it was recorded."""
    return _parsed(original(file), *_state(file))


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files of a machine's folder whose names fit a pattern, in order.

    LabError by name where one of them was recorded and is gone: what is said of the others would be another result.
    """
    there = sorted(folder.glob(pattern))
    listed = about(folder)["sha256"] if (folder / PROVENANCE).is_file() else {}
    names = {file.relative_to(folder).as_posix() for file in there}
    gone = {name for name in listed if fnmatchcase(name, pattern)} - names
    if gone:
        raise LabError(f"{shown(folder / min(gone))} is {MISSING}. {AGAIN}; {ALL}.")
    return there


def machines(recordings: Path, name: str = "*") -> list[Path]:
    """The folders of recorded machines: each that holds a file, also one whose list is gone."""
    return sorted({file.parents[1] for file in recordings.glob(f"{name}/*/*") if file.is_file()})


def differing(folder: Path) -> dict[str, str]:
    """Which files of a machine's folder are not what was recorded: name → CHANGED, UNLISTED or MISSING."""
    known = about(folder)["sha256"]
    there = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*") if path.is_file()}
    found = dict.fromkeys(known.keys() - there.keys(), MISSING)
    for name, file in there.items():
        if checksum(file) != known.get(name):
            found[name] = CHANGED if name in known else UNLISTED
    return dict(sorted(found.items()))


def checksum(file: Path) -> str:
    """The file's SHA-256, in hexadecimal; LabError where it cannot be read."""
    return _checksum(file, *_state(file))


def shown(path: Path) -> str:
    """A path as the text shows it: from the checkout's top."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _state(file: Path) -> tuple[int, int]:
    """What changes when somebody writes into the file."""
    try:
        told = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return told.st_mtime_ns, told.st_size


@lru_cache(maxsize=2048)
def _checksum(file: Path, *state: int) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise _unreadable(file, error) from error


@lru_cache(maxsize=2048)
def _parsed(file: Path, *state: int) -> dict:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> LabError:
    why = getattr(error, "strerror", None) or error
    return LabError(f"{shown(file)} cannot be read ({why}). {AGAIN}; {ALL}.")
