"""What does PyTorch's own profiler say? Its trace, as the tables that Nsight Systems exports.

Both profilers get kernels, copies and calls from the same library (CUPTI), so that they mean the same. From a trace's
events to an export's rows:

- ``kernel``, ``gpu_memcpy``, ``gpu_memset`` are the GPU's work, the kinds of memory read from a copy's name;
- ``cuda_runtime``, ``cuda_driver`` and their like are calls, the correlation ids lead from them to the work; work that
  the launch of a CUDA graph asked for is marked as nodes of it;
- ``user_annotation`` (record_function, ``ProfilerStep#``, the loader's ``enumerate(DataLoader)#….__next__``) are
  ranges: ``export.annotations``;
- ``cpu_op`` are ranges of operators, named as PyTorch's emit_nvtx names them, with the sizes of their inputs;
- ``record_param_comms`` are NCCL's calls, with communicator, size and ranks;
- ``[memory]`` are allocations of GPU memory: those of PyTorch's allocator, a tensor each;
- ``python_function`` (``with_stack=True``) are backtraces of calls: ``export.python_frames``.

A trace holds no calls into the operating system and no GPU counters: those tables are not there.

Of ROCm and of Intel's GPUs a trace has the same form with other names: HIP's calls are written under CUDA's names,
those of SYCL's runtime under the names of CUDA's calls that do the same. That was read from the source of PyTorch's
profiler and tried with traces made by hand; no trace of such a device was at hand.

Sources: PyTorch, torch/csrc/profiler, torch/profiler; Kineto, libkineto (``output_json.cpp``, ``CuptiActivity.cpp``,
``RoctracerActivity_inl.h``, plugin ``xpupti``); traces of PyTorch 2.11 (H200) and 2.15 (CPU).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from stepbudget import kernel_names
from stepbudget.errors import ReportError
from stepbudget.export import annotations
from stepbudget.export.annotations import Annotation
from stepbudget.export.kinds import EXACT, MOST_BYTES, PUSHED
from stepbudget.export.names import (
    CALLS,
    COPIES,
    DIAGNOSTICS,
    FILLS,
    KERNELS,
    MEMORY,
    META,
    OVERHEAD,
    PRODUCT,
    RANGES,
)
from stepbudget.export.python_frames import Frames
from stepbudget.export.tables import Tables
from stepbudget.export.trace_events import Events

TORCH = "torch.profiler"
# Categories of events; the capital ones until PyTorch 1.11.
WORK = {
    **dict.fromkeys(("kernel", "Kernel"), KERNELS),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), COPIES),
    **dict.fromkeys(("gpu_memset", "Memset"), FILLS),
}
CALLING = {"Runtime", *(f"{maker}_{kind}" for maker in ("cuda", "hip", "xpu") for kind in ("runtime", "driver"))}
ANNOTATION = ("user_annotation", "UserAnnotation")
OPERATOR, PYTHON = ("cpu_op", "Operator"), ("python_function",)
NOTHING: dict = {}  # in place of arguments
MOST_NS = 2**62  # of a time: what 64 bits hold, and room for a sum
MANY = 50_000  # events whose rows are written together
WARNING = 2  # severity of a diagnostic

DIRECTION = re.compile(r"\b([HDMP])(?:to|2)([HDMP])\b")
DIRECTIONS = {"HD": 1, "MD": 1, "DH": 2, "DM": 2, "DD": 8, "HH": 9, "PP": 10}
PLACES = re.compile(r"\((\w+) -> (\w+)\)")
PLACE = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}

# What other makers' runtimes call what CUDA's does.
SAME = {
    "hipMemcpyWithStream": "cudaMemcpy",  # it waits for the copy
    "EventWait": "cudaEventSynchronize",
    "QueueFinish": "cudaStreamSynchronize",
    "EnqueueUSMMemcpy": "cudaMemcpyAsync",
    "EnqueueUSMFill": "cudaMemsetAsync",
    "EnqueueKernelLaunch": "cudaLaunchKernel",
}
INTELS = re.compile(r"(?:ur|pi)(?=[A-Z])")

# NCCL's functions by what PyTorch calls the collective, letters alone; the first that stands in it.
COLLECTIVES = ("ReduceScatter", "AllReduce", "AllGather", "AlltoAll", "Broadcast", "Reduce", "Send", "Recv")
ELEMENT_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
}

# What the launch of a graph asked for, where the trace itself does not number its nodes.
NODES = f"""UPDATE {{table}} SET graphNodeId = 1
WHERE graphNodeId IS NULL AND correlationId <> 0 AND correlationId IN (
    SELECT correlationId FROM {CALLS} JOIN StringIds ON id = nameId WHERE value LIKE 'cu%GraphLaunch%'
)"""


def write(trace: Path, target: Path) -> None:
    """Write the export ``target`` (SQLite) of a trace (.json, .json.gz): the same tables as of a .nsys-rep.

    Times are nanoseconds on the trace's own clock. What could not be read is said in the table of diagnostics.
    ReportError, in one sentence, where the file is no such trace or holds nothing of one.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        tables = Tables(db)
        found = _Rows(tables)
        events = Events(trace)
        try:
            for number, event in enumerate(events):
                found.add(event)
                if number % MANY == 0:
                    tables.flush()
            if not found.known:
                raise ReportError(f"{trace} is no trace of torch.profiler: it holds none of the events of one.")
            events.damage.events += found.damaged
            found.finish(events.about, [*events.damage.sentences(), *found.remarks()])
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise ReportError(f"{trace} cannot be unpacked: {error}.") from error


class _Rows:
    """The rows that a trace's events become; ``finish`` writes what only all of them tell."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._add_call, self._add_range = tables.adder(CALLS), tables.adder(RANGES)
        self.known = 0  # events that were of use
        self.damaged = 0  # of a known category, and without times
        self.others: set[str] = set()  # whose calls were written under CUDA's names
        self._process: int | None = None  # the trace's own: of its ranges, calls or operators
        self._programs: dict[int, str] = {}
        self._annotations: list[Annotation] = []
        self._frames = Frames()
        self._handlers = {
            **{category: self._work(table) for category, table in WORK.items()},
            **dict.fromkeys(CALLING, self._call),
            **dict.fromkeys(ANNOTATION, self._annotation),
            **dict.fromkeys(OPERATOR, self._operator),
            **dict.fromkeys(PYTHON, self._frames.add),
            "overhead": self._overhead,
        }

    def add(self, event: dict) -> None:
        """Take an event, if it is of any use."""
        category = event.get("cat")
        handle = self._handlers.get(category) if isinstance(category, str) else None
        if handle is None:
            self._about(event)
            return
        name, arguments = event.get("name"), event.get("args")
        try:
            start = round(1000 * event["ts"])
            end = start + round(1000 * event["dur"])
            fits = 0 <= end - start <= EXACT and -MOST_NS < start < MOST_NS
        except (KeyError, TypeError, ValueError, OverflowError):
            fits = False
        if fits and isinstance(name, str):
            self.known += 1
            handle(start, end, name, arguments if isinstance(arguments, dict) else NOTHING, event)
        else:
            self.damaged += event.get("ph") == "X"

    def _about(self, event: dict) -> None:
        if event.get("name") == "[memory]":
            self._memory(event)
        elif event.get("name") == "process_name" and _is_id(event.get("pid")):
            told = event.get("args")
            self._programs[event["pid"]] = told.get("name") if isinstance(told, dict) else None

    def remarks(self) -> list[str]:
        """What is to be said beside what is damaged."""
        who = " and ".join(sorted(self.others))
        return [f"calls of {who} are shown under the names of CUDA's that do the same"] if who else []

    # --- events -------------------------------------------------------------------------------------------------

    def _work(self, table: str) -> Callable[[int, int, str, dict, dict], None]:
        text, row = self.tables.text, self.tables.adder(table)

        def add(start: int, end: int, name: str, arguments: dict, event: dict) -> None:
            device = _whole(arguments.get("device", event.get("pid")))
            stream = _whole(arguments.get("stream", event.get("tid")))
            correlation = _whole(arguments.get("correlation")) or 0
            process = 0 if self._process is None else self._process << 24
            base = (start, end, device or 0, stream or 0, correlation, process)
            if table == KERNELS:
                node = _whole(arguments.get("graph node id")) or None
                row((*base, node, text(_demangled(name))))
            else:
                size = _whole(arguments.get("bytes")) or 0
                size = size if 0 <= size <= MOST_BYTES else 0
                row((*base, size, *(_copy_kinds(name) if table == COPIES else ())))

        return add

    def _call(self, start: int, end: int, name: str, arguments: dict, event: dict) -> None:
        if (thread := self._thread(event)) is not None:
            correlation = _whole(arguments.get("correlation")) or 0
            same, maker = _as_cuda(name)
            if maker:
                self.others.add(maker)
            self._add_call((start, end, thread, correlation, self.tables.text(same)))

    def _annotation(self, start: int, end: int, name: str, arguments: dict, event: dict) -> None:
        if (thread := self._thread(event)) is not None:
            self._annotations.append(Annotation(start, end, thread, name))

    def _operator(self, start: int, end: int, name: str, arguments: dict, event: dict) -> None:
        if (thread := self._thread(event)) is None:
            return
        if name == "record_param_comms":
            if found := _nccl(arguments):
                function, told = found
                self._range(start, end, thread, f"nccl{function}", json.dumps(told))
            return
        sizes = arguments.get("Input Dims")
        self._range(start, end, thread, f"{name}, sizes = {sizes}" if sizes else _marked(name))

    def _range(self, start: int, end: int, thread: int, name: str, told: str | None = None) -> None:
        self._add_range((start, end, PUSHED, thread, None, self.tables.text(name), told, None))

    def _overhead(self, start: int, end: int, name: str, arguments: dict, event: dict) -> None:
        if _is_id(event.get("pid")) and (thread := self._thread(event)) is not None:
            self.tables.row(OVERHEAD, (start, end, thread, self.tables.text(name)))

    def _memory(self, event: dict) -> None:
        told = event.get("args")
        time, told = event.get("ts"), told if isinstance(told, dict) else {}
        size, device = _whole(told.get("Bytes")), _whole(told.get("Device Id"))
        if told.get("Device Type") != 1 or not size or abs(size) > MOST_BYTES or device is None:
            return  # the CPU's, or nothing
        if isinstance(time, int | float) and abs(time) < 2**52 and (thread := self._thread(event)) is not None:
            address, process = _whole(told.get("Addr")), thread >> 24 << 24
            self.tables.row(MEMORY, (round(1000 * time), process, device, address, abs(size), 2, int(size < 0)))

    def _thread(self, event: dict) -> int | None:
        """The thread's number, its process's above its own; None: it is not told."""
        process, thread = event.get("pid"), event.get("tid")
        if not (_is_id(process) and isinstance(thread, int)):
            return None
        if self._process is None:
            self._process = process
        return process << 24 | thread & 0xFFFFFF

    # --- what all of them tell ----------------------------------------------------------------------------------

    def finish(self, about: dict, remarks: list[str]) -> None:
        """Write what is left: the steps' range, graphs' nodes, backtraces, the GPUs, and who recorded it."""
        tables, process = self.tables, self._process or 1
        for found in annotations.kept(self._annotations):
            self._range(*found)
        tables.flush()
        for found in annotations.waits(tables, self._annotations):
            self._range(*found)
        tables.change("UPDATE {table} SET globalPid = ? WHERE globalPid = 0", (process << 24,), KERNELS, COPIES, FILLS)
        if tables.has(KERNELS, CALLS):
            tables.change(NODES, (), KERNELS)
        self._frames.write(tables)
        for number, name in self._programs.items():
            if number == self._process and isinstance(name, str):
                tables.row("PROCESSES", (process << 24, name))
        for gpu in _dicts(about.get("deviceProperties")):
            known = [gpu.get(name) for name in ("id", "name", "computeMajor", "computeMinor")]
            tables.row("TARGET_INFO_GPU", tuple(one if isinstance(one, int | str) else None for one in known))
        if (base := _whole(about.get("baseTimeNanoseconds"))) is not None:
            tables.row("TARGET_INFO_SESSION_START_TIME", (base,))
        told = about.get("distributedInfo")
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")) if isinstance(told, dict) else ():
            if (number := _whole(told.get(name))) is not None:
                tables.row("META_DATA_CAPTURE", ("PROCESS_0:ENVIRONMENT_VARIABLE", f"{variable}={number}"))
        tables.row(META, (PRODUCT, TORCH))
        for text in remarks:
            tables.row(DIAGNOSTICS, (WARNING, text))
        tables.flush()


def _whole(value: object) -> int | None:
    """A number that an export can hold; None for what is none, or beyond 64 bits."""
    return value if type(value) is int and -(2**63) < value < 2**63 else None


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**24


def _dicts(value: object) -> list[dict]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@lru_cache(maxsize=65_536)
def _demangled(name: str) -> str:
    return kernel_names.demangled(name)


@lru_cache(maxsize=1024)
def _copy_kinds(name: str) -> tuple[int | None, int | None, int | None]:
    """Direction, and the kinds of memory on both sides; None for what the copy's name does not tell."""
    direction, places = DIRECTION.search(name), PLACES.search(name)
    kinds = [PLACE.get(places[side]) if places else None for side in (1, 2)]
    return DIRECTIONS.get(direction[1] + direction[2]) if direction else None, kinds[0], kinds[1]


@lru_cache(maxsize=4096)
def _as_cuda(name: str) -> tuple[str, str | None]:
    """A call under the name of CUDA's that does the same, and whose it is if not CUDA's."""
    if name.startswith("hip"):
        return SAME.get(name, f"cuda{name[3:]}"), "HIP"
    if found := INTELS.match(name):
        same = next((same for part, same in SAME.items() if name[found.end() :].startswith(part)), None)
        return (same, "SYCL") if same else (name, None)
    return name, None


@lru_cache(maxsize=65_536)
def _marked(name: str) -> str:
    """An operator's name, so that it is known as one."""
    return f"{name}, op_id = 0"


def _nccl(arguments: dict) -> tuple[str, dict] | None:
    """NCCL's function of a collective, and what NCCL itself would write of it; None for what is none (``wait``).

    The size is one rank's message: of what is gathered or scattered, the smaller side.
    """
    letters = re.sub(r"[^a-z]", "", str(arguments.get("Collective name", "")).lower())
    function = next((one for one in COLLECTIVES if one.lower() in letters), None)
    if function is None:
        return None
    counts = [_whole(arguments.get(f"{side} msg nelems")) for side in ("In", "Out")]
    counts = [count for count in counts if count]
    told: dict[str, object] = {}
    group = [str(arguments[part]) for part in ("Process Group Name", "Process Group Ranks") if part in arguments]
    if group:
        told["NCCL communicator ID"] = " ".join(group)[:64]
    each = ELEMENT_BYTES.get(arguments.get("dtype"))
    if counts and each:
        told["Message size [bytes]"] = min(counts) * each
    for name, own in (("No. of ranks", "Group size"), ("rank", "Rank")):
        if (number := _whole(arguments.get(own))) is not None:
            told[name] = number
    return function, told
