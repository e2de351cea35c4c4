"""The notebooks, in the order of the catalogue, and which of them a machine has results of its own for."""

import re
from pathlib import Path

from nbval.plugin import get_sanitize_patterns

from labkit import course
from labkit.paths import ROOT

FILES = [ROOT / "start_here.ipynb", *(lab.path for lab in course.LABS)]
BY_NAME = {file.stem: file for file in FILES}
SANITIZER = ROOT / "tests" / "live_sanitizer.cfg"
PATTERNS = get_sanitize_patterns(SANITIZER.read_text())

# What a machine that was recorded in part has of its own: of parts 1 and 2. The rest is the default machine's.
_IN_PART = {"start_here", *(lab.name for lab in course.LABS if lab.part <= 2)}


def of(machine: str) -> list[Path]:
    """Of a machine that is recorded or pretended."""
    in_part = machine in course.MACHINES and machine != course.DEFAULT_MACHINE
    return [file for file in FILES if file.stem in _IN_PART or not in_part]


def text_of(cell) -> str:
    """What a stored cell printed and showed, as text."""
    return "".join(out.get("text") or out.data.get("text/plain", "") + "\n" for out in cell.outputs)


def sanitized(text: str) -> str:
    """What ``make test-gpu`` compares of a cell's text."""
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text
