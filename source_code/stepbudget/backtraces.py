"""Which line of the user's program was a thread in? Backtraces, in the forms in which an export holds them.

*Python's* (``--python-backtrace=cuda``, ``--python-sampling=true``) are marks in the NVTX domain "Python Backtrace",
each with a payload: state of the thread, source (1: a sample) and number of frames, four bytes each, and four unused;
then for each frame, the innermost first, function and file (ids in StringIds, eight bytes each), line and four unused
bytes. ``nsys export`` writes the payload, as ``NVTX_EVENTS.binaryData``, only if asked to (``--include-blobs=true``,
which Nsight Systems 2024.2 did not have yet), and puts 32 bytes before it, of which the third eight are its size.

*Chains* stand in tables of a row a frame (id, stackDepth, 0 the innermost, symbol, module). CUDA_CALLCHAINS and
OSRT_CALLCHAINS belong to calls, by ``callchainId``; SAMPLING_CALLCHAINS to the samples in COMPOSITE_EVENTS. Their
frames are compiled code; in a Python program they name the interpreter, not the line.

Seen in recordings: samples of Python and their payload (2024.2, by its export to JSON), chains of the operating system
and of samples (2022.4, 2024.2). From documentation and other people's readers alone: CUDA_CALLCHAINS, whose frames may
name a file of Python and a line, the 32 bytes before a payload, and marks of single CUDA calls (any source but 1).

Sources: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference", "CUDA Python Backtrace", "Python Backtrace
Sampling"; NVIDIA, NVTX 3, "Extended payloads".
"""

from __future__ import annotations

import html
import re
import struct
from dataclasses import dataclass

import pandas as pd

from stepbudget.export.sqlite import CALLS, OS_CALLS, RANGES, Export

SAMPLED_BY, CALLED_BY, ON_SAMPLES = "Python samples", "Python backtraces", "samples"
CHAINS = {CALLS: "CUDA_CALLCHAINS", OS_CALLS: "OSRT_CALLCHAINS"}
SAMPLES, SAMPLED = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
DOMAIN = "Python Backtrace"
MARK, DOMAIN_CREATED = 34, 75  # kinds of NVTX events
SAMPLE = 1  # the source of a mark that no call asked for
HEADER, HEAD, FRAME = struct.Struct("<4Q"), struct.Struct("<3I4x"), struct.Struct("<2QI4x")
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
# A frame of a chain that names a file of Python: "train (train.py:41)", "/home/ann/train.py:41".
PATH = re.compile(r"(?<![\w/\\])(?:[A-Za-z]:)?[/\\][^:()\"']+[/\\][^:()\"']*")
PACKAGED = re.compile(r"(site-packages|dist-packages|pytorch/torch|lib(64)?/python\d[^/]*|Lib)[/\\]")
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


def python(export: Export, first: int, last: int) -> pd.DataFrame:
    """The backtraces of Python from one moment to another (ns, the export's own clock).

    Columns: ``time`` (ns), ``thread``, ``is_sample``, ``frame`` (the innermost of the user's own code, a Frame; None
    where all of it is a library's). A sample is the main thread's: which other thread it met, the export does not say.
    """
    columns = ["time", "thread", "is_sample", "frame"]
    domains = _domains(export)
    if not domains or "binaryData" not in export.columns(RANGES):
        return pd.DataFrame(columns=columns)
    query = (
        f"SELECT start, globalTid, domainId, CAST(binaryData AS BLOB) FROM {RANGES} WHERE eventType = {MARK} "
        "AND typeof(start) = 'integer' AND typeof(globalTid) = 'integer' AND binaryData IS NOT NULL "
        "AND start BETWEEN ? AND ? ORDER BY start"
    )
    rows = [row for row in export.rows(query, (first, last)) if (row[1] >> 24, row[2]) in domains]
    texts: dict[int, str] = {}
    known: dict[bytes, tuple[int, Frame | None, str] | None] = {}
    found = []
    for time, thread, _, blob in rows:
        if blob not in known:
            known[blob] = _decoded(export, blob, texts)
        if known[blob] is None:
            continue
        source, frame, outermost = known[blob]
        if source != SAMPLE:
            found.append((time, thread, False, frame))
        elif outermost == ENTRY:
            process = thread >> 24
            found.append((time, process << 24 | process & 0xFFFFFF, True, frame))
    return pd.DataFrame(found, columns=columns)


def marks(export: Export) -> int:
    """How many marks of Python's backtraces the export holds, with or without what they say."""
    domains = {domain for _, domain in _domains(export)}
    if not domains:
        return 0
    listed = ", ".join(map(str, sorted(domains)))
    query = f"SELECT count(*) FROM {RANGES} WHERE eventType = {MARK} AND domainId IN ({listed}) AND textId IS NULL"
    return export.rows(f"{query} AND text IS NULL")[0][0]


def are_in(export: Export) -> bool:
    """Does the export hold any backtrace that could name a line?"""
    return export.has("CUDA_CALLCHAINS") or export.has(SAMPLED) or "binaryData" in export.columns(RANGES)


def chained(export: Export, table: str) -> pd.DataFrame:
    """The calls of a table that have a chain: ``start`` (the export's own clock), ``thread``, ``frame``.

    The frame is the innermost of the user's own code, a Frame; calls without any are left out.
    """
    if "callchainId" not in export.columns(table):
        return pd.DataFrame(columns=["start", "thread", "frame"])
    return _with_frames(export, f"SELECT start, globalTid, callchainId FROM {table}", CHAINS[table])


def sampled(export: Export, first: int, last: int) -> pd.DataFrame:
    """The CPU samples from one moment to another, as ``chained`` has the calls."""
    if not {"id", "start", "globalTid"} <= export.columns(SAMPLES):
        return pd.DataFrame(columns=["start", "thread", "frame"])
    within = f"WHERE start BETWEEN {int(first)} AND {int(last)}"
    return _with_frames(export, f"SELECT start, globalTid, id FROM {SAMPLES} {within}", SAMPLED)


def string_ids(blob: bytes) -> list[int]:
    """The ids of the texts that the payload of a mark needs; empty where it is none."""
    found = _frames(blob)
    return [] if found is None else [number for function, file, _ in found[1] for number in (function, file)]


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


def _domains(export: Export) -> set[tuple[int, int]]:
    """The NVTX domains of Python's backtraces: process and number."""
    if not {"domainId", "eventType", "globalTid", "text", "textId"} <= export.columns(RANGES):
        return set()
    name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    query = f"SELECT globalTid, domainId FROM {RANGES} WHERE eventType = {DOMAIN_CREATED} AND {name} = ?"
    rows = export.rows(query, (DOMAIN,))
    return {(thread >> 24, domain) for thread, domain in rows if isinstance(thread, int) and isinstance(domain, int)}


def _frames(blob: bytes) -> tuple[int, list[tuple[int, int, int]]] | None:
    """Source and frames (function, file, line) of a payload, with its header or without; None: it is none."""
    start = 0
    if len(blob) >= HEADER.size + HEAD.size:
        start = HEADER.size if HEADER.unpack_from(blob)[2] == len(blob) - HEADER.size else 0
    if len(blob) < start + HEAD.size:
        return None
    _, source, count = HEAD.unpack_from(blob, start)
    if not 0 < count <= DEEPEST or len(blob) != start + HEAD.size + count * FRAME.size:
        return None
    return source, list(FRAME.iter_unpack(blob[start + HEAD.size :]))


def _decoded(export: Export, blob: bytes, texts: dict[int, str]) -> tuple[int, Frame | None, str] | None:
    """Source, the user's innermost frame, and the name of the outermost function."""
    found = _frames(blob)
    if found is None:
        return None
    source, frames = found
    for function, file, line in frames:
        if is_users(path := _text(export, file, texts)):
            return source, Frame(_text(export, function, texts), path, line), _text(export, frames[-1][0], texts)
    return source, None, _text(export, frames[-1][0], texts)


def _text(export: Export, number: int, texts: dict[int, str]) -> str:
    """A text by its id; nsys writes "<module>" as HTML would have it. Empty where there is none."""
    if number not in texts:
        rows = export.rows("SELECT value FROM StringIds WHERE id = ?", (number,)) if number < 2**63 else []
        texts[number] = html.unescape(rows[0][0]) if rows and isinstance(rows[0][0], str) else ""
    return texts[number]


def _with_frames(export: Export, events: str, table: str) -> pd.DataFrame:
    """The events (SQL: start, thread, id of a chain) with the innermost frame of the user's own in the chain."""
    columns = ["start", "thread", "frame"]
    if not {"id", "stackDepth", "symbol", "module"} <= export.columns(table):
        return pd.DataFrame(columns=columns)
    pairs = export.rows(f"SELECT DISTINCT symbol, module FROM {table}")
    texts: dict[int, str] = {}
    own = {}
    for symbol, module in pairs:
        if isinstance(symbol, int) and isinstance(module, int):
            frame = _of_chain(*(_text(export, number, texts) for number in (symbol, module)))
            if frame:
                own[symbol, module] = frame
    if not own:
        return pd.DataFrame(columns=columns)
    listed = ", ".join(f"({symbol}, {module})" for symbol, module in own)
    query = (  # beside the smallest depth SQLite gives the symbol and the module of the row that has it
        f"WITH own AS (SELECT id, min(stackDepth), symbol, module FROM {table} "
        f"WHERE (symbol, module) IN (VALUES {listed}) GROUP BY id), event (start, thread, chain) AS ({events}) "
        "SELECT event.start, event.thread, own.symbol, own.module FROM event JOIN own ON own.id = event.chain"
    )
    rows = [
        (start, thread, own[symbol, module])
        for start, thread, symbol, module in export.rows(query)
        if isinstance(start, int) and isinstance(thread, int)
    ]
    return pd.DataFrame(rows, columns=columns).astype({"start": "int64", "thread": "int64"})


def _of_chain(symbol: str, module: str) -> Frame | None:
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
