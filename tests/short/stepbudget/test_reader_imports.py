"""The report reader stands alone: it imports nothing of the course. That nothing goes in a circle: test_house.py."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import stepbudget

FOLDER = Path(stepbudget.__file__).parent
MODULES = {
    ".".join(("stepbudget", *path.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FOLDER.rglob("*.py")
}
FROM_ELSEWHERE = {"numpy", "pandas"}


def imported(path: Path) -> set[str]:
    """All that a module imports anywhere in it: in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


def test_the_reader_needs_nothing_but_numpy_and_pandas():
    for name, path in MODULES.items():
        first = {one.partition(".")[0] for one in imported(path)} - {"stepbudget"} - sys.stdlib_module_names
        assert first <= FROM_ELSEWHERE, (name, first)
        assert "labkit" not in path.read_text(), name


def test_every_module_can_be_imported():
    for name in MODULES:
        assert importlib.import_module(name).__doc__, name
