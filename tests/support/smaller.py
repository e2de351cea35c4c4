"""A benchmark with a smaller constant, where what it does is tested and not how often."""

import shutil
from pathlib import Path

from labkit.paths import BENCHMARKS


def smaller(folder: Path, name: str, line: str, instead: str) -> Path:
    """The benchmark in a copy of their folder, with the beginning of one of its lines replaced."""
    copies = folder / BENCHMARKS.name
    shutil.copytree(BENCHMARKS, copies, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copies / name).read_text()
    assert text.count(f"\n{line}") == 1
    (copies / name).write_text(text.replace(f"\n{line}", f"\n{instead}"))
    return copies / name
