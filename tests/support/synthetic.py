"""A Nsight Systems export made by hand: what the tests of the report readers and the figures read.

    report = SyntheticReport(tmp_path / "tiny.sqlite")
    report.range(0, 100, "training").range(10, 40, "forward")
    report.kernel(20, 30, "sgemm", call=(12, 14)).copy(5, 8, 3_200_000)
    path = report.write()

All times are microseconds after an origin that is not 0, as a report's clock need not begin there. As in a real export,
a table in which nothing was recorded does not exist.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from stepbudget.report import Report, open_report

MAIN, AUTOGRAD = 1, 2  # threads
PROCESS = 4711
NCCL_DOMAIN = 3
OF_2024 = 6  # domain
PYTHON_DOMAINS = {"Python Backtrace on CUDA": 4, "Python Periodic Sampling": 5, "Python Backtrace": OF_2024}
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
BACKTRACE = 67  # class of a row of CALLS
INTERPRETER = (("0x7f93", "/opt/nvidia/lib/libcupti.so.13.0"), ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"))
METRIC_SET = 1 << 48  # a counter's type id; its lowest byte is the GPU's number
COPY_KINDS = {"host to device": 1, "device to host": 2, "device to device": 8, "unified memory to device": 11}
MEMORY_KINDS = {"pageable": 0, "pinned": 1, "device": 2, "managed": 4, "device static": 5}


class SyntheticReport:
    """Collects events; each call returns the report itself, ``write()`` returns the path."""

    def __init__(self, path: str | Path, origin_us: float = 5000) -> None:
        self.path = Path(path)
        self.origin_us = origin_us
        self._rows: dict[str, list[dict]] = defaultdict(list)
        self._strings: dict[str, int] = {}
        self._correlation = 0

    def range(
        self,
        start: float,
        end: float | None,
        name: str,
        thread: int = MAIN,
        registered: bool = False,
        process: int = PROCESS,
    ) -> SyntheticReport:
        """An NVTX range; ``end=None``: still open when the capture stopped; ``registered``: its name in StringIds."""
        text = {"text": None, "textId": self._string(name)} if registered else {"text": name, "textId": None}
        times = {"start": self._ns(start), "end": None if end is None else self._ns(end)}
        return self._add("NVTX_EVENTS", eventType=59, globalTid=_thread(thread, process), **times, **text)

    def nccl(
        self,
        start: float,
        end: float,
        name: str,
        thread: int = MAIN,
        process: int = PROCESS,
        written: dict[str, int] | None = None,
        as_bytes: bool = False,
    ) -> SyntheticReport:
        """NCCL's own range around a call, and the numbers that it wrote beside it: as JSON, or as bytes by a schema."""
        told = {"jsonText": None, "binaryData": None}
        if written and as_bytes:
            told["binaryData"] = self._payload(written)
        elif written:
            told["jsonText"] = json.dumps(written)
        ids = {"eventType": 59, "globalTid": _thread(thread, process), "domainId": NCCL_DOMAIN}
        names = {"text": None, "textId": self._string(name)}
        domain = {"eventType": 75, "globalTid": _thread(thread, process), "domainId": NCCL_DOMAIN, "text": "NCCL"}
        if not any(row.get("eventType") == 75 for row in self._rows["NVTX_EVENTS"]):
            self._add("NVTX_EVENTS", start=self._ns(start), end=None, **domain)
        return self._add("NVTX_EVENTS", start=self._ns(start), end=self._ns(end), **ids, **names, **told)

    def began(self, utc_ns: int) -> SyntheticReport:
        """The wall clock at 0 of the report's own."""
        return self._add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns)

    def environment(self, **variables: object) -> SyntheticReport:
        """The environment of the profiled command."""
        for name, value in variables.items():
            self._add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=f'{name}="{value}"')
        return self

    def api(self, start: float, end: float, name: str, thread: int = MAIN, process: int = PROCESS) -> SyntheticReport:
        """A CUDA API call that puts no work on the GPU."""
        self._correlation += 1
        self._call((start, end), name, thread, self._correlation, process)
        return self

    def os_call(
        self, start: float, end: float, name: str, thread: int = MAIN, process: int = PROCESS
    ) -> SyntheticReport:
        """A call into the operating system, such as ``poll``."""
        return self._host_call("OSRT_API", start, end, name, thread, process)

    def mpi(
        self, start: float, end: float, name: str, kind: str = "COLLECTIVES", thread: int = MAIN, process: int = PROCESS
    ) -> SyntheticReport:
        """A call of MPI, such as ``MPI_Allreduce``; ``kind``: P2P, COLLECTIVES, START_WAIT, OTHER."""
        times = {"start": self._ns(start), "end": self._ns(end)}
        return self._add(f"MPI_{kind}_EVENTS", **times, globalTid=_thread(thread, process), textId=self._string(name))

    def cpu_sample(self, time: float, *functions: str, module: str = "/usr/lib/libc.so.6") -> SyntheticReport:
        """What the main thread's CPU ran at a time: functions, the innermost first."""
        number = len(self._rows["COMPOSITE_EVENTS"]) + 1
        self._add("COMPOSITE_EVENTS", id=number, start=self._ns(time), cpu=0, globalTid=_thread(MAIN))
        for depth, function in enumerate(functions):
            names = {"symbol": self._string(function), "module": self._string(module)}
            self._add("SAMPLING_CALLCHAINS", id=number, stackDepth=depth, **names)
        return self

    def rows(self, table: str, *rows: dict) -> SyntheticReport:
        """Rows of any table, as they are."""
        for row in rows:
            self._add(table, **row)
        return self

    def diagnostic(self, text: str, severity: int = 2) -> SyntheticReport:
        """What Nsight Systems said while it recorded; 1: information, 2: a warning, 3: an error."""
        return self._add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)

    def scheduled(self, start: float, end: float, thread: int = MAIN, process: int = PROCESS) -> SyntheticReport:
        """A stretch in which a thread had a CPU."""
        for time, is_in in ((start, 1), (end, 0)):
            self._add("SCHED_EVENTS", start=self._ns(time), cpu=0, isSchedIn=is_in, globalTid=_thread(thread, process))
        return self

    def program(self, name: str, process: int = PROCESS) -> SyntheticReport:
        """The name of a process's first thread."""
        return self._add("ThreadNames", nameId=self._string(name), globalTid=_thread(process, process))

    def overhead(
        self, start: float, end: float, name: str, thread: int = MAIN, process: int = PROCESS
    ) -> SyntheticReport:
        """Time that the profiler took for itself."""
        return self._host_call("PROFILER_OVERHEAD", start, end, name, thread, process)

    def kernel(
        self,
        start: float,
        end: float,
        name: str,
        call: tuple[float, float] | None = None,
        thread: int = MAIN,
        device: int = 0,
        stream: int = 7,
        process: int = PROCESS,
    ) -> SyntheticReport:
        """A kernel and, if ``call`` gives its times, the call that launched it."""
        names = {"demangledName": self._string(name), "shortName": self._string(name.partition("<")[0])}
        place = (thread, device, stream, process)
        return self._work("KERNEL", start, end, call, "cudaLaunchKernel_v7000", place, **names)

    def graph(
        self,
        start: float,
        end: float,
        call: tuple[float, float] | None = None,
        thread: int = MAIN,
        device: int = 0,
    ) -> SyntheticReport:
        """A CUDA graph that was traced as a whole."""
        return self._work(
            "GRAPH_TRACE", start, end, call, "cudaGraphLaunch_v10000", (thread, device, 7, PROCESS), graphId=1
        )

    def graph_nodes(self, spans: list[tuple[float, float]], name: str, call: tuple[float, float]) -> SyntheticReport:
        """The kernels of a CUDA graph that was traced by node: all share the one call."""
        names = {"demangledName": self._string(name), "shortName": self._string(name)}
        place = (MAIN, 0, 7, PROCESS)
        for node, (start, end) in enumerate(spans):
            first = call if node == 0 else None
            self._work("KERNEL", start, end, first, "cudaGraphLaunch_v10000", place, graphNodeId=node + 1, **names)
        for row in self._rows["CUPTI_ACTIVITY_KIND_KERNEL"][-len(spans) :]:
            row["correlationId"] = self._correlation - len(spans) + 1
        return self

    def copy(
        self,
        start: float,
        end: float,
        size: int,
        direction: str = "host to device",
        memory: str = "pageable",
        call: tuple[float, float] | None = None,
        device: int = 0,
        stream: int = 7,
        process: int = PROCESS,
    ) -> SyntheticReport:
        """A copy of ``size`` bytes; ``memory`` is the kind of the host's side."""
        host, gpu = MEMORY_KINDS[memory], MEMORY_KINDS["device"]
        source, target = {"host to device": (host, gpu), "device to host": (gpu, host)}.get(direction, (gpu, gpu))
        kinds = {"copyKind": COPY_KINDS[direction], "srcKind": source, "dstKind": target}
        place = (MAIN, device, stream, process)
        return self._work("MEMCPY", start, end, call, "cudaMemcpyAsync_v3020", place, bytes=size, **kinds)

    def memset(self, start: float, end: float, size: int, device: int = 0) -> SyntheticReport:
        """A memory fill."""
        return self._work("MEMSET", start, end, None, "", (MAIN, device, 7, PROCESS), bytes=size)

    def counter(
        self, time: float, value: float, name: str = "Tensor Active [Throughput %]", device: int = 0
    ) -> SyntheticReport:
        """One sample of a GPU counter."""
        about = {"typeId": METRIC_SET | device, "metricId": self._string(name)}
        known = {**about, "metricName": name}
        if known not in self._rows["TARGET_INFO_GPU_METRICS"]:
            self._add("TARGET_INFO_GPU_METRICS", **known)
        return self._add("GPU_METRICS", timestamp=self._ns(time), value=value, **about)

    def gpu(self, name: str, number: int = 0, capability: tuple[int, int] | None = None) -> SyntheticReport:
        """The name of a GPU and, from some exports, its compute capability."""
        told = {} if capability is None else {"computeMajor": capability[0], "computeMinor": capability[1]}
        return self._add("TARGET_INFO_GPU", id=number, name=name, **told)

    def chain(self, *frames: tuple[str, str], of: str = CALLS) -> SyntheticReport:
        """The backtrace of the last call: function and module, the innermost first."""
        if of == CALLS:
            self._around()["callchainId"] = self._chain("CUDA_CALLCHAINS", frames)
        else:
            self._rows[of][-1]["callchainId"] = self._chain("OSRT_CALLCHAINS", frames)
        return self

    def sample(self, time: float, *frames: tuple[str, str], thread: int = MAIN) -> SyntheticReport:
        """A CPU sample with its backtrace."""
        number = self._chain("SAMPLING_CALLCHAINS", frames)
        return self._add("COMPOSITE_EVENTS", id=number, start=self._ns(time), cpu=0, globalTid=_thread(thread))

    def python(self, *frames: tuple[str, str, int]) -> SyntheticReport:
        """Python's backtrace of the last CUDA call: function, file, line, the innermost first."""
        around = self._around()
        return self._mark("Python Backtrace on CUDA", around["start"], around["globalTid"], frames)

    def python_sample(
        self,
        time: float,
        *frames: tuple[str, str, int],
        thread: int = MAIN,
        process: int = PROCESS,
        of_2024: bool = False,
    ) -> SyntheticReport:
        """A sample of a thread that runs Python; ``of_2024``: as Nsight Systems 2024.2 lays it out."""
        domain = "Python Backtrace" if of_2024 else "Python Periodic Sampling"
        return self._mark(domain, self._ns(time), _thread(thread, process), frames)

    def allocate(
        self, time: float, address: int, size: int, device: int = 0, process: int = PROCESS, kind: str = "device"
    ) -> SyntheticReport:
        """Memory that the driver gave."""
        return self._memory(time, address, size, 0, device, process, kind)

    def free(
        self, time: float, address: int, size: int = 0, device: int = 0, process: int = PROCESS
    ) -> SyntheticReport:
        """Memory that it took back."""
        return self._memory(time, address, size, 1, device, process, "device")

    def write(self) -> Path:
        """Write the SQLite file and return its path."""
        self.path.unlink(missing_ok=True)
        strings = [{"id": number, "value": value} for value, number in self._strings.items()]
        db = sqlite3.connect(self.path)
        with db:
            db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            for table, rows in {"StringIds": strings, **self._rows}.items():
                if not rows and table == "StringIds":
                    continue
                columns = ", ".join(dict.fromkeys(column for row in rows for column in row)) or "id"
                names = columns.split(", ")
                marks = ", ".join("?" * len(names))
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                values = [tuple(row.get(name) for name in names) for row in rows]
                db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        db.close()
        return self.path

    def _mark(self, domain: str, ns: int, thread: int, frames: tuple[tuple[str, str, int], ...]) -> SyntheticReport:
        """A backtrace of Python, as JSON and as bytes."""
        number = PYTHON_DOMAINS[domain]
        about = {"end": None, "textId": None, "globalTid": thread, "domainId": number}
        if not any(row.get("eventType") == 75 and row["text"] == domain for row in self._rows["NVTX_EVENTS"]):
            self._add("NVTX_EVENTS", start=self._ns(-9000), eventType=75, text=domain, **about)
        ids = [(self._string(function), self._string(file), line) for function, file, line in frames]
        head = struct.pack("<3I4x", 1, 1, len(ids)) if number == OF_2024 else struct.pack("<Q2I", 1, 3, len(ids))
        payload = head + b"".join(struct.pack("<2QI4s", *frame, b"rest") for frame in ids)
        told = {"Thread state ID": 1, "Thread state": "Uninterruptible", "Frames count": len(ids)}
        told["Frames"] = [dict(zip(("Function", "File", "Line"), frame, strict=True)) for frame in ids]
        data = {"jsonText": json.dumps({domain: told}), "binaryData": _with_header((1 << 32) + 5, payload)}
        return self._add("NVTX_EVENTS", start=ns, eventType=34, text=None, **about, **data)

    def _around(self) -> dict:
        """The row with the backtrace of the last CUDA call: one more around it."""
        last = self._rows[CALLS][-1]
        if last["eventClass"] != BACKTRACE:
            (name,) = (text for text, number in self._strings.items() if number == last["nameId"])
            own = {"nameId": self._string(name.partition("_v")[0]), "eventClass": BACKTRACE}
            times = {"start": last["start"] - 90, "end": last["end"] + 120}
            self._add(CALLS, **{**last, **times, **own, "callchainId": self._chain("CUDA_CALLCHAINS", INTERPRETER)})
        return self._rows[CALLS][-1]

    def _chain(self, table: str, frames: tuple[tuple[str, str], ...]) -> int:
        number = 1 + max((row["id"] for row in self._rows[table]), default=-1)
        for depth, (symbol, module) in enumerate(frames):
            place = {"symbol": self._string(symbol), "module": self._string(module)}
            unresolved = 1 if symbol.startswith("0x") else None
            self._add(table, id=number, stackDepth=depth, unresolved=unresolved, originalIP=4096, **place)
        return number

    def _memory(
        self, time: float, address: int, size: int, operation: int, device: int, process: int, kind: str
    ) -> SyntheticReport:
        about = {"globalPid": process << 24, "deviceId": device, "contextId": 1, "memKind": MEMORY_KINDS[kind]}
        what = {"address": address, "bytes": size, "memoryOperationType": operation}
        return self._add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=self._ns(time), **about, **what)

    def _work(
        self,
        kind: str,
        start: float,
        end: float,
        call: tuple[float, float] | None,
        call_name: str,
        place: tuple[int, int, int, int],
        **columns: object,
    ) -> SyntheticReport:
        """An activity of the GPU, tied to its call by a correlation id; ``place``: thread, device, stream, process."""
        thread, device, stream, process = place
        self._correlation += 1
        if call:
            self._call(call, call_name, thread, self._correlation, process)
        ids = {"deviceId": device, "streamId": stream, "globalPid": process << 24, "correlationId": self._correlation}
        times = {"start": self._ns(start), "end": self._ns(end)}
        return self._add(f"CUPTI_ACTIVITY_KIND_{kind}", **times, **ids, **columns)

    def _call(
        self, times: tuple[float, float], name: str, thread: int, correlation: int, process: int = PROCESS
    ) -> None:
        self._host_call(CALLS, *times, name, thread, process, correlationId=correlation, eventClass=0)

    def _host_call(
        self, table: str, start: float, end: float, name: str, thread: int, process: int, **columns: object
    ) -> SyntheticReport:
        ids = {"globalTid": _thread(thread, process), "nameId": self._string(name), **columns}
        return self._add(table, start=self._ns(start), end=self._ns(end), **ids)

    def _payload(self, written: dict[str, int]) -> bytes:
        """The numbers as NCCL lays them out: 8 bytes for the communicator and sizes, 4 for ranks; and their schema."""
        kinds = [18 if "ID" in name else 22 if "size" in name else 5 for name in written]
        schema = (1 << 24) + sum(map(len, written))
        offset, payload = 0, b""
        for place, (name, kind) in enumerate(zip(written, kinds, strict=True)):
            size = 4 if kind == 5 else 8
            payload += b"\0" * (-len(payload) % size) + written[name].to_bytes(size, "little")
            offset = len(payload) - size
            entry = {"domainId": NCCL_DOMAIN, "schemaId": schema, "idx": place, "type": kind, "name": name}
            self._add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **entry, offset=offset or None)
        return _with_header(schema, payload + b"\0" * (-len(payload) % 8))

    def _add(self, table: str, **row: object) -> SyntheticReport:
        self._rows[table].append(row)
        return self

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings) + 1)

    def _ns(self, time_us: float) -> int:
        return round(1000 * (self.origin_us + time_us))


def _with_header(schema: int, payload: bytes) -> bytes:
    """A payload as the export holds it: 1, the schema, the size and where it begins."""
    return struct.pack("<4Q", 1, schema, len(payload), 32) + payload


def _thread(number: int, process: int = PROCESS) -> int:
    """A thread's number as the export gives it: the process's in the upper bits."""
    return process << 24 | number


def opened(made: SyntheticReport) -> Report:
    """The report that was made, written and read."""
    return open_report(made.write())


def changed(path: Path, *statements: str) -> Path:
    """The same file after these statements of SQL."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path
