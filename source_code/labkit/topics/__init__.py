"""What do the labs teach? A package a topic: its readings, tables and charts.

Each is imported when it is first asked for: a benchmark that needs a topic's readings loads none of its charts.
"""

import importlib
import pkgutil
from collections.abc import Callable


def rooms(package: str, path: list[str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package that imports its modules when they are asked for (PEP 562)."""
    names = [module.name for module in pkgutil.iter_modules(path)]

    def room(name: str) -> object:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return room, lambda: names
