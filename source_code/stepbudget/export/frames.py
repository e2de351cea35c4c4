"""What does a frame of a backtrace say, and whose code is it? Its texts, and the payloads of Python's backtraces.

A payload as bytes, whose layout 2025.3 writes into NVTX_PAYLOAD_SCHEMA_ENTRIES: number of the thread among Python's
(eight bytes), its state (1: running) and the number of frames (four each); then for each frame, the innermost first,
function and file (ids in StringIds, eight bytes each), line and four unused bytes. 2024.2 begins with state, source (1:
a sample), number of frames, and four unused bytes. ``nsys export`` puts 32 bytes before it: a number that was 1 in all
that were read, the schema, the size, and where it begins. As JSON: ``{NAME: {…, "Frames": [{"Function": 1, "File": 2,
"Line": 3}]}}``.

What an export holds beside them: ``stepbudget.backtraces``.
"""

from __future__ import annotations

import html
import json
import re
import struct
from dataclasses import dataclass

ON_CALLS, PERIODIC, OF_2024 = "Python Backtrace on CUDA", "Python Periodic Sampling", "Python Backtrace"
DOMAINS = (ON_CALLS, PERIODIC, OF_2024)  # of NVTX, as an event of this kind makes them known
MARK = 34  # kind of NVTX event
HEADER, HEAD, FRAME = struct.Struct("<4Q"), struct.Struct("<4I"), struct.Struct("<2QI4x")
DEEPEST = 4096  # frames of one backtrace

# Whose code is a file of Python? A library's, by where it lies: what was installed, Python's own modules, PyTorch's
# source, and what has no file (frozen modules, generated code) but was not typed in. All else is the user's.
LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|pytorch/torch|lib(64)?/python\d[^/]*)/|(^|[/\\])Lib[/\\]|^<(?!stdin|ipython)|^$"
)
ENTRY = "<module>"  # outermost in the thread that Python started with
# Whose is compiled code? The system's, an installed library's or the interpreter's, by the path of its file; else the
# user's.
SYSTEM = re.compile(
    r"^\[|^$|^/(usr|proc|snap|nix|opt/nvidia)/|(^|/)(lib|lib64|site-packages|dist-packages)/|(^|/)(python|pypy)[\d.]*$"
    r"|(^|/)lib(cuda|cudart|cublas|cudnn|cupti|nccl|nv\w*|torch\w*|c10\w*|Tools\w*)[.-]"
)
START = re.compile(r"^(_start|__libc_start\w*|__clone\w*|start_thread|0x[\da-f]+|\[.*)$")
PATH = re.compile(r"(?<![\w/\\])(?:[A-Za-z]:)?[/\\][^:()\"']+[/\\][^:()\"']*")
PACKAGED = re.compile(r"(site-packages|dist-packages|pytorch/torch|lib(64)?/python\d[^/]*|Lib)[/\\]")
# A frame of a chain that names a file of Python: "train (train.py:41)", "/home/ann/train.py:41".
IN_PYTHON = re.compile(r"(?P<file>[^\s()\"']*\.py)\b(?:[:,( ]+(?:line )?(?P<line>\d{1,7}))?")


@dataclass(frozen=True)
class Frame:
    """Where a thread was: a function, the file that holds it, and the line; the last two as far as they are known."""

    function: str
    file: str  # path of the source, or of the compiled program
    line: int | None = None

    @property
    def name(self) -> str:
        """The file's own name, without its folder; with it where the name alone says nothing (``__init__.py``)."""
        parts = re.split(r"[/\\]", self.file)
        return "/".join(parts[-2:] if parts[-1].startswith("__") else parts[-1:])

    def __str__(self) -> str:
        at = f"{self.name}:{self.line}" if self.line else self.name
        return at if self.function in ("", ENTRY) else f"{at} in {self.function}"


def payload(blob: bytes) -> tuple[int, list[tuple[int, int, int]]] | None:
    """Source (of 2024.2, else 0) and frames (function, file, line); None: it is no such payload."""
    if len(blob) < HEADER.size:
        return None
    _, _, size, begin = HEADER.unpack_from(blob)
    count, rest = divmod(size - HEAD.size, FRAME.size)
    if begin < HEADER.size or begin + size != len(blob) or rest or not 0 < count <= DEEPEST:
        return None
    _, second, third, fourth = HEAD.unpack_from(blob, begin)
    if count not in (third, fourth):
        return None
    return second, list(FRAME.iter_unpack(blob[begin + HEAD.size :]))


def from_json(text: object) -> tuple[int, list[tuple[int, int, int]]] | None:
    """The same of what an export says as JSON."""
    try:
        (told,) = json.loads(text).values()
        found = [(frame["Function"], frame["File"], frame["Line"]) for frame in told["Frames"][:DEEPEST]]
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError):
        return None
    whole = all(isinstance(number, int) and 0 <= number < 2**63 for frame in found for number in frame)
    return (0, found) if found and whole else None


def bare(told: bytes | str | None) -> tuple[bytes | str, list[int]] | None:
    """A payload in its own form without what is no part of its frames, and the ids of the texts that it needs.

    None: it is none. The unused bytes hold whatever the program's memory held there.
    """
    found = payload(told) if isinstance(told, bytes) else from_json(told)
    if found is None:
        return None
    ids = [number for function, file, _ in found[1] for number in (function, file) if number < 2**63]
    if isinstance(told, bytes):
        return told[: -FRAME.size * len(found[1])] + b"".join(FRAME.pack(*frame) for frame in found[1]), ids
    named = [dict(zip(("Function", "File", "Line"), frame, strict=True)) for frame in found[1]]
    return json.dumps({"": {"Frames": named}}), ids


def scrubbed(text: str) -> str:
    """A frame's text, its paths without what they tell of a machine's owner.

    What is left of a path begins where a library does, or is the file's own name; it is whose it was before.
    """
    return PATH.sub(lambda path: _short(path[0]), text)


def _short(path: str) -> str:
    if path.startswith(("/usr/", "/lib/", "/lib64/")):
        return path
    if known := PACKAGED.search(path):
        return path[known.start() :]
    name = re.split(r"[/\\]", path)[-1]
    return f"lib/{name}" if SYSTEM.search(path) and not SYSTEM.search(name) else name


def is_users(path: str) -> bool:
    """Is a file of Python the user's own code?"""
    return not LIBRARY.search(path)


def of_chain(symbol: str, module: str) -> Frame | None:
    """The frame of a chain, if it is the user's own code: of Python, where it names such a file, else compiled."""
    for text in (module, symbol):
        if named := IN_PYTHON.search(text):
            line = named["line"] or (found["line"] if (found := IN_PYTHON.search(symbol)) else None)
            if not is_users(named["file"]):
                return None
            function = re.sub(r"^\[Python\] *|[\s(:,@]*$", "", IN_PYTHON.sub("", symbol)).strip("() :")
            return Frame(html.unescape(function), named["file"], int(line) if line else None)
    if SYSTEM.search(module) or START.match(symbol) or not symbol:
        return None
    return Frame(symbol, module)
