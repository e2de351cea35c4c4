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

import pandas as pd

from stepbudget.export import frames
from stepbudget.export.frames import ENTRY, Frame
from stepbudget.export.sqlite import CALLS, OS_CALLS, RANGES, Export

SAMPLED_BY, CALLED_BY, ON_SAMPLES = "Python samples", "Python backtraces", "samples"
CHAINS = {CALLS: "CUDA_CALLCHAINS", OS_CALLS: "OSRT_CALLCHAINS"}
SAMPLES, SAMPLED = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
MARK = 34  # a kind of NVTX event
SAMPLE = 1  # the source of a mark that no call asked for


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
    rows = export.rows(query, (max(first, -(2**63)), min(last, 2**63 - 1)))
    rows = [row for row in rows if (row[1] >> 24, row[2]) in domains]
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


def _domains(export: Export) -> set[tuple[int, int]]:
    """The NVTX domains of Python's backtraces: process and number."""
    if not {"domainId", "eventType", "globalTid", "text", "textId"} <= export.columns(RANGES):
        return set()
    name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    query = f"SELECT globalTid, domainId FROM {RANGES} WHERE eventType = {frames.DOMAIN_CREATED} AND {name} = ?"
    rows = export.rows(query, (frames.DOMAIN,))
    return {(thread >> 24, domain) for thread, domain in rows if isinstance(thread, int) and isinstance(domain, int)}


def _decoded(export: Export, blob: bytes, texts: dict[int, str]) -> tuple[int, Frame | None, str] | None:
    """Source, the user's innermost frame, and the name of the outermost function."""
    found = frames.payload(blob)
    if found is None:
        return None
    source, chain = found
    for function, file, line in chain:
        if frames.is_users(path := _text(export, file, texts)):
            return source, Frame(_text(export, function, texts), path, line), _text(export, chain[-1][0], texts)
    return source, None, _text(export, chain[-1][0], texts)


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
            frame = frames.of_chain(*(_text(export, number, texts) for number in (symbol, module)))
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
