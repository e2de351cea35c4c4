"""What would an installation give on this machine? Asked before one, by the standard library alone: ``make doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable

from labkit import versions
from labkit.paths import ROOT
from stepbudget.errors import speak_any_encoding
from stepbudget.export import nsys

Row = tuple[str, str, str]  # what is looked at, what was found, what follows (empty: it works)

WIDTH = 22
COURSE_GB, READ_GB = 6.0, 0.6  # that make lab and make read take


def rows(driver: str, found: nsys.Nsys | None, free_gb: float) -> list[Row]:
    """All that is looked at. ``driver``: as ``versions.driver`` gives it."""
    python = "" if versions.file_for().is_file() else "nothing was tested with it yet: the newest versions are taken"
    room = "" if free_gb > COURSE_GB else f"make lab takes {COURSE_GB:.0f} GB, make read {READ_GB:.1f}"
    room = room if os.access(ROOT, os.W_OK) else f"{ROOT} cannot be written: install in a copy of your own"
    no_nsys = "" if found else nsys.misnamed("LAB_NSYS", "nsys") or nsys.HOW_TO_GET
    return [
        ("Python", f"{platform.python_version()}, {platform.platform()}", python),
        ("driver", driver or "none", versions.for_driver(driver)[1]),
        ("Nsight Systems", found.version_text if found else "not found", no_nsys),
        ("disk", f"{free_gb:,.1f} GB free", room),
    ]


def conclusion(driver: str, found: nsys.Nsys | None, free_gb: float) -> str:
    """What make would make of it, in a sentence or three."""
    missing = [what for what, there in (("an NVIDIA driver", driver), ("Nsight Systems", found)) if not there]
    mode = f"show recorded results, without {' and '.join(missing)}" if missing else "run live, if PyTorch sees the GPU"
    read = "make read: recorded results without PyTorch"
    if free_gb > COURSE_GB:
        return f"Nothing is installed yet. After make lab, the labs {mode}. {read}."
    return f"Nothing is installed yet. {read}." if free_gb > READ_GB else "There is room for nothing."


def show(found: Iterable[Row]) -> None:
    """Each row as soon as it is known."""
    for what, said, so in found:
        print(f"{what:{WIDTH}}{said}" + (f"\n{'':{WIDTH}}→ {so}" if so else ""), flush=True)


def main() -> None:
    speak_any_encoding()
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    known = versions.driver(), nsys.find_nsys(), free_gb
    show(rows(*known))
    print(f"\n{conclusion(*known)}")
    sys.exit(free_gb < READ_GB)


if __name__ == "__main__":
    main()
