"""Which line of the user's program was a thread in? Backtraces, in the forms in which an export holds them.

*Python's* are marks in an NVTX domain of their own: "Python Backtrace on CUDA" (``--python-backtrace=cuda``; the moment
is the very one at which nsys begins the row of the call's compiled backtrace), "Python Periodic Sampling"
(``--python-sampling=true``, by the thread that was met), and, until 2024.2, "Python Backtrace". What they say stands
beside them as JSON or as bytes (``export.frames`` reads both), if nsys was asked to export it: ``--include-json=true``,
``--include-blobs=true``, which Nsight Systems 2024.2 did not have yet.

*Chains* stand in tables of a row a frame (id, stackDepth, 0 the innermost, symbol, module). CUDA_CALLCHAINS and
OSRT_CALLCHAINS belong to calls, by ``callchainId``; SAMPLING_CALLCHAINS to the samples in COMPOSITE_EVENTS. Their
frames are compiled code; in a Python program they name the interpreter and PyTorch's libraries, not the line. Of a CUDA
call it is not the call's own row that has the chain, but one more around it (``Export.backtraced``).

Seen in recordings: all of it as 2025.3 writes it, samples of Python also as 2024.2 does (by its export to JSON), chains
of the operating system and of samples also as 2022.4 does. From documentation alone: frames of a chain that name a file
of Python and a line.

Sources: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference", "CUDA Python Backtrace", "Python Backtrace
Sampling"; NVIDIA, NVTX 3, "Extended payloads".
"""

from __future__ import annotations

import html

import pandas as pd

from stepbudget.export import frames
from stepbudget.export.frames import ENTRY, MARK, OF_2024, ON_CALLS, Frame
from stepbudget.export.sqlite import CALLS, OS_CALLS, RANGES, Export

SAMPLED_BY, CALLED_BY, ON_SAMPLES = "Python samples", "Python backtraces", "samples"
CHAINS = {CALLS: "CUDA_CALLCHAINS", OS_CALLS: "OSRT_CALLCHAINS"}
SAMPLES, SAMPLED = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
SAMPLE = 1  # in 2024.2: the source of a mark that no call asked for
LEAD_NS = 100_000  # a mark comes before its call, by less than one microsecond wherever it was seen


def python(export: Export, first: int, last: int) -> pd.DataFrame:
    """The backtraces of Python from one moment to another (ns, the export's own clock).

    Columns: ``time`` (ns; of one that a call asked for: the call's start), ``thread``, ``is_sample``, ``frame`` (the
    innermost of the user's own code, a Frame; None where all of it is a library's). A sample of 2024.2 is the main
    thread's: which other thread it met, that version does not say.
    """
    columns = ["time", "thread", "is_sample", "frame"]
    domains = _domains(export)
    told = [name for name in ("binaryData", "jsonText") if name in export.columns(RANGES)]
    if not domains or not told:
        return pd.DataFrame(columns=columns)
    blob = "CAST(binaryData AS BLOB)" if "binaryData" in told else "NULL"
    json = f"CASE WHEN {blob} IS NULL THEN {'jsonText' if 'jsonText' in told else 'NULL'} END"
    query = (
        f"SELECT start, globalTid, domainId, coalesce({blob}, {json}) FROM {RANGES} WHERE eventType = {MARK} "
        "AND typeof(start) = 'integer' AND typeof(globalTid) = 'integer' AND start BETWEEN ? AND ? ORDER BY start"
    )
    rows = export.rows(query, (max(first - LEAD_NS, -(2**63)), min(last, 2**63 - 1)))
    starts = _call_starts(export) if ON_CALLS in domains.values() else {}
    texts: dict[int, str] = {}
    known: dict[tuple, tuple[int, Frame | None, str] | None] = {}
    found = []
    for time, thread, domain, told in rows:
        kind = domains.get((thread >> 24, domain))
        if kind is None:
            continue
        if (kind, told) not in known:
            known[kind, told] = _decoded(export, told, texts)
        if known[kind, told] is None:
            continue
        source, frame, outermost = known[kind, told]
        if kind == ON_CALLS:
            found.append((starts.get((thread, time), time), thread, False, frame))
        elif kind != OF_2024:
            found.append((time, thread, True, frame))
        elif source == SAMPLE and outermost == ENTRY:
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
    return export.has("CUDA_CALLCHAINS") or export.has(SAMPLED) or bool(_domains(export))


def chained(export: Export, table: str) -> pd.DataFrame:
    """The calls of a table that have a chain: ``start`` (the export's own clock), ``thread``, ``frame``.

    The frame is the innermost of the user's own code, a Frame; calls without any are left out.
    """
    if "callchainId" not in export.columns(table):
        return pd.DataFrame(columns=["start", "thread", "frame"])
    found = _with_frames(export, f"SELECT start, globalTid, callchainId FROM {table}", CHAINS[table])
    starts = _call_starts(export) if table == CALLS and len(found) else {}
    found["start"] = [starts.get(key, key[1]) for key in zip(found["thread"], found["start"], strict=True)]
    return found


def sampled(export: Export, first: int, last: int) -> pd.DataFrame:
    """The CPU samples from one moment to another, as ``chained`` has the calls."""
    if not {"id", "start", "globalTid"} <= export.columns(SAMPLES):
        return pd.DataFrame(columns=["start", "thread", "frame"])
    within = f"WHERE start BETWEEN {int(first)} AND {int(last)}"
    return _with_frames(export, f"SELECT start, globalTid, id FROM {SAMPLES} {within}", SAMPLED)


def _call_starts(export: Export) -> dict[tuple[int, int], int]:
    """Thread and start of the rows that hold backtraces of calls → start of the call."""
    if not {"correlationId", "eventClass"} <= export.columns(CALLS):
        return {}
    query = (
        f"WITH call AS (SELECT globalTid, correlationId, min(start) AS start FROM {CALLS} WHERE {export.calls} "
        f"GROUP BY globalTid, correlationId), trace AS (SELECT * FROM {CALLS} WHERE {export.backtraced}) "
        "SELECT trace.globalTid, trace.start, call.start FROM trace JOIN call USING (globalTid, correlationId)"
    )
    return {(thread, start): call for thread, start, call in export.rows(query)}


def _domains(export: Export) -> dict[tuple[int, int], str]:
    """The NVTX domains of Python's backtraces: process and number → name."""
    if not {"text", "textId"} <= export.columns(RANGES):
        return {}
    return {
        (process, domain): text
        for process, domain, text in export.domains
        if isinstance(process, int) and isinstance(domain, int) and text in frames.DOMAINS
    }


def _decoded(export: Export, told: object, texts: dict[int, str]) -> tuple[int, Frame | None, str] | None:
    """Source (2024.2's), the user's innermost frame, and the name of the outermost function."""
    found = frames.payload(told) if isinstance(told, bytes) else frames.from_json(told)
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
