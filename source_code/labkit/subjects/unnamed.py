"""What does an exam paper look like? A recorded report under another name, which tells no more of itself."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from labkit import course
from labkit.paths import RECORDED
from labkit.source import originals
from stepbudget.report import Report, open_report


@cache
def unnamed(recorded: str, name: str) -> Report:
    """A report that the default machine recorded, under another name."""
    file = RECORDED / course.DEFAULT_MACHINE / "profiles" / f"{recorded}.sqlite.xz"
    with tempfile.TemporaryDirectory(prefix="labkit-clinic-") as scratch:
        copy = Path(scratch) / f"{name}.sqlite.xz"
        shutil.copyfile(originals.original(file), copy)
        return open_report(copy)  # unpacked, and open: it needs the copy no more
