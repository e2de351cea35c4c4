"""Which nsys is here, and what does it make of a report? Found once; a ``.nsys-rep`` becomes SQLite by its export."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stepbudget.errors import ReportError

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
PAYLOAD_OPTIONS = ("--include-json", "--include-blobs")  # not known to Nsight Systems 2024.2
NEAR = 1 << 20  # bytes from the beginning or the end of a report, among which its version stands
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


def _installed_nsys() -> list[str]:
    root = Path("/")
    return [str(path) for place in NSYS_PLACES for path in sorted(root.glob(place[1:]), reverse=True)]


def _nsys_version(path: str) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, match.groups())) if match else None


def need_nsys() -> Nsys:
    """The nsys to use; ReportError, in one sentence, where there is none."""
    nsys = find_nsys()
    if nsys is None:
        raise ReportError(f"Nsight Systems (nsys) was not found: {HOW_TO_GET}.")
    return nsys


def export(report: Path, folder: Path | None = None) -> Path:
    """The ``.sqlite`` beside a ``.nsys-rep``: exported by nsys if there is none yet, or if it is older or another's.

    ``folder``: where a new export goes instead. It is made under another name and moved, so that nobody, not even
    another process that exports at the same time, ever meets half of it.
    """
    target = report.with_suffix(".sqlite")
    there = target.is_file()
    captured = capturing_version(report)
    foreign = _of_another(target, report, captured) if there else ""
    if there and not foreign and target.stat().st_mtime >= report.stat().st_mtime:
        return target
    about = f"{report.name}, captured by Nsight Systems {'.'.join(map(str, captured))}," if captured else report.name
    beside = f" Or name {target.name}, which lies beside it and {foreign or 'is older'}." if there else ""
    nsys = find_nsys()
    if nsys is None:
        raise ReportError(f"{about} has to be exported by nsys, which was not found: {HOW_TO_GET}.{beside}")
    target = (folder or report.parent) / target.name
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".stepbudget-export-") as scratch:
        made = Path(scratch) / "export.sqlite"
        words = [nsys.path, "export", "--type", "sqlite", "--force-overwrite", "true", *_payload_options(nsys.path)]
        done = subprocess.run(
            [*words, "--output", str(made), str(report)], capture_output=True, text=True, errors="replace"
        )
        if done.returncode == 0 and made.is_file():
            made.replace(target)
            return target
    if captured and captured[:2] > nsys.version[:2]:
        raise ReportError(
            f"nsys {nsys.version_text} is too old for {about} and could not export it: install that version or a "
            f"later one, or set LAB_NSYS to its path.{beside}"
        )
    said = (done.stderr + done.stdout).strip().splitlines()[-3:]
    what = report.name if captured is None else about.rstrip(",")
    told = " ".join(said) or "it said nothing"
    raise ReportError(f"nsys {nsys.version_text} could not export {what}: {told}{beside}")


@cache
def _payload_options(nsys: str) -> tuple[str, ...]:
    """What makes this nsys export the payloads of NVTX events too (NCCL's calls, Python's backtraces), if it can."""
    try:
        done = subprocess.run([nsys, "export", "--help"], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(word for option in PAYLOAD_OPTIONS if option in done.stdout for word in (option, "true"))


def _of_another(target: Path, report: Path, captured: tuple[int, ...] | None) -> str:
    """Why the SQLite file beside a report cannot be its export; empty where nothing speaks against it."""
    try:
        db = sqlite3.connect(f"{target.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        with closing(db):
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


def _has(db: sqlite3.Connection, table: str) -> bool:
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())


def capturing_version(report: Path) -> tuple[int, ...] | None:
    """The version of Nsight Systems that captured a ``.nsys-rep``, such as (2024, 6, 2, 225); None: not found in it.

    It stands near the file's beginning or end, as ``2022.2.1.31-5fe97ab`` or ``2024@6@2@225-246235244400v0``.
    """
    with report.open("rb") as stream:
        ends = stream.read(NEAR)
        stream.seek(max(len(ends), report.stat().st_size - NEAR))
        ends += stream.read()
    found = CAPTURED_BY.search(ends)
    return tuple(int(found[number]) for number in (1, 3, 4, 5)) if found else None
