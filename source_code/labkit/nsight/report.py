"""What does a report hold? One Nsight Systems report as tables: kernels, copies, API calls, NVTX ranges, counters.

A report is opened from ``.nsys-rep`` (exported to SQLite by nsys, once, beside it), from ``.sqlite``, or from the slim
``.sqlite.xz`` that the course ships. It is only ever read. Times are nanoseconds on the report's own clock, which need
not start near 0. A table that the report does not hold (nothing was recorded, or not asked for) comes back empty.

Sources: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"; and the exports themselves.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from labkit.errors import LabError

SQLITE_MAGIC = b"SQLite format 3\x00"
XZ_MAGIC = b"\xfd7zXZ\x00"

# One GPU activity: when it ran on the GPU, and when the API call that launched it ran on the CPU.
# Correlation ids repeat from process to process, so the process has to match too; a launch can lie outside the capture.
_ACTIVITY = """
SELECT
    work.start, work.end,
    work.deviceId AS device, work.streamId AS stream, work.globalPid >> 24 AS process,
    {columns},
    api.start AS api_start, api.end AS api_end, api.globalTid AS api_thread
FROM {table} AS work
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS api
    ON api.correlationId = work.correlationId AND api.globalTid >> 24 = work.globalPid >> 24
{joins}
ORDER BY work.start, work.end
"""

_KERNELS = _ACTIVITY.format(
    table="CUPTI_ACTIVITY_KIND_KERNEL",
    columns="long.value AS name, short.value AS short_name",
    joins="""LEFT JOIN StringIds AS long ON long.id = work.demangledName
LEFT JOIN StringIds AS short ON short.id = work.shortName""",
)
_COPIES = _ACTIVITY.format(
    table="CUPTI_ACTIVITY_KIND_MEMCPY",
    columns="work.bytes, work.copyKind AS copy_kind, work.srcKind AS source_kind, work.dstKind AS target_kind",
    joins="",
)
_MEMSETS = _ACTIVITY.format(table="CUPTI_ACTIVITY_KIND_MEMSET", columns="work.bytes", joins="")

# CUDA API calls carry a version suffix (cudaLaunchKernel_v7000): strip it where it is there.
_API = """
SELECT call.start, call.end, call.globalTid AS thread, call.globalTid >> 24 AS process, name.value AS name
FROM CUPTI_ACTIVITY_KIND_RUNTIME AS call LEFT JOIN StringIds AS name ON name.id = call.nameId
ORDER BY call.start, call.end
"""

# Push/pop ranges are event type 59, start/end ranges 60. The name stands in the row or, registered, in StringIds.
# A range that was still open when the capture stopped has no end.
_RANGES = """
SELECT
    event.start, event.end, event.globalTid AS thread, event.globalTid >> 24 AS process,
    coalesce(event.text, name.value) AS name
FROM NVTX_EVENTS AS event LEFT JOIN StringIds AS name ON name.id = event.textId
WHERE event.eventType IN (59, 60)
ORDER BY event.start, event.end DESC
"""

# The lowest byte of a counter's type id is the GPU's number.
_COUNTERS = """
SELECT sample.timestamp AS time, info.metricName AS counter, sample.value, sample.typeId & 255 AS device
FROM GPU_METRICS AS sample
JOIN TARGET_INFO_GPU_METRICS AS info ON info.typeId = sample.typeId AND info.metricId = sample.metricId
WHERE info.metricName LIKE ?
ORDER BY sample.timestamp
"""


@dataclass(frozen=True)
class Window:
    """A stretch of the report's clock, in nanoseconds, and what it is called."""

    start: int
    end: int
    name: str
    thread: int | None = field(default=None, compare=False)  # of the NVTX range that it is, if it is one

    @property
    def duration_ms(self) -> float:
        return (self.end - self.start) / 1e6


class Report:
    """An open report. Tables are read when first asked for, and kept; ``close()`` or ``with`` lets go of the file."""

    def __init__(self, path: str | Path) -> None:
        """Open ``path``; LabError, in one sentence, where it is missing, damaged or no Nsight Systems export."""
        self.path = Path(path)
        self._scratch: tempfile.TemporaryDirectory | None = None
        self._db = self._connect(self._sqlite_file())

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        if self._scratch:
            self._scratch.cleanup()

    def __repr__(self) -> str:
        return f"Report({self.path.name})"

    @property
    def name(self) -> str:
        """What the report is called, without its folder and endings."""
        return self.path.name.split(".")[0]

    def sql(self, query: str, parameters: tuple = ()) -> pd.DataFrame:
        """The rows of an SQL query; LabError if the report does not answer it."""
        try:
            return pd.read_sql_query(query, self._db, params=parameters)
        except (sqlite3.Error, pd.errors.DatabaseError) as error:
            raise LabError(f"{self.path.name} does not answer as an Nsight Systems report: {error}") from error

    def has(self, *tables: str) -> bool:
        """Does the report hold these tables?"""
        return all(table in self._tables for table in tables)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """Kernels: start, end, device, stream, process, name, short_name, api_start, api_end, api_thread."""
        return self._activity("CUPTI_ACTIVITY_KIND_KERNEL", _KERNELS, ["name", "short_name"])

    @cached_property
    def copies(self) -> pd.DataFrame:
        """Copies: as kernels, with bytes, copy_kind, source_kind, target_kind (CUPTI's numbers)."""
        columns = ["bytes", "copy_kind", "source_kind", "target_kind"]
        return self._activity("CUPTI_ACTIVITY_KIND_MEMCPY", _COPIES, columns)

    @cached_property
    def memsets(self) -> pd.DataFrame:
        """Memory fills: as kernels, with bytes."""
        return self._activity("CUPTI_ACTIVITY_KIND_MEMSET", _MEMSETS, ["bytes"])

    @cached_property
    def api(self) -> pd.DataFrame:
        """CUDA API calls: start, end, thread, process, name (without its version suffix)."""
        columns = ["start", "end", "thread", "process", "name"]
        calls = self._rows(_API, ["CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"], columns)
        calls["name"] = calls["name"].astype("string").str.replace(r"_v\d+$", "", regex=True)
        return calls

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """NVTX ranges: start, end, thread, process, name. What PyTorch's emit_nvtx adds to a name is stripped."""
        columns = ["start", "end", "thread", "process", "name"]
        ranges = self._rows(_RANGES, ["NVTX_EVENTS", "StringIds"], columns)
        ranges["end"] = ranges["end"].fillna(self.extent.end).astype("int64")
        ranges["name"] = ranges["name"].astype("string").str.replace(r", (seq|op_id) = .*$", "", regex=True)
        return ranges

    def counter(self, name: str) -> pd.DataFrame:
        """Samples of one GPU counter, such as ``"Tensor Active"``: time, counter, value, device."""
        columns = ["time", "counter", "value", "device"]
        tables = ["GPU_METRICS", "TARGET_INFO_GPU_METRICS"]
        if not self.has(*tables):
            return pd.DataFrame(columns=columns)
        return self.sql(_COUNTERS, (f"{name}%",))

    @cached_property
    def extent(self) -> Window:
        """From the first to the last event of the capture."""
        spans = []
        for table, column in (
            ("NVTX_EVENTS", "end"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "end"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "end"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "end"),
            ("OSRT_API", "end"),
        ):
            if self.has(table):
                where = "WHERE eventType IN (59, 60)" if table == "NVTX_EVENTS" else ""
                row = self.sql(
                    f'SELECT min(start) AS first, max(coalesce("{column}", start)) AS last FROM {table} {where}'
                )
                if row["first"].notna().all():
                    spans.append((int(row["first"][0]), int(row["last"][0])))
        if not spans:
            raise LabError(f"{self.path.name} holds no events: was the capture range ever entered?")
        return Window(min(first for first, _ in spans), max(last for _, last in spans), "whole capture")

    def window(self, name: str | None = None) -> Window:
        """The first NVTX range called ``name``; without a name, the range ``training``, else the whole capture."""
        found = self.ranges[self.ranges["name"] == (name or "training")]
        if len(found):
            first = found.iloc[0]
            return Window(int(first["start"]), int(first["end"]), str(first["name"]), int(first["thread"]))
        if name is None:
            return self.extent
        known = ", ".join(sorted(self.ranges["name"].dropna().unique())) or "none"
        raise LabError(f"{self.path.name} holds no NVTX range called '{name}'. Its ranges: {known}.")

    @cached_property
    def gpu(self) -> str | None:
        """The first GPU's name, or None where the report names none."""
        names = self._rows("SELECT name FROM TARGET_INFO_GPU ORDER BY id", ["TARGET_INFO_GPU"], ["name"])["name"]
        return str(names.iloc[0]) if len(names) else None

    def sampled_gpu(self) -> int | None:
        """Number, among the sampled GPUs, of the lowest CUDA device that ran kernels; None if the report does not say.

        CUDA numbers the devices that a process may see, the sampler numbers all that the machine has.
        """
        query = "SELECT cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE"
        devices = self._rows(query, ["TARGET_INFO_CUDA_DEVICE"], ["cudaId", "gpuId"])
        found = set(devices.loc[devices["cudaId"] == self.kernels["device"].min(), "gpuId"])
        return int(found.pop()) if len(found) == 1 else None

    @cached_property
    def nsys_version(self) -> str | None:
        """The version of Nsight Systems that exported the report, or None where it does not say."""
        query = "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_PRODUCT_VERSION'"
        values = self._rows(query, ["META_DATA_EXPORT"], ["value"])["value"]
        return str(values.iloc[0]) if len(values) else None

    @cached_property
    def _tables(self) -> set[str]:
        return set(self.sql("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")["name"])

    def _activity(self, table: str, query: str, columns: list[str]) -> pd.DataFrame:
        """Rows of a GPU activity table; without API calls in the report, the same rows with the API columns empty."""
        common = ["start", "end", "device", "stream", "process"]
        api = ["api_start", "api_end", "api_thread"]
        if self.has(table) and not self.has("CUPTI_ACTIVITY_KIND_RUNTIME"):
            no_calls = "(SELECT NULL AS start, NULL AS end, NULL AS globalTid, NULL AS correlationId)"
            query = query.replace("CUPTI_ACTIVITY_KIND_RUNTIME", no_calls)
        return self._rows(query, [table, "StringIds"], [*common, *columns, *api])

    def _rows(self, query: str, tables: list[str], columns: list[str]) -> pd.DataFrame:
        return self.sql(query) if self.has(*tables) else pd.DataFrame(columns=columns)

    def _sqlite_file(self) -> Path:
        """The SQLite file to read, unpacked or exported first where need be."""
        if not self.path.is_file():
            raise LabError(f"there is no report {self.path}.")
        if self.path.suffix == ".nsys-rep":
            from labkit.nsight.command import export  # only a live machine comes here

            return export(self.path)
        with self.path.open("rb") as stream:
            head = stream.read(len(SQLITE_MAGIC))
        if head.startswith(XZ_MAGIC):
            return self._unpacked()
        if head != SQLITE_MAGIC:
            what = "is empty" if not head else "is not an Nsight Systems report (.nsys-rep, .sqlite or .sqlite.xz)"
            raise LabError(f"{self.path} {what}.")
        return self.path

    def _unpacked(self) -> Path:
        self._scratch = tempfile.TemporaryDirectory(prefix="labkit-report-")
        target = Path(self._scratch.name) / self.path.stem
        try:
            with lzma.open(self.path) as packed, target.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        except (lzma.LZMAError, EOFError) as error:
            self._scratch.cleanup()
            raise LabError(f"{self.path} is damaged: {error}. Fetch it again.") from error
        return target

    def _connect(self, file: Path) -> sqlite3.Connection:
        """A read-only connection: nothing that is asked of a report can change it."""
        try:
            db = sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro&immutable=1", uri=True)
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise LabError(f"{self.path} is damaged: {error}.") from error
        if "StringIds" not in tables:
            db.close()
            raise LabError(f"{self.path} is an SQLite file, but not an export of Nsight Systems (no table StringIds).")
        return db


def open_report(path: str | Path) -> Report:
    """Open a report: ``.nsys-rep``, ``.sqlite`` or the course's slim ``.sqlite.xz``."""
    return Report(path)
