"""What do the plain sums say? Counts and times by name, as ``nsys stats`` gives them, one SQL query a question.

This room needs SQLite and nothing else, so that it answers before pandas would be loaded. The queries stand in it to be
read, and most of them run as they are in ``sqlite3 report.sqlite``: what is in braces is a column or table that not
every version of Nsight Systems writes, ``:last`` is the last moment of the capture. All times are nanoseconds, all
sizes bytes, and everything is about the whole capture, all processes and GPUs.

Where the answers differ from those of ``nsys stats``: a kernel belongs to the innermost range alone, not to those
around it as well; ranges of the same name are one row, in whatever thread or domain; a range that is still open when
the capture stops lasts until the last event of any kind, not the last of NVTX; calls lose their ``_v7000`` and
ranges what PyTorch's emit_nvtx adds to a name; median and standard deviation are not worked out.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepbudget.errors import ReportError
from stepbudget.export import files
from stepbudget.export.kinds import DIRECTIONS, EXACT, MEMORY, RANGE_TYPES

RANGES, CALLS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS, COPIES, FILLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
ELSEWHERE = ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "OSRT_API")  # no sums of these here, but the capture may end with one
OUTSIDE = "(outside any range)"
MOST_BYTES = 2**48

# The columns of each answer, in order; the longest in total come first.
_TIMES = ("count", "total_ns", "mean_ns", "min_ns", "max_ns")
COLUMNS = {
    "ranges": ("name", *_TIMES),
    "kernels_by_range": ("range", "kernel", *_TIMES),
    "kernels": ("name", *_TIMES),
    "copies": ("direction", "memory", *_TIMES, "bytes", "min_bytes", "max_bytes"),
    "calls": ("name", *_TIMES),
}

# --- the questions ------------------------------------------------------------------------------------------

# How long did the ranges of each name last? A name stands in the event itself or, where the program registered it, in
# the list of strings. max() of two values makes an instant of what ends before it begins.
RANGE_SUMS = """
WITH ranges AS (
    SELECT
        coalesce({text}, registered.value, '(unnamed range)') AS label,
        max(coalesce(event."end", :last), event.start) - event.start AS ns
    FROM NVTX_EVENTS AS event
    LEFT JOIN StringIds AS registered ON registered.id = {textId}
    WHERE event.eventType IN ({types})
)
SELECT
    {own_name} AS name,
    count(*), sum(ns) AS total, avg(ns), min(ns), max(ns)
FROM ranges GROUP BY name ORDER BY total DESC, name
"""

# What PyTorch's emit_nvtx adds to an operator's name, as in "aten::add, seq = 7, op_id = 9, sizes = [[64]]", is cut
# off: min() finds the first of the three; where none is there, each is found behind the name, where it was just put.
OWN_NAME = """substr(label, 1, -1 + min(
        instr(label || ', seq = ', ', seq = '),
        instr(label || ', op_id = ', ', op_id = '),
        instr(label || ', sizes = ', ', sizes = ')
    ))"""

# How long did the kernels of each name run? Summed by the number of the name first: numbers are sooner compared.
KERNEL_SUMS = """
WITH by_number AS (
    SELECT
        {nameId} AS number, count(*) AS count, sum("end" - start) AS total,
        min("end" - start) AS shortest, max("end" - start) AS longest
    FROM CUPTI_ACTIVITY_KIND_KERNEL
    WHERE "end" >= start
    GROUP BY number
),
named AS (
    SELECT CASE typeof(value) WHEN 'text' THEN value ELSE '(unnamed kernel)' END AS name, by_number.*
    FROM by_number LEFT JOIN StringIds ON StringIds.id = number
)
SELECT name, sum(count), sum(total) AS ns, 1.0 * sum(total) / sum(count), min(shortest), max(longest)
FROM named GROUP BY name ORDER BY ns DESC, name
"""

# Which thread launched each kernel, and when? A kernel and its launch share a correlation id, which another process
# may use too: the upper bits of globalTid and globalPid say which process it was. A launch before the capture began is
# not in it; the kernels of a CUDA graph share one, and what the driver does by itself has the id 0.
LAUNCHES = """
SELECT call.globalTid, min(call.start) AS moment, {nameId}, kernel."end" - kernel.start
FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call
    ON call.correlationId = kernel.correlationId AND kernel.correlationId <> 0
    AND call.globalTid >> 24 = kernel.globalPid >> 24
WHERE kernel."end" >= kernel.start
GROUP BY kernel.rowid -- a kernel counts once, with the first call, should several calls share the id
ORDER BY call.globalTid, moment
"""
LAUNCHES_UNKNOWN = """
SELECT NULL, NULL, {nameId}, "end" - start FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel WHERE "end" >= start
"""
# The ranges of each thread, outer ones before inner ones.
NESTED = """
WITH ranges AS (
    SELECT
        event.globalTid AS thread, event.start, coalesce(event."end", :last) AS until,
        coalesce({text}, registered.value, '(unnamed range)') AS label
    FROM NVTX_EVENTS AS event
    LEFT JOIN StringIds AS registered ON registered.id = {textId}
    WHERE event.eventType IN ({types})
)
SELECT
    {own_name} AS name,
    thread, start, until
FROM ranges ORDER BY thread, start, until DESC
"""

# What was copied, from where to where and from or to which kind of host memory? And what was filled (memset)? The
# host's side is a copy's source, or its target on the way back; between devices the source's kind stands there.
COPY_SUMS = """
WITH directions(number, word) AS ({directions}),
memory(number, word) AS ({memory}),
copies AS (
    SELECT
        coalesce(directions.word, 'other') AS direction,
        CASE directions.word WHEN 'device to host' THEN {dstKind} ELSE {srcKind} END AS kind,
        "end" - start AS ns, bytes
    FROM {copies} LEFT JOIN directions ON directions.number = copyKind
    WHERE "end" >= start
    UNION ALL
    SELECT 'memset', {memKind}, "end" - start, bytes
    FROM {fills}
    WHERE "end" >= start
)
SELECT
    direction, coalesce(memory.word, 'unknown') AS place,
    count(*), sum(ns) AS total, avg(ns), min(ns), max(ns), sum(bytes), min(bytes), max(bytes)
FROM copies LEFT JOIN memory ON memory.number = kind
GROUP BY direction, place ORDER BY total DESC, direction, place
"""
NO_WORK = '(SELECT 0 AS start, -1 AS "end", 0 AS bytes, NULL AS copyKind)'  # in place of a table that is not there

# How long did the CUDA API's calls last? A name ends in the API's version, cuGraphInstantiate_v2_v12000 even in two:
# each turn of the recursion takes one off, and min() picks the row of what is shortest.
CALL_SUMS = """
WITH RECURSIVE by_number AS (
    SELECT nameId AS number, max(coalesce("end", :last), start) - start AS ns FROM CUPTI_ACTIVITY_KIND_RUNTIME
),
numbers AS (
    SELECT number, count(*) AS count, sum(ns) AS total, min(ns) AS shortest, max(ns) AS longest
    FROM by_number GROUP BY number
),
shorter(number, name) AS (
    SELECT number, CASE typeof(value) WHEN 'text' THEN value ELSE '(unnamed call)' END
    FROM numbers LEFT JOIN StringIds ON StringIds.id = number
    UNION
    SELECT number, substr(name, 1, length(rtrim(name, '0123456789')) - 2)
    FROM shorter WHERE name GLOB '*_v[0-9]*' AND rtrim(name, '0123456789') GLOB '*_v'
),
names AS (
    SELECT number, name, min(length(name)) FROM shorter GROUP BY number
)
SELECT name, sum(count), sum(total) AS ns, 1.0 * sum(total) / sum(count), min(shortest), max(longest)
FROM numbers JOIN names ON names.number IS numbers.number
GROUP BY name ORDER BY ns DESC, name
"""


def sums(path: str | Path) -> dict[str, list[tuple]]:
    """The answers to all questions, question → rows; COLUMNS names what stands in them.

    What was not recorded has no rows. ReportError, in one sentence, where the report cannot be read, is damaged, or
    holds no events at all.
    """
    with _opened(Path(path)) as export:
        export.check()
        return {
            "ranges": _ranges(export),
            "kernels_by_range": _kernels_by_range(export),
            "kernels": _kernels(export),
            "copies": _copies(export),
            "calls": _calls(export),
        }


def _ranges(export: _Export) -> list[tuple]:
    if not export.columns(RANGES):
        return []
    return export.named(RANGES, export.rows(RANGE_SUMS.format(**_range_columns(export)), last=export.last))


def _kernels(export: _Export) -> list[tuple]:
    if not export.columns(KERNELS):
        return []
    return export.rows(KERNEL_SUMS.format(nameId=_kernel_name(export)))


def _kernels_by_range(export: _Export) -> list[tuple]:
    """The innermost range is found by one walk over time, thread by thread: a join would try all pairs."""
    if not export.columns(KERNELS):
        return []
    known = {"start", "globalTid", "correlationId"} <= export.columns(CALLS)
    query = LAUNCHES if known and "correlationId" in export.columns(KERNELS) else LAUNCHES_UNKNOWN
    launches = export.rows(query.format(nameId=_kernel_name(export)))
    ranges = []
    if export.columns(RANGES):
        found = export.rows(NESTED.format(**_range_columns(export)), last=export.last)
        ranges = [(thread, start, end, name) for name, thread, start, end in export.named(RANGES, found)]
    numbers = {number for _, _, number, _ in launches}
    names = {number: name for number, name in export.rows("SELECT id, value FROM StringIds") if number in numbers}
    spans: dict[tuple[str, str], list[int]] = {}
    for range_name, (_, _, number, ns) in zip(_innermost(ranges, launches), launches, strict=True):
        name = names.get(number)
        kernel = name if isinstance(name, str) else "(unnamed kernel)"
        spans.setdefault((range_name, kernel), []).append(ns)
    rows = [(*key, len(ns), sum(ns), sum(ns) / len(ns), min(ns), max(ns)) for key, ns in spans.items()]
    return sorted(rows, key=lambda row: (-row[3], row[:2]))


def _innermost(ranges: Iterable[tuple], launches: Iterable[tuple]) -> Iterator[str]:
    """For each launch the name of the range, of the same thread, that began last of those that run at that moment.

    Both come in order of thread and time; a launch begins with its thread and moment, None where it is not known.
    """
    coming = iter(ranges)
    following = next(coming, None)
    running: list[tuple] = []  # by start; some below the top may be over, none of which comes up again alive
    for thread, moment, *_ in launches:
        if thread is None:
            yield OUTSIDE
            continue
        while following is not None and following[:2] <= (thread, moment):
            running.append(following)
            following = next(coming, None)
        while running and (running[-1][0] != thread or running[-1][2] <= moment):
            running.pop()
        yield running[-1][3] if running else OUTSIDE


def _copies(export: _Export) -> list[tuple]:
    copies, fills = export.columns(COPIES), export.columns(FILLS)
    if not (copies or fills):
        return []
    columns = {kind: kind if kind in copies else "NULL" for kind in ("srcKind", "dstKind")}
    query = COPY_SUMS.format(
        directions=_words(export, "ENUM_CUDA_MEMCPY_OPER", DIRECTIONS),
        memory=_words(export, "ENUM_CUDA_MEM_KIND", MEMORY),
        memKind="memKind" if "memKind" in fills else "NULL",
        copies=COPIES if copies else NO_WORK,
        fills=FILLS if fills else NO_WORK,
        **columns,
    )
    return export.rows(query)


def _calls(export: _Export) -> list[tuple]:
    if not export.columns(CALLS):
        return []
    return export.rows(CALL_SUMS, last=export.last)


def _range_columns(export: _Export) -> dict[str, str]:
    columns = export.columns(RANGES)
    found = {name: f"event.{name}" if name in columns else "NULL" for name in ("text", "textId")}
    return {**found, "types": export.range_types, "own_name": OWN_NAME}


def _kernel_name(export: _Export) -> str:
    """SQL for the number of a kernel's name: demangled where the export has that."""
    own = [name for name in ("demangledName", "mangledName", "shortName") if name in export.columns(KERNELS)]
    return f"coalesce({', '.join(own)}, NULL)" if own else "NULL"


def _words(export: _Export, enumeration: str, known: dict[str, tuple[int, str]]) -> str:
    """SQL for the rows (number, word): by the export's own list of names, by the usual numbers where it has none."""
    listed = ", ".join(f"('{name}', {number}, '{word}')" for name, (number, word) in known.items())
    if {"id", "name"} <= export.columns(enumeration) and export.rows(f"SELECT 1 FROM {enumeration} LIMIT 1"):
        own = f"(SELECT name AS label, id FROM {enumeration})"
        return f"SELECT id, column3 FROM {own} JOIN (VALUES {listed}) ON label = column1"
    return f"SELECT column2, column3 FROM (VALUES {listed})"


# --- as text ------------------------------------------------------------------------------------------------

SHOWN = 20  # rows of a table; the JSON holds all
WIDTH = 120
TITLES = {
    "ranges": "NVTX ranges",
    "kernels_by_range": "Kernels by the innermost range of the thread that launched them",
    "kernels": "Kernels",
    "copies": "Copies and fills of memory",
    "calls": "CUDA API calls",
}


def lines(found: dict[str, list[tuple]]) -> list[str]:
    """The answers as aligned tables: times in ns, sizes in bytes, the longest SHOWN rows of each."""
    made = []
    for question, rows in found.items():
        made += ["", TITLES[question]] if made else [TITLES[question]]
        made += _table(COLUMNS[question], rows[:SHOWN]) if rows else ["  none recorded"]
        if len(rows) > SHOWN:
            total = sum(row[COLUMNS[question].index("total_ns")] for row in rows[SHOWN:])
            made.append(f"  and {len(rows) - SHOWN} more, {total:,} ns in all (--json lists them)")
    return made


def objects(found: dict[str, list[tuple]]) -> dict[str, list[dict]]:
    """The answers for JSON: each row with the names of its columns."""
    return {name: [dict(zip(COLUMNS[name], row, strict=True)) for row in rows] for name, rows in found.items()}


def _table(columns: tuple[str, ...], rows: list[tuple]) -> list[str]:
    """Texts to the left, in what room the numbers leave them; numbers to the right."""
    texts = sum(isinstance(value, str) for value in rows[0])
    numbers = [columns[texts:], *([_number(value) for value in row[texts:]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*numbers, strict=True)]
    room = max(16, (WIDTH - sum(width + 2 for width in widths)) // texts - 2)
    names = [columns[:texts], *([_name(value, room) for value in row[:texts]] for row in rows)]
    name_widths = [max(map(len, column)) for column in zip(*names, strict=True)]
    made = []
    for name, number in zip(names, numbers, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(name, name_widths, strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(number, widths, strict=True)]
        made.append(f"  {'  '.join(cells)}")
    return made


def _number(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _name(text: str, width: int) -> str:
    """The text, cut to the width, without what would steer a terminal."""
    shown = text if len(text) <= width else f"{text[: width - 1]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in shown)


# --- reading ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Export]:
    """The report's export, unpacked or made first where need be."""
    file, scratch = files.sqlite_file(path)
    with scratch or contextlib.nullcontext(), contextlib.closing(files.connect(file, path if scratch else file)) as db:
        yield _Export(db, path.name)


class _Export:
    """An open export: its rows, which tables and columns it has, and ReportError where what it holds cannot be."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._db = db
        self._name = name
        self._columns: dict[str, set[str]] = {}
        self.last = 0  # the last moment of the capture (ns); found out only where something is still open at it
        self.range_types = "59, 60"

    def rows(self, query: str, **values: int) -> list[tuple]:
        """The rows of a query; ReportError where SQLite says no."""
        try:
            return self._db.execute(query, values).fetchall()
        except UnicodeDecodeError as error:
            raise self.damaged("its list of tables", "what is no text") from error
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            said = str(error) or type(error).__name__
            raise ReportError(f"{self._name} does not answer as an Nsight Systems report: {said}.") from error

    def columns(self, table: str) -> set[str]:
        """The names of the table's columns: none where there is no such table."""
        if table not in self._columns:
            self._columns[table] = {row[1] for row in self.rows(f'PRAGMA table_info("{table}")')}
        return self._columns[table]

    def named(self, table: str, rows: list[tuple]) -> list[tuple]:
        """The rows themselves; ReportError where one does not begin with a name."""
        if not all(isinstance(row[0], str) for row in rows):
            raise self.damaged(table, "a name that is no text")
        return rows

    def check(self) -> None:
        """ReportError where the tables cannot be summed: columns missing, values of other types, times far apart."""
        if {"id", "name"} <= self.columns("ENUM_NSYS_EVENT_TYPE"):
            listed = self.rows("SELECT name, id FROM ENUM_NSYS_EVENT_TYPE")
            own = {name: number for name, number in listed if isinstance(number, int)}
            types = {own.get(name, number) for name, number in RANGE_TYPES.items()}
            self.range_types = ", ".join(map(str, sorted(types)))
        ranges = f"eventType IN ({self.range_types}) OR typeof(eventType) <> 'integer'"
        spans = [
            *self._span(RANGES, ("start", "globalTid", "eventType"), ("end",), ranges),
            *self._span(CALLS, ("start", "globalTid"), ("end", "nameId", "correlationId"), "true"),
            *self._span(KERNELS, ("start", "end", "globalPid"), ("correlationId",), '"end" >= start'),
            *self._span(COPIES, ("start", "end", "bytes"), ("copyKind",), '"end" >= start'),
            *self._span(FILLS, ("start", "end", "bytes"), (), '"end" >= start'),
        ]
        if not spans or any(still_open for *_, still_open in spans):
            for table in ELSEWHERE:
                spans += self._span(table, ("start",), ("end",), "true")
        if not spans:
            raise ReportError(f"{self._name} holds no events: was the capture range ever entered?")
        first, self.last = min(span[0] for span in spans), max(span[1] for span in spans)
        if self.last - first > EXACT:
            raise self.damaged("a table", "a time that lies months away from the others")
        for table in (COPIES, FILLS):
            if self.columns(table) and self.rows(
                f'SELECT 1 FROM {table} WHERE bytes NOT BETWEEN 0 AND {MOST_BYTES} AND "end" >= start LIMIT 1'
            ):
                raise self.damaged(table, "a copy of a size that cannot be")

    def _span(self, table: str, whole: tuple, perhaps: tuple, where: str) -> list[tuple[int, int, bool]]:
        """First and last moment of the table's events (ns), and whether one is still open; nothing where it has none.

        ``whole``: columns of integers, never missing. ``perhaps``: integers or nothing.
        """
        columns = self.columns(table)
        if not columns:
            return []
        if missing := [name for name in (*whole, *perhaps) if name not in columns]:
            what = f"{table} has no column {' and no '.join(missing)}"
            raise ReportError(f"{self._name} does not answer as an Nsight Systems report: {what}.")
        wrong = [f"typeof(\"{name}\") <> 'integer'" for name in whole]
        wrong += [f"typeof(\"{name}\") NOT IN ('integer', 'null')" for name in perhaps]
        query = f"""
            SELECT count(*), min(start), max(start), count("end"), max("end"), max({" OR ".join(wrong)})
            FROM {table} WHERE {where}
        """
        count, first, last, ended, end, damaged = self.rows(query)[0]
        if damaged:
            raise self.damaged(table, f"a value in one of {', '.join((*whole, *perhaps))} that is no whole number")
        return [(first, last if end is None else max(last, end), ended < count)] if count else []

    def damaged(self, table: str, what: str) -> ReportError:
        return ReportError(f"{self._name} is damaged: {table} holds {what}. Record or export it again.")
