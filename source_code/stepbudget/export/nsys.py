"""Which nsys is here, and what does it make of a report? Found once; a ``.nsys-rep`` becomes SQLite by its export."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stepbudget.errors import ReportError
from stepbudget.export.leftovers import sweep
from stepbudget.export.processes import Stalled, stream

# Where NVIDIA's installers put nsys when they do not put it on PATH, newest first within each pattern.
NSYS_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/nsight-systems/target-linux-x64/nsys",
)
HOW_TO_GET = "install it (https://developer.nvidia.com/nsight-systems), or set LAB_NSYS to its path"
SCRATCH = ".stepbudget-export-"  # a folder beside an export while it is made
PAYLOAD_OPTIONS = ("--include-json", "--include-blobs")  # not known to Nsight Systems 2024.2
NEAR = 1 << 20  # bytes from the beginning or the end of a report, among which its version stands
ANSWERS_S = 30.0  # in which an nsys tells its version, or what it knows
NOTE = "STEPBUDGET_EXPORT_OF"  # a table in an export that was made here: which report it is of
EXPORTED_BY = "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PRODUCT_VERSION'"
BEGAN = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
CAPTURED_BY = re.compile(rb"(20\d\d)([.@])(\d{1,2})\2(\d{1,2})\2(\d{1,4})-[0-9a-f]{6,16}")


@dataclass(frozen=True)
class Nsys:
    """An nsys that answers: its path and its version as numbers, for example ``(2025, 3, 1)``."""

    path: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


@cache
def find_nsys() -> Nsys | None:
    """The nsys to use: ``LAB_NSYS``, else the one on PATH, else one in NVIDIA's usual places; None if none runs."""
    named = os.environ.get("LAB_NSYS")
    candidates = [named] if named else [shutil.which("nsys"), *_installed_nsys()]
    for path in filter(None, candidates):
        if version := _nsys_version(path):
            return Nsys(path, version)
    return None


def misnamed(variable: str, tool: str) -> str | None:
    """What is wrong with the program that an environment variable names, in a sentence; None where it is not set.

    For one that did not answer as ``tool`` does.
    """
    named = os.environ.get(variable)
    if not named:
        return None
    path = Path(named)
    if path.is_dir():
        what = "a folder: name the program in it"
    elif not path.is_file():
        what = "no file"
    elif not os.access(path, os.X_OK):
        what = "a file that may not be executed"
    else:
        what = f"no {tool} that tells its version"
    return f"{variable} names {named}, which is {what}. Correct it, or unset it ({tool} is then looked for)."


def _installed_nsys() -> list[str]:
    root = Path("/")
    return [str(path) for place in NSYS_PLACES for path in sorted(root.glob(place[1:]), reverse=True)]


def _nsys_version(path: str) -> tuple[int, ...] | None:
    try:
        said = stream([path, "--version"], lambda line: None, limit_s=ANSWERS_S)[1]
    except (OSError, ValueError, Stalled):  # the second: a name that no system takes
        return None
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, match.groups())) if match else None


def need_nsys() -> Nsys:
    """The nsys to use; ReportError, in one sentence, where there is none."""
    nsys = find_nsys()
    if nsys is None:
        raise ReportError(misnamed("LAB_NSYS", "nsys") or f"Nsight Systems (nsys) was not found: {HOW_TO_GET}.")
    return nsys


def export(report: Path, folder: Path | None = None) -> Path:
    """The SQLite export of a ``.nsys-rep``: the one that lies beside it, or a new one, made by nsys.

    An export that was made here holds a note of its report's content, so neither a clock that was set back nor a file
    that came later makes another report's export pass for this one's. One without a note is taken only where this nsys
    cannot make a new one, if it is not older than the report and nothing in it speaks against it. A new one does not
    replace what may be somebody's: a newer file without a note stays, and it goes to ``NAME.nsys-rep.sqlite``.

    ``folder``: where a new export goes instead. It is made under another name and moved, so that nobody, not even
    another process that exports at the same time, ever meets half of it.
    """
    beside, second = report.with_suffix(".sqlite"), report.with_name(f"{report.name}.sqlite")
    content = identity(report)
    notes = {file: noted(file) for file in (beside, second) if file.is_file()}
    for file, note in notes.items():
        if note == content:
            return file
    captured = capturing_version(report)
    foreign = older = ""
    if notes.get(beside, content) is None:
        foreign = _of_another(beside, report, captured)
        older = "is older" if beside.stat().st_mtime < report.stat().st_mtime else ""
    usable = beside in notes and notes[beside] is None and not foreign and not older
    nsys = find_nsys()
    if usable and (nsys is None or (captured and captured[:2] > nsys.version[:2])):
        return beside
    about = f"{report.name}, captured by Nsight Systems {'.'.join(map(str, captured))}," if captured else report.name
    why = foreign or older or "is another report's export"
    named = f" Or name {beside.name}, which lies beside it and {why}." if beside in notes else ""
    if nsys is None:
        wrong = misnamed("LAB_NSYS", "nsys") or f"which was not found: {HOW_TO_GET}."
        raise ReportError(f"{about} has to be exported by nsys, {wrong}{named}")
    target = (folder or report.parent) / (second if usable or foreign else beside).name
    try:
        return _exported(report, content, nsys, target)
    except NotExported as failed:
        if usable:
            return beside
        if captured and captured[:2] > nsys.version[:2]:
            raise ReportError(
                f"nsys {nsys.version_text} is too old for {about} and could not export it: install that version or a "
                f"later one, or set LAB_NSYS to its path.{named}"
            ) from None
        what = report.name if captured is None else about.rstrip(",")
        raise ReportError(f"nsys {nsys.version_text} could not export {what}: {failed}{named}") from None


class NotExported(Exception):
    """nsys made no export; its last words."""


def _exported(report: Path, content: str, nsys: Nsys, target: Path) -> Path:
    sweep(target.parent, SCRATCH)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH) as scratch:
        made = Path(scratch) / "export.sqlite"
        words = [nsys.path, "export", "--type", "sqlite", "--force-overwrite", "true", *_payload_options(nsys.path)]
        try:
            files = (str(made.absolute()), str(report.absolute()))  # a name may begin as an option does
            status, said = stream([*words, "--output", *files], lambda line: None)
        except Stalled as hung:
            raise NotExported(str(hung)) from None
        if status != 0 or not made.is_file():
            raise NotExported(" ".join(said.strip().splitlines()[-3:]) or "it said nothing")
        note(made, content)
        made.replace(target)
        return target


def identity(report: Path) -> str:
    """What tells a report from any other: a hash of its size, its beginning and its end, where its times stand."""
    first, last = _ends(report)
    return hashlib.sha256(b"%d " % report.stat().st_size + first + last).hexdigest()


def note(export: Path, content: str) -> None:
    """Write into an export of which report it is (``identity``); nothing where it is no database."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(export)) as db, db:
        db.execute(f"CREATE TABLE {NOTE} (identity TEXT)")
        db.execute(f"INSERT INTO {NOTE} VALUES (?)", (content,))


def noted(export: Path) -> str | None:
    """Of which report an export was made here; None where nothing in it says so."""
    try:
        with closing(_opened(export)) as db:
            found = db.execute(f"SELECT identity FROM {NOTE}").fetchone() if _has(db, NOTE) else None
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # what is damaged is told when it is read
    return str(found[0]) if found else None


@cache
def _payload_options(nsys: str) -> tuple[str, ...]:
    """What makes this nsys export the payloads of NVTX events too (NCCL's calls, Python's backtraces), if it can."""
    try:
        said = stream([nsys, "export", "--help"], lambda line: None, limit_s=ANSWERS_S)[1]
    except (OSError, Stalled):
        return ()
    return tuple(word for option in PAYLOAD_OPTIONS if option in said for word in (option, "true"))


def _of_another(target: Path, report: Path, captured: tuple[int, ...] | None) -> str:
    """Why the SQLite file beside a report cannot be its export; empty where nothing speaks against it."""
    try:
        with closing(_opened(target)) as db:
            made = db.execute(EXPORTED_BY).fetchall() if _has(db, "META_DATA_EXPORT") else []
            began = db.execute(BEGAN).fetchall() if _has(db, "TARGET_INFO_SESSION_START_TIME") else []
    except (sqlite3.Error, UnicodeDecodeError):
        return ""  # what is damaged is told when it is read
    version = re.match(r"(\d+)\.(\d+)", str(made[0][0])) if made else None
    if captured and version and tuple(map(int, version.groups())) < captured[:2]:
        return f"was made by Nsight Systems {version[0]}, which cannot read that: it is another report's export"
    if began and isinstance(began[0][0], int) and began[0][0] > 1e9 * report.stat().st_mtime:
        return "was captured after it was written: it is another report's export"
    return ""


def _opened(export: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _has(db: sqlite3.Connection, table: str) -> bool:
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())


def capturing_version(report: Path) -> tuple[int, ...] | None:
    """The version of Nsight Systems that captured a ``.nsys-rep``, such as (2024, 6, 2, 225); None: not found in it.

    It stands near the file's beginning or end, as ``2022.2.1.31-5fe97ab`` or ``2024@6@2@225-246235244400v0``.
    """
    found = CAPTURED_BY.search(b"".join(_ends(report)))
    return tuple(int(found[number]) for number in (1, 3, 4, 5)) if found else None


def _ends(report: Path) -> tuple[bytes, bytes]:
    """The first and the last of its bytes, NEAR of each; the second less where they would overlap."""
    with report.open("rb") as file:
        first = file.read(NEAR)
        file.seek(max(len(first), report.stat().st_size - NEAR))
        return first, file.read()
