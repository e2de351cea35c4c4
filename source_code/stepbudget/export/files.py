"""Which file is read? A report's SQLite database, exported, unpacked or made of a trace first, opened read-only."""

from __future__ import annotations

import lzma
import os
import shutil
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from urllib.parse import quote

from stepbudget.errors import ReportError
from stepbudget.export import torch_trace, trace_events
from stepbudget.export.nsys import export

SQLITE_MAGIC = b"SQLite format 3\x00"
XZ_MAGIC = b"\xfd7zXZ\x00"
NSYS_MAGIC = b"NVIDIA Tegra Pro"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
LFS_POINTER = b"version https://g"
HEAD = 256  # bytes that tell what a file is
KNOWN_ENDINGS = ".nsys-rep, .sqlite or .sqlite.xz, or a trace of torch.profiler: .json or .json.gz"


def sqlite_file(path: Path) -> tuple[Path, tempfile.TemporaryDirectory | None]:
    """The SQLite file of a report, and the scratch folder that holds it if it had to be unpacked.

    ReportError, in one sentence, where the report is missing, damaged or of a kind that cannot be read.
    """
    try:
        if path.is_dir():
            raise ReportError(f"{path} is a folder: name a report ({KNOWN_ENDINGS}).")
        if not path.is_file():
            raise ReportError(f"there is no report {path}.")
        with path.open("rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}.") from error
    if head.startswith(XZ_MAGIC):
        return _unpacked(path)
    if head.startswith(SQLITE_MAGIC):
        return path, None
    if head.startswith(NSYS_MAGIC) and path.suffix in (".nsys-rep", ".qdrep"):
        return _exported(path)
    if trace_events.begins_like_one(head):
        return _of_trace(path)
    what = f"is not an Nsight Systems report ({KNOWN_ENDINGS})"
    if not head:
        what = "is empty"
    elif head.startswith(LFS_POINTER):
        what = "only points to a report in Git LFS: fetch the report itself (git lfs pull)"
    elif path.suffix == ".qdstrm":
        what = "is a raw capture: Nsight Systems' importer (QdstrmImporter) makes a .nsys-rep of it"
    elif head.startswith(NSYS_MAGIC):
        what = "is a report that has lost its ending: rename it to end in .nsys-rep"
    raise ReportError(f"{path} {what}.")


def connect(file: Path, shown: Path) -> sqlite3.Connection:
    """A read-only connection: nothing that is asked of a report can change it. ``shown`` is what errors call it."""
    for ending, sign in (("-wal", b""), ("-journal", JOURNAL_MAGIC)):
        if _holds(file.with_name(file.name + ending), sign):
            what = f"has changes that are not yet in it ({file.name}{ending}): close the program that makes them"
            raise ReportError(f"{shown} {what}.")
    db = sqlite3.connect(f"file:{quote(os.fsencode(file.resolve()))}?mode=ro&immutable=1", uri=True)
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.text_factory = partial(str, encoding="utf-8", errors="replace")
        kinds = dict(db.execute("SELECT name, type FROM sqlite_master"))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: SQLite's complaint quotes what is no text
        db.close()
        raise ReportError(f"{shown} is damaged: {error}.") from error
    if view := next((name for name, kind in kinds.items() if kind == "view"), None):
        db.close()
        raise ReportError(
            f"{shown} holds a view ({view}), a query of its maker's, which no export has: it is not read."
        )
    if "StringIds" not in kinds:
        db.close()
        raise ReportError(f"{shown} is an SQLite file, but not an export of Nsight Systems (no table StringIds).")
    return db


def _holds(file: Path, sign: bytes) -> bool:
    """Is there such a file, with anything in it that begins like this?"""
    try:
        with file.open("rb") as stream:
            start = stream.read(max(1, len(sign)))
    except OSError:
        return False
    return bool(start) and start.startswith(sign)


def _exported(path: Path) -> tuple[Path, tempfile.TemporaryDirectory | None]:
    """The export beside a .nsys-rep; in a scratch folder where nothing can be written beside it."""
    scratch = None
    if not os.access(path.parent, os.W_OK):
        scratch = tempfile.TemporaryDirectory(prefix="stepbudget-report-")
    try:
        target = export(path, scratch and Path(scratch.name))
        with target.open("rb") as stream:
            if stream.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
                raise ReportError(f"{target}, the export of {path.name}, is damaged: delete it to have it made again.")
    except (OSError, ReportError) as error:
        if scratch:
            scratch.cleanup()
        if isinstance(error, ReportError):
            raise
        raise ReportError(f"{path} cannot be exported: {error.strerror}.") from error
    return target, scratch


def _of_trace(path: Path) -> tuple[Path, tempfile.TemporaryDirectory]:
    """The export that a trace of torch.profiler becomes, in a scratch folder."""
    scratch = tempfile.TemporaryDirectory(prefix="stepbudget-report-")
    target = Path(scratch.name) / "trace.sqlite"
    try:
        torch_trace.write(path, target)
    except BaseException:
        scratch.cleanup()
        raise
    return target, scratch


def _unpacked(path: Path) -> tuple[Path, tempfile.TemporaryDirectory]:
    scratch = tempfile.TemporaryDirectory(prefix="stepbudget-report-")
    target = Path(scratch.name) / path.stem
    try:
        with lzma.open(path) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (lzma.LZMAError, EOFError) as error:
        scratch.cleanup()
        raise ReportError(f"{path} is damaged: {error}. Fetch it again.") from error
    except OSError as error:
        scratch.cleanup()
        raise ReportError(f"{path} cannot be unpacked: {error.strerror}.") from error
    with target.open("rb") as stream:
        if stream.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
            scratch.cleanup()
            raise ReportError(f"{path} does not hold an Nsight Systems export.")
    return target, scratch
