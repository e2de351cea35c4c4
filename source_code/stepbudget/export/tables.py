"""How is an export written? Its tables in SQLite, each made when its first rows come, and many rows at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from stepbudget.export.names import CALLS, COPIES, DIAGNOSTICS, FILLS, KERNELS, MEMORY, META, OVERHEAD, RANGES

_WORK = "start, end, deviceId, streamId, correlationId, globalPid"
COLUMNS = {
    KERNELS: f"{_WORK}, graphNodeId, demangledName",
    COPIES: f"{_WORK}, bytes, copyKind, srcKind, dstKind",
    FILLS: f"{_WORK}, bytes",
    CALLS: "start, end, globalTid, correlationId, nameId",
    RANGES: "start, end, eventType, globalTid, text, textId, jsonText, domainId",
    OVERHEAD: "start, end, globalTid, nameId",
    MEMORY: "start, globalPid, deviceId, address, bytes, memKind, memoryOperationType",
    DIAGNOSTICS: "severity, text",
    "PROCESSES": "globalPid, name",
    "TARGET_INFO_GPU": "id, name, computeMajor, computeMinor",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "META_DATA_CAPTURE": "name, value",
    META: "name, value",
    "StringIds": "id, value",
}


class Tables:
    """The tables of one export; ``flush()`` writes what waits."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._waiting: dict[str, list[tuple]] = {"StringIds": []}
        self._made: set[str] = set()
        self._ids: dict[str, int] = {}

    def row(self, table: str, values: tuple) -> None:
        """Add a row: its values in the order of COLUMNS."""
        self._waiting.setdefault(table, []).append(values)

    def adder(self, table: str) -> Callable[[tuple], None]:
        """What adds a row to this table."""
        return self._waiting.setdefault(table, []).append

    def text(self, value: str) -> int:
        """The number of a text in StringIds."""
        if (found := self._ids.get(value)) is None:
            found = self._ids[value] = len(self._ids) + 1
            self._waiting["StringIds"].append((found, value.encode(errors="replace").decode()))  # no lone surrogates
        return found

    def has(self, *tables: str) -> bool:
        """Were rows written to all of these?"""
        return self._made >= {*tables}

    def rows(self, query: str) -> list[tuple]:
        """The rows of an SQL query about what was written."""
        return self._db.execute(query).fetchall()

    def change(self, query: str, values: tuple, *tables: str) -> None:
        """Run an SQL query with ``{table}`` on each of these that has rows."""
        for table in self._made & {*tables}:
            self._db.execute(query.format(table=table), values)

    def flush(self) -> None:
        """Write all that waits."""
        for table, rows in self._waiting.items():
            if rows:
                self._write(table)

    def _write(self, table: str) -> None:
        columns = ", ".join(f'"{name}"' for name in COLUMNS[table].split(", "))
        if table not in self._made:
            own = columns.replace('"id"', '"id" INTEGER PRIMARY KEY') if table == "StringIds" else columns
            self._db.execute(f'CREATE TABLE "{table}" ({own})')
            self._made.add(table)
        places = ", ".join("?" * (columns.count(",") + 1))
        self._db.executemany(f'INSERT INTO "{table}" ({columns}) VALUES ({places})', self._waiting[table])
        self._waiting[table].clear()
