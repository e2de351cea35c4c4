"""Which line of the program made a call? The Python functions of a trace (``with_stack=True``) as backtraces of calls.

PyTorch names a function by its file and the line at which it begins: ``train.py(9): train``. 2.15 says, too, from
where it was called: ``"CallFrom": "train.py:13"``; that is the line at which a library was called. Of each call to CUDA
what counts is the innermost function that is the user's own or was called from there; a trace has a hundred times as
many of libraries, which are left out as they are read.

Whose is a file? PyTorch cuts off the folder in which Python found it, so that ``torch/nn/modules/module.py`` and
``train.py`` stand side by side. A library's are those of Python's own modules, and of LIBRARIES; the rest is the
user's.

Source: PyTorch, torch/csrc/autograd/profiler_python.cpp; traces of PyTorch 2.15 on the CPU.
"""

from __future__ import annotations

import json
import re
import sys
from functools import lru_cache

from stepbudget import nesting
from stepbudget.export.frames import MARK, ON_CALLS, is_users
from stepbudget.export.kinds import DOMAIN_CREATED
from stepbudget.export.names import CALLS, RANGES
from stepbudget.export.tables import Tables

DOMAIN = 1
NAMED = re.compile(r"(?P<file>[^\n]*?\.(?:py|ipynb)|<(?:stdin|ipython)[^>]*>|/tmp/ipykernel[^\n]*?)"
                   r"\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)  # fmt: skip
CALLED_FROM = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})", re.DOTALL)
LIBRARIES = re.compile(
    r"(torch\w*|functorch|triton|numpy|pandas|scipy|PIL|lightning\w*|pytorch_lightning|transformers|accelerate|deepspeed"
    r"|fsspec|datasets|keras|jax\w*|IPython|ipykernel|tqdm)[/\\]"
)

Place = tuple[str, str, int]  # function, file, line


class Frames:
    """The user's functions as they ran, by thread."""

    def __init__(self) -> None:
        self._ran: dict[int, list[tuple[int, int, Place]]] = {}
        self._functions: dict[object, str] = {}  # number of one of the user's own → its name

    def add(self, start: int, end: int, name: str, arguments: dict, event: dict) -> None:
        """Take a function's run (ns), if it is the user's own or was called from there."""
        place, caller = _named(name), _caller(arguments.get("CallFrom"))
        if place:
            self._functions[arguments.get("Python id")] = place[0]
        elif caller:
            parent = arguments.get("Python parent id")
            place = (self._functions.get(parent, "") if isinstance(parent, int) else "", *caller)
        process, thread = event.get("pid"), event.get("tid")
        if place and isinstance(process, int) and isinstance(thread, int):
            self._ran.setdefault(process << 24 | thread & 0xFFFFFF, []).append((start, end, place))

    def write(self, tables: Tables) -> None:
        """Write a backtrace, of one line, for each call that was made within one of these functions."""
        if not self._ran or not tables.has(CALLS):
            return
        told: dict[Place, str] = {}
        for thread, ran in self._ran.items():
            starts = [start for (start,) in tables.rows(
                f"SELECT start FROM {CALLS} WHERE globalTid = {thread} ORDER BY start")]  # fmt: skip
            ran.sort(key=lambda one: (one[0], -one[1]))
            for start, found in zip(starts, nesting.innermost(ran, starts), strict=True):
                if found is not None:
                    if (place := found[2]) not in told:
                        told[place] = _payload(tables, place)
                    tables.row(RANGES, (start, None, MARK, thread, None, None, told[place], DOMAIN))
        for process in {thread >> 24 for thread in self._ran}:
            name = tables.text(ON_CALLS)
            tables.row(RANGES, (0, None, DOMAIN_CREATED, process << 24, None, name, None, DOMAIN))


def _payload(tables: Tables, place: Place) -> str:
    function, file, line = place
    frame = {"Function": tables.text(function), "File": tables.text(file), "Line": line}
    return json.dumps({ON_CALLS: {"Frames": [frame]}})


@lru_cache(maxsize=65_536)
def _named(name: str) -> Place | None:
    """A function of the user's own; None for a library's."""
    found = NAMED.fullmatch(name)
    return (found["function"], found["file"], int(found["line"])) if found and _is_own(found["file"]) else None


@lru_cache(maxsize=65_536)
def _caller(told: object) -> tuple[str, int] | None:
    """File and line of the user's own that a function was called from."""
    found = CALLED_FROM.fullmatch(told) if isinstance(told, str) else None
    return (found["file"], int(found["line"])) if found and _is_own(found["file"]) else None


def _is_own(file: str) -> bool:
    top = re.split(r"[/\\]", file)[0].removesuffix(".py")
    return (
        is_users(file)
        and not file.startswith("<frozen")
        and top not in sys.stdlib_module_names
        and not (LIBRARIES.match(file))
    )
