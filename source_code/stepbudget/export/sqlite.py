"""What does an export hold? Its tables, columns and rows; and one sentence where what it holds cannot be.

It needs SQLite and nothing else, so that plain sums are there before pandas would be loaded.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from struct import Struct

from stepbudget.errors import ReportError
from stepbudget.export import files
from stepbudget.export.kinds import DOMAIN_CREATED, EXACT, MOST_BYTES, RANGE_TYPES
from stepbudget.export.names import (
    CALLS,
    COPIES,
    FILLS,
    GRAPHS,
    KERNELS,
    MPI,
    OS_CALLS,
    OVERHEAD,
    RANGES,
    SAMPLES,
    SCHEDULED,
    WORK,
)

BACKTRACE = "TRACE_PROCESS_EVENT_CUDABACKTRACE", 67  # class of some rows of CALLS: its name and usual number
KERNEL_NAME = ("demangledName", "mangledName", "shortName")  # its columns, the most telling first

# The columns that every version writes: whole numbers always, and whole numbers or nothing.
WHOLE = {
    RANGES: ("start", "globalTid", "eventType"),
    **dict.fromkeys((CALLS, OS_CALLS, OVERHEAD, SAMPLES, *MPI), ("start", "globalTid")),
    SCHEDULED: ("start", "globalTid", "isSchedIn"),
    **dict.fromkeys((KERNELS, GRAPHS), ("start", "end", "globalPid")),
    **dict.fromkeys((COPIES, FILLS), ("start", "end", "globalPid", "bytes")),
}
PERHAPS = {
    RANGES: ("end",),
    CALLS: ("end", "nameId", "correlationId"),
    **dict.fromkeys((OS_CALLS, OVERHEAD), ("end", "nameId")),
    **dict.fromkeys(MPI, ("end", "textId")),
    **dict.fromkeys((SCHEDULED, SAMPLES), ()),
    **dict.fromkeys(WORK, ("correlationId",)),
}
# What only some versions write: whole numbers or nothing.
SOMETIMES = {
    *("deviceId", "streamId", "graphNodeId", "graphId", "copyKind", "srcKind", "dstKind", "memKind"),
    *KERNEL_NAME,
}

# Two zeros stand for times that could not be had (CUPTI, CUpti_ActivityKernel and its like).
TIMED = '"end" >= start AND ("end" <> 0 OR start <> 0)'

# Which call launched which work on the GPU? The two share a correlation id, which another process may use too: the
# upper bits of globalTid and globalPid say which process it was. Should several calls share an id, the first counts.
# A call before the capture began is not in it; the kernels of a CUDA graph share the one call that launched the graph,
# and what the driver does by itself has the id 0.
LAUNCHES = f"""launches AS (
    SELECT
        correlationId, globalTid >> 24 AS process, globalTid AS thread, min(start) AS start, max("end", start) AS "end"
    FROM {CALLS} WHERE {{calls}} GROUP BY correlationId, globalTid >> 24
)"""
NO_LAUNCHES = "launches AS (SELECT NULL AS correlationId, NULL AS process, NULL AS thread, NULL AS start, NULL AS end)"
LAUNCHED_BY = """LEFT JOIN launches ON launches.correlationId = work.correlationId
    AND launches.process = work.globalPid >> 24 AND work.correlationId <> 0"""


class Export:
    """An open export, exported or unpacked first where need be; ``close()`` or ``with`` lets go of the file."""

    def __init__(self, path: str | Path) -> None:
        """Open ``path``; ReportError, in one sentence, where it is missing, damaged or no Nsight Systems export."""
        self.path = Path(path)
        self._tables: dict[str, set[str]] = {}
        self._scratch: tempfile.TemporaryDirectory | None = None
        self.sqlite_path, self._scratch = files.sqlite_file(self.path)  # what is read: the path itself, or made from it
        try:
            self._db = files.connect(self.sqlite_path, self.path if self._scratch else self.sqlite_path)
        except ReportError:
            self.close()
            raise
        if self._scratch and os.name == "posix":  # an open file needs no name, and nobody can leave it behind
            self._scratch.cleanup()

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if self._scratch:
            self._scratch.cleanup()

    def copy_to(self, file: Path) -> None:
        """All that the export holds, as an SQLite file of its own; ReportError where SQLite says no."""
        with self._answers(), closing(sqlite3.connect(file)) as copy:
            self._db.backup(copy)

    def rows(self, query: str, parameters: Sequence | dict = ()) -> list[tuple]:
        """The rows of an SQL query, with the types that SQLite holds; ReportError if the export does not answer it."""
        return self.query(query, parameters)[1]

    def query(self, sql: str, parameters: Sequence | dict = ()) -> tuple[list[str], list[tuple]]:
        """The names of a query's columns, and its rows; ReportError where SQLite, or the shape of the file, says no."""
        with self._answers():
            cursor = self._db.execute(sql, parameters)
            return [column[0] for column in cursor.description], cursor.fetchall()

    def stream(self, query: str, parameters: Sequence | dict = ()) -> Iterator[tuple]:
        """The rows of an SQL query one by one, as they are read; ReportError as for ``rows``."""
        with self._answers():
            yield from self._db.execute(query, parameters)

    def packed(self, columns: Sequence[str], rows: str, parameters: dict) -> memoryview:
        """The values of these columns (SQL) in rows (``FROM …``), one after the other, each a whole number of 8 bytes.

        SQLite hands them over to what writes them, so that no row becomes Python's objects for longer than that takes.
        ReportError where one is no whole number.
        """
        kept = BytesIO()
        self._db.create_function("pack", len(columns), Struct(f"={len(columns)}q").pack)
        self._db.create_function("keep", 1, kept.write)
        self.rows(f"SELECT count(keep(pack({', '.join(columns)}))) {rows}", parameters)
        return kept.getbuffer()

    @contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # of SQLite's own complaint, which quotes what is damaged
            raise self.damaged("its list of tables", "what is no text") from error
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            raise self._no_answer(str(error) or type(error).__name__) from error

    def columns(self, table: str) -> set[str]:
        """The names of a table's or view's columns: none where there is no such table."""
        if table not in self._tables:
            self._tables[table] = {row[1] for row in self.rows(f'PRAGMA table_info("{table}")')}
        return self._tables[table]

    def has(self, *tables: str) -> bool:
        """Does the export hold these tables?"""
        return all(self.columns(table) for table in tables)

    def column(self, table: str, *names: str) -> str:
        """SQL for the first of these columns that holds anything: NULL where this version of the table has none."""
        known = [name for name in names if name in self.columns(table)]
        return f"coalesce({', '.join(known)}, NULL)" if known else "NULL"

    def enumeration(self, table: str) -> dict[str, int]:
        """A list of kinds (table ``ENUM_…``), NVIDIA's name → number; empty where there is none."""
        if not {"id", "name"} <= self.columns(table):
            return {}
        rows = self.rows(f"SELECT name, id FROM {table}")
        return {name: number for name, number in rows if isinstance(name, str) and isinstance(number, int)}

    def words(self, table: str, known: dict[str, tuple[int, str]]) -> dict[int, str]:
        """Number → our word: by the export's own list of kinds, or by the usual numbers where it has none."""
        own = self.enumeration(table)
        if own:
            return {number: known[name][1] for name, number in own.items() if name in known}
        return dict(known.values())

    @cached_property
    def range_types(self) -> str:
        """SQL for the numbers of those NVTX events that are ranges."""
        own = self.enumeration("ENUM_NSYS_EVENT_TYPE")
        return ", ".join(map(str, sorted({own.get(name, number) for name, number in RANGE_TYPES.items()})))

    @property
    def launches(self) -> str:
        """SQL that defines the table ``launches``."""
        return LAUNCHES.format(calls=self.calls) if self.has(CALLS) else NO_LAUNCHES

    @cached_property
    def backtraced(self) -> str:
        """SQL for the rows of CALLS that are no calls: nsys writes one more around each call whose backtrace it took.

        Such a row has the call's thread and correlation id, the backtrace, and times that enclose the call's.
        """
        number = self.enumeration("ENUM_NSYS_EVENT_CLASS").get(*BACKTRACE)
        return f"eventClass IS {number}" if "eventClass" in self.columns(CALLS) else "false"

    @cached_property
    def domains(self) -> list[tuple]:
        """NVTX's domains, as the events that create them tell: process, number, name; looked for among all once."""
        return self.named_events(str(DOMAIN_CREATED))

    def named_events(self, kinds: str) -> list[tuple]:
        """The different NVTX events of these kinds (SQL): process, domain, name; none if no domain is told."""
        if not {"domainId", "eventType", "globalTid"} <= self.columns(RANGES):
            return []
        text, number = (self.column(RANGES, name) for name in ("text", "textId"))
        return self.rows(
            f"SELECT DISTINCT event.globalTid >> 24, event.domainId, coalesce({text}, registered.value) "
            f"FROM {RANGES} AS event LEFT JOIN StringIds AS registered ON registered.id = {number} "
            f"WHERE event.eventType IN ({kinds})"
        )

    @property
    def calls(self) -> str:
        """SQL for the rows of CALLS that are calls."""
        return f"NOT ({self.backtraced})"

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last moment of each table that holds events (ns, the export's own clock).

        ReportError where what they hold cannot be read: a column missing, a value of another type, times far apart, a
        copy of a size that no memory has.
        """
        found = {table: span for table in (RANGES, CALLS, *WORK, OS_CALLS) if (span := self.span(table))}
        if found and max(last for _, last in found.values()) - min(first for first, _ in found.values()) > EXACT:
            raise self.damaged("a table", "a time that lies months away from the others")
        return found

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The first and the last moment of the capture (ns, the export's own clock); ReportError where it is empty."""
        if not self.spans:
            raise ReportError(f"{self.path.name} holds no events: was the capture range ever entered?")
        last = {table: last for table, (_, last) in self.spans.items()}
        last_call = last.pop(OS_CALLS, None)
        end = max(last.values(), default=last_call)
        if last_call is not None and last_call > end:
            end = max(end, self._last_os_call(end))
        return min(first for first, _ in self.spans.values()), end

    def _last_os_call(self, after: int) -> int:
        """When the last call into the operating system ended that the program itself made, or a helper's last began.

        Of those that end after a time (ns), which is the answer where there are none.

        The thread of a helper, which neither calls CUDA nor opens ranges, may sleep on long after the capture (in
        ``poll``, until its time is out); not so the first thread of a process that works, whatever it waits for.
        """
        own = {t for table in (CALLS, RANGES) for (t,) in self._different(table, "globalTid")}
        processes = {t >> 24 for t in own} | {p >> 24 for table in WORK for (p,) in self._different(table, "globalPid")}
        own |= {process << 24 | process & 0xFFFFFF for process in processes}
        query = f'SELECT globalTid, start, max(coalesce("end", start), start) AS until FROM {OS_CALLS} WHERE until > ?'
        ends = [until if thread in own else start for thread, start, until in self.rows(query, (after,))]
        return max(ends, default=after)

    def _different(self, table: str, column: str) -> list[tuple]:
        return self.rows(f"SELECT DISTINCT {column} FROM {table}") if table in self.spans else []

    def span(self, table: str) -> tuple[int, int] | None:
        """First and last moment of one table's events (ns), which are checked; None where it holds none."""
        columns = self.columns(table)
        if not columns:
            return None
        self.need(table, *WHOLE[table], *PERHAPS[table])
        perhaps = [*PERHAPS[table], *sorted(SOMETIMES & columns)]
        wrong = " OR ".join(
            [f"typeof(\"{name}\") <> 'integer'" for name in WHOLE[table]]
            + [f'typeof("{name}") <> \'integer\' AND "{name}" IS NOT NULL' for name in perhaps]
        )
        too_large = f"max(bytes NOT BETWEEN 0 AND {MOST_BYTES})" if "bytes" in WHOLE[table] else "false"
        until = '"end"' if "end" in columns else "NULL"
        where = TIMED if table in WORK else "true"
        if table == RANGES:
            where = f"eventType IN ({self.range_types}) OR typeof(eventType) <> 'integer'"
        first, start, end, too_large, wrong = self.rows(
            f"SELECT min(start), max(start), max({until}), {too_large}, max(CASE WHEN {wrong} THEN 1 END) "
            f"FROM {table} WHERE {where}"
        )[0]
        if wrong:
            what = f"a value in one of {', '.join((*WHOLE[table], *perhaps))} that is no whole number"
            raise self.damaged(table, what)
        if too_large:
            raise self.damaged(table, "a copy of a size that cannot be")
        return None if first is None else (first, start if end is None else max(start, end))

    def need(self, table: str, *columns: str) -> None:
        """ReportError where the table lacks a column that every known version of it has."""
        missing = [column for column in columns if column not in self.columns(table)]
        if missing:
            raise self._no_answer(f"{table} has no column {' and no '.join(missing)}")

    def damaged(self, table: str, what: str) -> ReportError:
        return ReportError(f"{self.path.name} is damaged: {table} holds {what}. Record or export it again.")

    def _no_answer(self, why: str) -> ReportError:
        return ReportError(f"{self.path.name} does not answer as an Nsight Systems report: {why}.")
