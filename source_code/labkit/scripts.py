"""Is there such a script? Its file; one sentence, with the near names, where there is none."""

from __future__ import annotations

from pathlib import Path

from labkit import paths
from labkit.errors import LabError, near


def script(name: str) -> Path:
    """The file of a script of source_code/ or of its benchmarks/. LabError where there is none of that name."""
    file = paths.script(name)
    if not file.is_file():
        there = sorted({one.name for folder in (paths.SOURCE_CODE, paths.BENCHMARKS) for one in folder.glob("*.py")})
        raise LabError(f"there is no script called {name} in source_code/. {near(name, there)}")
    return file
