"""A Nsight Systems export made by hand: what the tests of the report readers and the figures read.

    report = SyntheticReport(tmp_path / "tiny.sqlite")
    report.range(0, 100, "training").range(10, 40, "forward")
    report.kernel(20, 30, "sgemm", call=(12, 14)).copy(5, 8, 3_200_000)
    path = report.write()

All times are microseconds after an origin that is not 0, as a report's clock need not begin there. As in a real export,
a table in which nothing was recorded does not exist.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

MAIN, AUTOGRAD = 1, 2  # threads
PROCESS = 4711
METRIC_SET = 1 << 48  # a counter's type id; its lowest byte is the GPU's number
COPY_KINDS = {"host to device": 1, "device to host": 2, "device to device": 8}
MEMORY_KINDS = {"pageable": 0, "pinned": 1, "device": 2}


class SyntheticReport:
    """Collects events; each call returns the report itself, ``write()`` returns the path."""

    def __init__(self, path: str | Path, origin_us: float = 5000) -> None:
        self.path = Path(path)
        self.origin_us = origin_us
        self._rows: dict[str, list[dict]] = defaultdict(list)
        self._strings: dict[str, int] = {}
        self._correlation = 0

    def range(
        self, start: float, end: float | None, name: str, thread: int = MAIN, registered: bool = False
    ) -> SyntheticReport:
        """An NVTX range; ``end=None``: still open when the capture stopped; ``registered``: its name in StringIds."""
        text = {"text": None, "textId": self._string(name)} if registered else {"text": name, "textId": None}
        times = {"start": self._ns(start), "end": None if end is None else self._ns(end)}
        return self._add("NVTX_EVENTS", eventType=59, globalTid=_thread(thread), **times, **text)

    def api(self, start: float, end: float, name: str, thread: int = MAIN) -> SyntheticReport:
        """A CUDA API call that puts no work on the GPU."""
        self._call((start, end), name, thread)
        return self

    def kernel(
        self,
        start: float,
        end: float,
        name: str,
        call: tuple[float, float] | None = None,
        thread: int = MAIN,
        device: int = 0,
    ) -> SyntheticReport:
        """A kernel and, if ``call`` gives its times, the call that launched it."""
        names = {"demangledName": self._string(name), "shortName": self._string(name.partition("<")[0])}
        return self._work("KERNEL", start, end, call, "cudaLaunchKernel_v7000", thread, device, **names)

    def copy(
        self,
        start: float,
        end: float,
        size: int,
        direction: str = "host to device",
        memory: str = "pageable",
        call: tuple[float, float] | None = None,
        device: int = 0,
    ) -> SyntheticReport:
        """A copy of ``size`` bytes; ``memory`` is the kind of the host's side."""
        host, gpu = MEMORY_KINDS[memory], MEMORY_KINDS["device"]
        source, target = {"host to device": (host, gpu), "device to host": (gpu, host)}.get(direction, (gpu, gpu))
        kinds = {"copyKind": COPY_KINDS[direction], "srcKind": source, "dstKind": target}
        return self._work("MEMCPY", start, end, call, "cudaMemcpyAsync_v3020", MAIN, device, bytes=size, **kinds)

    def memset(self, start: float, end: float, size: int, device: int = 0) -> SyntheticReport:
        """A memory fill."""
        return self._work("MEMSET", start, end, None, "", MAIN, device, bytes=size)

    def counter(
        self, time: float, value: float, name: str = "Tensor Active [Throughput %]", device: int = 0
    ) -> SyntheticReport:
        """One sample of a GPU counter."""
        about = {"typeId": METRIC_SET | device, "metricId": self._string(name)}
        known = {**about, "metricName": name}
        if known not in self._rows["TARGET_INFO_GPU_METRICS"]:
            self._add("TARGET_INFO_GPU_METRICS", **known)
        return self._add("GPU_METRICS", timestamp=self._ns(time), value=value, **about)

    def gpu(self, name: str, number: int = 0) -> SyntheticReport:
        """The name of a GPU."""
        return self._add("TARGET_INFO_GPU", id=number, name=name)

    def write(self) -> Path:
        """Write the SQLite file and return its path."""
        self.path.unlink(missing_ok=True)
        strings = [{"id": number, "value": value} for value, number in self._strings.items()]
        db = sqlite3.connect(self.path)
        with db:
            db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            for table, rows in {"StringIds": strings, **self._rows}.items():
                columns = ", ".join(dict.fromkeys(column for row in rows for column in row)) or "id"
                marks = ", ".join("?" * (columns.count(",") + 1))
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                db.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({marks})", [tuple(row.values()) for row in rows]
                )
        db.close()
        return self.path

    def _work(
        self,
        kind: str,
        start: float,
        end: float,
        call: tuple[float, float] | None,
        call_name: str,
        thread: int,
        device: int,
        **columns: object,
    ) -> SyntheticReport:
        """An activity of the GPU, tied to its call by a correlation id."""
        self._correlation += 1
        if call:
            self._call(call, call_name, thread, self._correlation)
        place = {"deviceId": device, "streamId": 7, "globalPid": PROCESS << 24, "correlationId": self._correlation}
        times = {"start": self._ns(start), "end": self._ns(end)}
        return self._add(f"CUPTI_ACTIVITY_KIND_{kind}", **times, **place, **columns)

    def _call(self, times: tuple[float, float], name: str, thread: int, correlation: int = 0) -> None:
        start, end = map(self._ns, times)
        ids = {"globalTid": _thread(thread), "correlationId": correlation, "nameId": self._string(name)}
        self._add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **ids)

    def _add(self, table: str, **row: object) -> SyntheticReport:
        self._rows[table].append(row)
        return self

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings) + 1)

    def _ns(self, time_us: float) -> int:
        return round(1000 * (self.origin_us + time_us))


def _thread(number: int) -> int:
    """A thread's number as the export gives it: the process's in the upper bits."""
    return PROCESS << 24 | number
