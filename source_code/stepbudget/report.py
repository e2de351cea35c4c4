"""What does a report hold? One Nsight Systems report as tables: kernels, copies, API calls, NVTX ranges, counters.

A report is opened from ``.nsys-rep`` (exported to SQLite by nsys, once, beside it), from ``.sqlite``, or from a packed
``.sqlite.xz``. It is only ever read. Times are nanoseconds on the report's own clock, which need not start near 0. A table that the report does not hold (nothing was recorded, or not asked for) comes back empty, and
so does a column that its version of Nsight Systems did not write; what could not be read is said in ``notes``.

Sources: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"; and the exports themselves, from 2021 to 2025.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from stepbudget import metrics
from stepbudget.errors import ReportError
from stepbudget.export import files
from stepbudget.export.kinds import EXACT, RANGE_TYPES
from stepbudget.window import Window

# One GPU activity: when it ran on the GPU, and when the API call that launched it ran on the CPU.
# Correlation ids repeat from process to process, so the process has to match too; a launch can lie outside the capture.
# The nodes of a CUDA graph share the one call that launched the graph; what the driver does by itself has the id 0.
_ACTIVITY = """
WITH calls AS (
    SELECT
        correlationId, globalTid >> 24 AS process, globalTid AS thread, min(start) AS start, max("end", start) AS "end"
    FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY correlationId, globalTid >> 24
)
SELECT
    work.start - :origin AS start, work."end" - :origin AS "end",
    {deviceId} AS device, {streamId} AS stream, work.globalPid >> 24 AS process,
    {columns},
    calls.start - :origin AS api_start, calls."end" - :origin AS api_end, calls.thread AS api_thread
FROM {table} AS work
LEFT JOIN calls ON calls.correlationId = work.correlationId AND calls.process = work.globalPid >> 24
    AND work.correlationId <> 0
WHERE work."end" >= work.start
ORDER BY work.start, work."end"
"""
_NO_CALLS = "(SELECT NULL AS start, NULL AS end, NULL AS globalTid, NULL AS correlationId)"

# Host-side calls: the CUDA API, the operating system, the profiler's own overhead.
_CALLS = """
SELECT
    start - :origin AS start, coalesce("end", :last) - :origin AS "end",
    globalTid AS thread, globalTid >> 24 AS process, nameId AS name
FROM {table} ORDER BY start, "end"
"""

# The name of a range stands in the row or, registered, in StringIds. One still open at the end of capture has no end.
_RANGES = """
SELECT
    event.start - :origin AS start, coalesce(event."end", :last) - :origin AS "end",
    event.globalTid AS thread, event.globalTid >> 24 AS process,
    {name} AS raw_name
FROM NVTX_EVENTS AS event LEFT JOIN StringIds AS registered ON registered.id = {textId}
WHERE event.eventType IN ({types})
ORDER BY event.start, event."end" IS NOT NULL, event."end" DESC
"""

# What PyTorch's emit_nvtx adds to a range's name.
EMIT_NVTX = re.compile(r", (seq|op_id|sizes) = .*$", re.DOTALL)
API_VERSION = re.compile(r"(_v\d+)+$")  # cudaLaunchKernel_v7000, cuGraphInstantiate_v2_v12000

# Where events can lie, and the columns of their first and last moment.
_EVENTS = {
    "NVTX_EVENTS": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start", "end"),
    "OSRT_API": ("start", "end"),
}
MOST_GPUS = 2**16
MOST_BYTES = 2**48  # of one copy: all that a CPU of today can address


class Report:
    """An open report. Tables are read when first asked for, and kept; ``close()`` or ``with`` lets go of the file."""

    def __init__(self, path: str | Path) -> None:
        """Open ``path``; ReportError, in one sentence, where it is missing, damaged or no Nsight Systems export."""
        self.path = Path(path)
        self.notes: list[str] = []  # what could not be read, in words
        self._scratch: tempfile.TemporaryDirectory | None = None
        self.sqlite_path, self._scratch = files.sqlite_file(self.path)  # what is read: the path itself, or made from it
        try:
            self._db = files.connect(self.sqlite_path, self.path if self._scratch else self.sqlite_path)
        except ReportError:
            self.close()
            raise

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if self._scratch:
            self._scratch.cleanup()

    def __repr__(self) -> str:
        return f"Report({self.path.name})"

    @property
    def name(self) -> str:
        """What the report is called, without its folder and endings."""
        return self.path.name.split(".")[0]

    def sql(self, query: str, parameters: Sequence | dict = ()) -> pd.DataFrame:
        """The rows of an SQL query; ReportError if the report does not answer it."""
        names, rows = self._fetch(query, parameters)
        return pd.DataFrame.from_records(rows, columns=names)

    def rows(self, query: str, parameters: Sequence | dict = ()) -> list[tuple]:
        """The same as plain tuples, with the types that SQLite holds."""
        return self._fetch(query, parameters)[1]

    def has(self, *tables: str) -> bool:
        """Does the report hold these tables?"""
        return all(table in self._columns for table in tables)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """Kernels, in order of their start.

        Columns: ``start``, ``end`` (ns), ``device``, ``stream``, ``process``, ``name`` (demangled), ``short_name``,
        ``graph_node`` (NaN outside CUDA graphs), ``api_start``, ``api_end``, ``api_thread`` of the call that launched
        it (NaN where the capture holds none), ``gpu`` (number of the card).
        """
        long = [name for name in ("demangledName", "mangledName", "shortName") if self.has_column(KERNELS, name)]
        short = [name for name in ("shortName", "demangledName", "mangledName") if self.has_column(KERNELS, name)]
        columns = {"name": _first(long), "short_name": _first(short), "graph_node": "graphNodeId"}
        found = self._activity(KERNELS, columns)
        for column in ("name", "short_name"):
            found[column] = self._text(found[column]).fillna("(unnamed kernel)")
        return found

    @cached_property
    def copies(self) -> pd.DataFrame:
        """Copies: as kernels, with bytes, copy_kind, source_kind, target_kind (the report's numbers)."""
        columns = {"bytes": "bytes", "copy_kind": "copyKind", "source_kind": "srcKind", "target_kind": "dstKind"}
        found = self._activity("CUPTI_ACTIVITY_KIND_MEMCPY", columns)
        if not found["bytes"].between(0, MOST_BYTES).all():
            raise self._damaged("CUPTI_ACTIVITY_KIND_MEMCPY", "a copy of a size that cannot be")
        return found

    @cached_property
    def memsets(self) -> pd.DataFrame:
        """Memory fills: as kernels, with ``bytes``."""
        return self._activity("CUPTI_ACTIVITY_KIND_MEMSET", {"bytes": "bytes"})

    @cached_property
    def graphs(self) -> pd.DataFrame:
        """CUDA graphs that were traced as a whole, one row a launch; their kernels are in no table.

        ``nsys profile --cuda-graph-trace=node`` records the kernels instead.
        """
        return self._activity("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {"graph": "graphId"})

    @cached_property
    def api(self) -> pd.DataFrame:
        """CUDA API calls: start, end, thread, process, name (without its version suffix)."""
        calls = self._calls("CUPTI_ACTIVITY_KIND_RUNTIME")
        calls["name"] = _each(calls["name"], lambda name: API_VERSION.sub("", name))
        return calls

    @cached_property
    def os_calls(self) -> pd.DataFrame:
        """Calls into the operating system that may block (``--trace osrt``): start, end, thread, process, name."""
        return self._calls("OSRT_API")

    @cached_property
    def overhead(self) -> pd.DataFrame:
        """What the profiler itself cost: start, end, thread, process, name."""
        return self._calls("PROFILER_OVERHEAD")

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """NVTX ranges: start, end, thread, process, name, raw_name.

        ``name`` is without what PyTorch's emit_nvtx adds (``, seq = …, sizes = …``), ``raw_name`` is with it.
        """
        columns = ["start", "end", "thread", "process", "raw_name"]
        types = self._enumeration("ENUM_NSYS_EVENT_TYPE")
        known = {types.get(name, number) for name, number in RANGE_TYPES.items()}
        if not self.has("NVTX_EVENTS"):
            ranges = pd.DataFrame(columns=columns)
        else:
            self._need("NVTX_EVENTS", "start", "end", "eventType", "globalTid")
            if self._fetch("SELECT 1 FROM NVTX_EVENTS WHERE typeof(eventType) <> 'integer' LIMIT 1")[1]:
                raise self._damaged("NVTX_EVENTS", "an event of no known type")
            inline = "event.text" if self.has_column("NVTX_EVENTS", "text") else "NULL"
            text_id = "event.textId" if self.has_column("NVTX_EVENTS", "textId") else "NULL"
            query = _RANGES.format(
                name=f"coalesce({inline}, registered.value)", textId=text_id, types=", ".join(map(str, sorted(known)))
            )
            ranges = self._table(query, "NVTX_EVENTS", columns, text=["raw_name"], whole=columns[:4])
        ranges["raw_name"] = ranges["raw_name"].astype(object).where(ranges["raw_name"].notna(), "(unnamed range)")
        ranges["name"] = _each(ranges["raw_name"], lambda name: EMIT_NVTX.sub("", name))
        return ranges

    def counter(self, name: str, window: Window | None = None) -> pd.DataFrame:
        """Samples of a GPU counter, such as ``"Tensor Active"``, in a window or all: time (ns), counter, value, device.

        The device is the sampler's number of the GPU: its lowest byte is all that the export tells.
        """
        key = (name, None if window is None else (window.start, window.end))
        if key not in self._counters:
            edges = (window.start, window.end) if window else (-EXACT, EXACT)
            found = metrics.samples(self, name, *(edge + self.origin for edge in edges))
            found["time"] = found["time"].astype("int64") - self.origin
            self._counters[key] = found
        return self._counters[key]

    @cached_property
    def sampled(self) -> list[str]:
        """Names of the GPU counters that were sampled; empty where none were."""
        return metrics.names(self)

    @cached_property
    def origin(self) -> int:
        """What is taken off every time read (ns): 0, unless the clock is too far from 0 for exact arithmetic."""
        first, last = (
            (min(first for first, _ in self._spans), max(last for _, last in self._spans)) if self._spans else (0, 0)
        )
        return first if max(abs(first), abs(last)) > EXACT else 0

    @cached_property
    def extent(self) -> Window:
        """From the first to the last event of the capture."""
        if not self._spans:
            raise ReportError(f"{self.path.name} holds no events: was the capture range ever entered?")
        first, last = min(first for first, _ in self._spans), max(last for _, last in self._spans)
        return Window(first - self.origin, last - self.origin, "whole capture")

    def windows(self, name: str) -> list[Window]:
        """Every NVTX range called ``name``, in order of their starts, in whatever process and thread."""
        found = self.ranges[self.ranges["name"] == name]
        return [
            Window(int(start), int(end), name, int(thread))
            for start, end, thread in zip(found["start"], found["end"], found["thread"], strict=True)
        ]

    def window(self, name: str | None = None, occurrence: int = 1) -> Window:
        """The NVTX range called ``name``, the first unless ``occurrence`` says otherwise (1 is the first).

        Without a name: the range ``training``, else the whole capture. ReportError where there is no such range.
        """
        found = self.windows(name or "training")
        if len(found) >= occurrence > 0:
            return found[occurrence - 1]
        if name is None and not found and occurrence == 1:
            return self.extent
        name = name or "training"
        if found:
            times = "once" if len(found) == 1 else f"{len(found)} times"
            raise ReportError(
                f"{self.path.name} holds the NVTX range '{name}' {times}: there is no number {occurrence}."
            )
        known = [_cut(name) for name in sorted(self.ranges["name"].unique())]
        listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
        raise ReportError(f"{self.path.name} holds no NVTX range called '{name}'. Its ranges: {listed or 'none'}.")

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """The machine's GPUs: gpu (number), name, major, minor (compute capability; NaN where it is not told)."""
        columns = ["gpu", "name", "major", "minor"]
        for table, number in (
            ("TARGET_INFO_GPU", "id"),
            ("TARGET_INFO_GPU", "deviceId"),
            ("TARGET_INFO_CUDA_GPU", "deviceId"),
        ):
            if self._has_columns(table, number, "name"):
                break
        else:
            return pd.DataFrame(columns=columns)
        own = [number, "name", *(self._column(table, name) for name in ("computeMajor", "computeMinor"))]
        _, rows = self._fetch(f"SELECT DISTINCT {', '.join(own)} FROM {table} ORDER BY {number}")
        found = pd.DataFrame(rows, columns=columns)
        found["name"] = [name if isinstance(name, str) and name else None for name in found["name"]]
        for column in ("gpu", "major", "minor"):
            found[column] = pd.to_numeric(found[column], errors="coerce")
        return found

    @cached_property
    def gpu(self) -> str | None:
        """The name of the lowest-numbered GPU that ran kernels, else of the first; None if the report tells none."""
        names = self.gpus
        if len(names) > 1 and len(self.kernels):
            used = names[names["gpu"] == self.kernels["gpu"].min()]
            names = used if len(used) else names
        return str(names["name"].iloc[0]) if len(names) and names["name"].iloc[0] else None

    def sampled_gpu(self) -> int | None:
        """Number, among the sampled GPUs, of the lowest CUDA device that ran kernels; None if the report does not say.

        CUDA numbers the devices that a process may see, the sampler numbers all that the machine has.
        """
        if self._device_map.empty or self.kernels.empty:
            return None
        found = {
            int(gpu) for gpu in self.kernels.loc[self.kernels["device"] == self.kernels["device"].min(), "gpu"].unique()
        }
        return found.pop() if len(found) == 1 else None

    @cached_property
    def nsys_version(self) -> str | None:
        """The version of Nsight Systems that exported the report, or None where it does not say."""
        return self._meta("EXPORT_PRODUCT_VERSION")

    @cached_property
    def schema_version(self) -> str | None:
        """The version of the export's schema, such as ``3.20.3``, or None where it does not say."""
        return self._meta("EXPORT_SCHEMA_VERSION")

    def kind_names(self, enumeration: str) -> dict[int, str]:
        """An enumeration of the export (table ``ENUM_…``), number → NVIDIA's name; empty where there is none."""
        return {number: name for name, number in self._enumeration(enumeration).items()}

    # --- reading ------------------------------------------------------------------------------------------------

    @cached_property
    def _counters(self) -> dict[tuple, pd.DataFrame]:
        return {}

    @cached_property
    def _columns(self) -> dict[str, set[str]]:
        """Every table or view of the export, with the names of its columns."""
        _, tables = self._fetch("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        quoted = {name: name.replace('"', '""') for (name,) in tables}
        return {
            name: {row[1] for row in self._fetch(f'PRAGMA table_info("{text}")')[1]} for name, text in quoted.items()
        }

    def has_column(self, table: str, column: str) -> bool:
        """Does the report hold this column?"""
        return column in self._columns.get(table, ())

    def _has_columns(self, table: str, *columns: str) -> bool:
        return all(self.has_column(table, column) for column in columns)

    def _need(self, table: str, *columns: str) -> None:
        """ReportError where the table lacks a column that every known version of it has."""
        missing = [column for column in columns if not self.has_column(table, column)]
        if missing:
            what = f"{table} has no column {' and no '.join(missing)}"
            raise ReportError(f"{self.path.name} does not answer as an Nsight Systems report: {what}.")

    def _column(self, table: str, column: str) -> str:
        """The column, or NULL where this version of the table has none of that name."""
        return column if self.has_column(table, column) else "NULL"

    @cached_property
    def _strings(self) -> pd.Series:
        """StringIds: id → text."""
        _, rows = self._fetch("SELECT id, value FROM StringIds")
        return pd.Series([value for _, value in rows], index=[number for number, _ in rows], dtype=object)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """First and last moment of each table that holds events, on the export's own clock."""
        spans = []
        for table, (start, end) in _EVENTS.items():
            if not self._has_columns(table, start, end):
                continue
            only = "WHERE eventType IN (59, 60)" if self.has_column(table, "eventType") else ""
            work = f'WHERE "{end}" >= "{start}"' if table.startswith("CUPTI") and "RUNTIME" not in table else only
            query = f'SELECT min("{start}"), max(coalesce("{end}", "{start}")) FROM {table} {work}'
            first, last = self._fetch(query)[1][0]
            if first is None:
                continue
            if not (isinstance(first, int) and isinstance(last, int)):
                raise self._damaged(table, "a time that is no whole number")
            spans.append((first, last))
        if spans and max(last for _, last in spans) - min(first for first, _ in spans) > EXACT:
            raise self._damaged("a table", "a time that lies months away from the others")
        return spans

    @cached_property
    def _device_map(self) -> pd.DataFrame:
        """Which GPU is which process's CUDA device? Columns gpu, device, pid (NaN where the export does not tell).

        Exports from 2025 on say it for each process; before, for the machine as a whole.
        """
        sources = (("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"), ("TARGET_INFO_GPU", "id", "cuDevice"))
        for table, gpu, device in sources:
            if self._has_columns(table, gpu, device):
                pid = self._column(table, "pid")
                found = self.sql(f"SELECT {gpu} AS gpu, {device} AS device, {pid} AS pid FROM {table}")
                found = found.apply(pd.to_numeric, errors="coerce")
                found = found[found["gpu"].between(0, MOST_GPUS) & found["device"].between(0, MOST_GPUS)]
                if len(found):
                    return found
        return pd.DataFrame(columns=["gpu", "device", "pid"])

    def _activity(self, table: str, columns: dict[str, str]) -> pd.DataFrame:
        """Rows of a GPU activity table, each with its launch call where the report holds it."""
        common, api = ["start", "end", "device", "stream", "process"], ["api_start", "api_end", "api_thread"]
        names = [*common, *columns, *api]
        if not self.has(table):
            return pd.DataFrame(columns=[*names, "gpu"])
        self._need(table, "start", "end", "correlationId", "globalPid")
        listed = ", ".join(f"{_expression(self, table, source)} AS {name}" for name, source in columns.items())
        device, stream = (f"coalesce({self._column(table, name)}, 0)" for name in ("deviceId", "streamId"))
        query = _ACTIVITY.format(table=table, columns=listed, deviceId=device, streamId=stream)
        if not self._has_columns("CUPTI_ACTIVITY_KIND_RUNTIME", "start", "end", "globalTid", "correlationId"):
            query = query.replace("CUPTI_ACTIVITY_KIND_RUNTIME", _NO_CALLS)
        found = self._table(query, table, names, whole=common, numbers=[*columns, *api])
        (rows,) = self._fetch(f"SELECT count(*) FROM {table}")[1][0]
        if rows > len(found):
            self._note(f"{rows - len(found)} rows of {table} end before they begin, or never; they were left out")
        twice = found.duplicated(["start", "end", "device", "stream", "process"]) & (found["end"] > found["start"])
        if twice.any():
            self._note(
                f"{twice.sum()} rows of {table} repeat another's stream and times to the nanosecond: sums may be high"
            )
        found["gpu"] = self._gpu_numbers(found)
        return found

    def _gpu_numbers(self, work: pd.DataFrame) -> pd.Series:
        """The card of each row: where the export maps a process's devices to cards by that, else CUDA's number."""
        gpu, mapped = work["device"].copy(), self._device_map
        for process in work["process"].unique() if len(mapped) else ():
            pid = int(process) & 0xFFFFFF
            own = mapped[mapped["pid"] == pid]
            own = own if len(own) else mapped[mapped["pid"].isna()]
            known = own.drop_duplicates("device").set_index("device")["gpu"]
            rows = work["process"] == process
            gpu[rows] = work.loc[rows, "device"].map(known).fillna(work.loc[rows, "device"]).astype("int64")
        return gpu

    def _calls(self, table: str) -> pd.DataFrame:
        columns = ["start", "end", "thread", "process", "name"]
        if not self.has(table):
            return pd.DataFrame(columns=columns)
        self._need(table, "start", "end", "globalTid", "nameId")
        found = self._table(_CALLS.format(table=table), table, columns, whole=columns[:4], numbers=["name"])
        found["name"] = self._text(found["name"]).fillna("(unnamed call)")
        return found

    def _table(
        self,
        query: str,
        table: str,
        columns: Sequence[str],
        whole: Sequence[str] = (),
        numbers: Sequence[str] = (),
        text: Sequence[str] = (),
    ) -> pd.DataFrame:
        """The rows of a query, with the types that its columns must have; ReportError where a value has another type.

        ``whole``: integers, never missing. ``numbers``: integers, perhaps missing. ``text``: text, perhaps missing.
        """
        last = max((last for _, last in self._spans), default=0)
        _, rows = self._fetch(query, {"origin": self.origin, "last": last})
        data = {name: values for name, values in zip(columns, zip(*rows, strict=True), strict=True)} if rows else {}
        frame = pd.DataFrame({name: _series(data.get(name, ())) for name in columns})
        self._whole(frame, table, whole)
        for column in numbers:
            if frame[column].dtype == object and frame[column].notna().any():
                raise self._damaged(table, f"a value in the column of '{column}' that is no number")
            frame[column] = frame[column].astype("float64") if frame[column].dtype == object else frame[column]
        for column in text:
            if not all(isinstance(value, str) for value in frame[column].dropna().unique()):
                raise self._damaged(table, f"a value in the column of '{column}' that is no text")
        if {"start", "end"} <= {*columns}:
            self._sane_times(frame, table)
        return frame

    def _sane_times(self, frame: pd.DataFrame, table: str) -> None:
        """Times that later sums hold exactly; rows that end before they begin are made instants, and that is said."""
        if not ((frame[["start", "end"]] >= -EXACT) & (frame[["start", "end"]] <= EXACT)).all(axis=None):
            raise self._damaged(table, "a time that lies months away from the others")
        if (frame["end"] < frame["start"]).any():
            self._note(f"some rows of {table} end before they begin; they count as instants")
            frame["end"] = frame[["start", "end"]].max(axis=1)
        if float((frame["end"] - frame["start"]).to_numpy().sum(dtype=np.float64)) > 2**62:
            raise self._damaged(table, "times that no sum can hold")

    def _whole(self, frame: pd.DataFrame, table: str, columns: Sequence[str]) -> None:
        """Make the columns int64; ReportError where one holds anything but whole numbers."""
        for column in columns:
            if len(frame) and frame[column].dtype != np.int64:
                raise self._damaged(table, f"a value in the column of '{column}' that is no whole number")
            frame[column] = frame[column].astype("int64")

    def _text(self, ids: pd.Series) -> pd.Series:
        """The texts of string ids; missing where there is no such string."""
        found = ids.map(self._strings[~self._strings.index.duplicated()])
        return found.astype(object).where(found.map(lambda value: isinstance(value, str)), None)

    def _enumeration(self, table: str) -> dict[str, int]:
        """An enumeration's names → numbers."""
        if not self._has_columns(table, "id", "name"):
            return {}
        rows = self._fetch(f"SELECT name, id FROM {table}")[1]
        return {name: number for name, number in rows if isinstance(name, str) and isinstance(number, int)}

    def _meta(self, name: str) -> str | None:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):  # the second until 2023
            if self._has_columns(table, "name", "value"):
                rows = self._fetch(f"SELECT value FROM {table} WHERE name = ?", (name,))[1]
                if rows and rows[0][0]:
                    return str(rows[0][0])
        return None

    def _fetch(self, query: str, parameters: Sequence | dict = ()) -> tuple[list[str], list[tuple]]:
        """Column names and rows; ReportError where SQLite, or the shape of the file, says no."""
        try:
            cursor = self._db.execute(query, parameters)
            return [column[0] for column in cursor.description], cursor.fetchall()
        except UnicodeDecodeError as error:  # of SQLite's own complaint, which quotes what is damaged
            raise self._damaged("its list of tables", "what is no text") from error
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            said = str(error) or type(error).__name__
            raise ReportError(f"{self.path.name} does not answer as an Nsight Systems report: {said}.") from error

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _damaged(self, table: str, what: str) -> ReportError:
        return ReportError(f"{self.path.name} is damaged: {table} holds {what}. Record or export it again.")


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def open_report(path: str | Path) -> Report:
    """Open a report: ``.nsys-rep``, ``.sqlite`` or a packed ``.sqlite.xz``."""
    return Report(path)


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _first(names: Sequence[str]) -> str:
    """SQL for the first of these columns that is not NULL."""
    return f"coalesce({', '.join(names)}, NULL)" if names else "NULL"


def _expression(report: Report, table: str, source: str) -> str:
    return source if "(" in source or source == "NULL" else report._column(table, source)


def _series(values: Sequence) -> pd.Series:
    """A column as pandas holds it best: int64 where all are whole numbers, float64 with gaps, else objects."""
    if not len(values):
        return pd.Series(dtype=object)
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return pd.Series(np.array(values, dtype=np.int64))
        except OverflowError:
            return pd.Series(values, dtype=object)
    if kinds <= {int, float, type(None)}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype=object)


def _each(column: pd.Series, change) -> pd.Series:
    """The column with ``change`` made to each text, worked out once for each different text."""
    return column.map({text: change(text) for text in column.unique()}).astype(object)
