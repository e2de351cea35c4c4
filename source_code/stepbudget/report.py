"""What does a report hold? One report as tables: kernels, copies, API calls, NVTX ranges, counters.

A report is opened from ``.nsys-rep`` (exported to SQLite by nsys, once, beside it), from ``.sqlite``, from a packed
``.sqlite.xz``, or from a trace of PyTorch's own profiler (``.json``, ``.json.gz``). It is only ever read. Times are
nanoseconds on the report's own clock, which need not start near 0. A table that the report does not hold (nothing was
recorded, or not asked for) comes back empty, and so does a column that its version of Nsight Systems did not write;
what could not be read is said in ``notes``.

Sources: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"; and the exports themselves, from 2021 to 2025.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, wraps
from itertools import chain, count
from pathlib import Path

import numpy as np
import pandas as pd

from stepbudget import kernel_names, metrics, nccl
from stepbudget.coded import each
from stepbudget.errors import ReportError
from stepbudget.export import sqlite
from stepbudget.export.kinds import EXACT
from stepbudget.export.names import DIAGNOSTICS, MEMORY, PRODUCT, STACKS
from stepbudget.export.sqlite import KERNELS, RANGES, Export
from stepbudget.window import Window

MISSING = -(2**63)  # stands for NULL among whole numbers; no version of Nsight Systems writes it

# Host-side calls: the CUDA API, the operating system, MPI, the profiler's own overhead; and ranges. What is still open
# at the end of capture has no end.
_CALLED = ("start - :origin", 'coalesce("end", :last) - :origin', "globalTid")
DEEP = int(pd.__version__.partition(".")[0]) < 3  # from 3 on a table is copied when it is written to
FEW = 1024  # rows: a column that holds one number in the first of them may hold it in all

# What PyTorch's emit_nvtx adds to a range's name.
EMIT_NVTX = re.compile(r", (seq|op_id|sizes) = .*$", re.DOTALL)
# What marks a range as a single operator's: such an addition or, since PyTorch before 1.13 often adds none, its name.
OPERATOR = re.compile(
    r", (seq|op_id|sizes) = |^(aten|autograd|torch|prims?|c10d?)::|^Optimizer\.\w+#|^\w+Backward\d+$", re.DOTALL
)
# NVTX leaves the default domain to the program; these are the domains that libraries open for themselves.
LIBRARY_DOMAINS = re.compile(
    r"(?:lib|nvidia[\W_]*|com\.nvidia\.)?(?:cccl|cub|thrust|tsl|xla|xprof|nccl|nvshmem|dali|raft|rmm|ucx|mpi|tensorrt|nvimgcodec"
    r"|cu(?:dnn|blas|sparse|solver|fft|rand|tensor|df|ml|graph|vs|spatial|cim))",
    re.IGNORECASE,
)
# How ranges are called that a library opens around its own calls, whatever domain it takes: by a function with its
# namespace (cub::DeviceSelect::Flagged) or its class (DeepSpeedEngine.forward), by whom it belongs to
# ([Strategy]DDPStrategy.training_step, [DALI][Executor] RunMixed), or not at all.
LIBRARYS = re.compile(r"nccl[A-Z]\w*\Z|\(unnamed range\)\Z|\s*\Z|[a-z_]\w*::\w|_?[A-Z]\w*(\.\w+)+\Z|(\[\w+\])+ ?\w")

# No function of CUDA has a _ within its name: what follows one says which build of it was called, its version or the
# default stream that it takes (cudaStreamSynchronize_ptsz_v7000, cuGraphInstantiate_v2_v12000).
API_BUILD = re.compile(r"^(_*cu[^_]*)_.+", re.DOTALL)

UNNAMED = "(unnamed call)"
MOST_GPUS = 2**16
STRAY = 0.1  # of what the busiest GPU, thread or process does: what does less is no part of the program

SEVERITIES = {"Warning": 2, "Error": 3}  # of a diagnostic message, as exports from 2021 to 2025 number them
# What tells of events that are missing, of whatever severity: all of a kind, or some.
LOSS = re.compile(
    r"^No \w+ events collected|might (not )?have (not )?been|may be missing|were (lost|dropped)|size limit"
)
ALL_OF_A_KIND = re.compile(r"^No \w+ events collected")

# What an export may hold and no question reads: how the tables' names begin, and what they hold. Of CUPTI, all others;
# and whatever else a version of Nsight Systems writes that has starts, by the table's own name.
READ = {RANGES, sqlite.CALLS, *sqlite.WORK, sqlite.OS_CALLS, sqlite.OVERHEAD, sqlite.SCHEDULED, sqlite.SAMPLES}
READ |= {*sqlite.MPI, MEMORY}
IN_CALLS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"  # each of its rows is a call that waits, and is read as that
UNREAD = {
    "CUPTI_ACTIVITY_KIND_OPENACC_": "OpenACC constructs",
    "OPENMP_EVENT_KIND_": "OpenMP regions",
    "UCP_": "calls of UCX",
    "CUDA_UM_": "page faults of unified memory",
    "GPU_CONTEXT_SWITCH_EVENTS": "switches of the GPU from one program to another",
    "NET_": "counters of the network",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "CUPTI's own overhead",
    IN_CALLS: "waits as CUPTI saw them",
    "CUPTI_": "other records of CUPTI",
}


class Report(Export):
    """An open report. Tables are read when first asked for, and kept; ``close()`` or ``with`` lets go of the file."""

    def __init__(self, path: str | Path) -> None:
        """Open ``path``; ReportError, in one sentence, where it is missing, damaged or no Nsight Systems export."""
        super().__init__(path)
        self.notes: list[str] = []  # what could not be read, in words
        self.answers: dict[tuple, object] = {}  # what was worked out once: see ``remembered``

    def __repr__(self) -> str:
        return f"Report({self.path.name})"

    @property
    def name(self) -> str:
        """What the report is called, without its folder and endings."""
        return self.path.name.split(".")[0]

    def sql(self, query: str, parameters: Sequence | dict = ()) -> pd.DataFrame:
        """The rows of an SQL query; ReportError if the report does not answer it."""
        names, rows = self.query(query, parameters)
        return pd.DataFrame.from_records(rows, columns=names)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """Kernels, in order of their start.

        Columns: ``start``, ``end`` (ns), ``device``, ``stream``, ``process``, ``name`` (demangled), ``graph_node`` (NaN
        outside CUDA graphs), ``api_start``, ``api_end``, ``api_thread`` of the call that launched it (NaN where the
        capture holds none), ``call`` (its row in ``api``, -1 for none), ``gpu`` (number of the card).
        """
        name = self.column(KERNELS, *sqlite.KERNEL_NAME)
        found = self._activity(KERNELS, {"name": name, "graph_node": self.column(KERNELS, "graphNodeId")})
        found["name"] = each(self._text(found["name"]).fillna("(unnamed kernel)"), kernel_names.without_middle)
        return found

    @cached_property
    def copies(self) -> pd.DataFrame:
        """Copies: as kernels, with bytes, copy_kind, source_kind, target_kind (the report's numbers)."""
        kinds = {"copy_kind": "copyKind", "source_kind": "srcKind", "target_kind": "dstKind"}
        return self._activity(
            sqlite.COPIES,
            {"bytes": "bytes", **{name: self.column(sqlite.COPIES, kind) for name, kind in kinds.items()}},
        )

    @cached_property
    def memsets(self) -> pd.DataFrame:
        """Memory fills: as kernels, with ``bytes``."""
        return self._activity(sqlite.FILLS, {"bytes": "bytes"})

    @cached_property
    def graphs(self) -> pd.DataFrame:
        """CUDA graphs that were traced as a whole, one row a launch; their kernels are in no table.

        ``nsys profile --cuda-graph-trace=node`` records the kernels instead.
        """
        return self._activity(sqlite.GRAPHS, {"graph": self.column(sqlite.GRAPHS, "graphId")})

    @cached_property
    def api(self) -> pd.DataFrame:
        """CUDA API calls: start, end, thread, process, name (without what tells its builds apart)."""
        made = self._calls_made[:, :4]
        calls = self._called(self._frame(sqlite.CALLS, made, ["start", "end", "thread"], ["name"], copy=False))
        calls["name"] = each(calls["name"], lambda name: API_BUILD.sub(r"\1", name))
        return calls

    @cached_property
    def os_calls(self) -> pd.DataFrame:
        """Calls into the operating system that may block (``--trace osrt``): start, end, thread, process, name."""
        return self._calls(sqlite.OS_CALLS)

    @cached_property
    def scheduled(self) -> pd.DataFrame:
        """When threads had a CPU (``--cpuctxsw``): start, end, thread; a last stretch ends with the capture."""
        known = {"start", "isSchedIn", "globalTid"} <= self.columns(sqlite.SCHEDULED)
        if not (known and self.span(sqlite.SCHEDULED)):
            return pd.DataFrame(columns=["start", "end", "thread"])
        rows = self.rows(f"SELECT start, globalTid, isSchedIn FROM {sqlite.SCHEDULED} ORDER BY globalTid, start")
        start, thread, runs = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        start = start - self.origin
        following = np.append(thread[1:] == thread[:-1], False)
        end = np.where(following, np.append(start[1:], 0), max(self.extent.end, int(start.max(initial=0))))
        return pd.DataFrame({"start": start, "end": end, "thread": thread})[runs != 0].reset_index(drop=True)

    @cached_property
    def mpi(self) -> pd.DataFrame:
        """Calls of MPI (``--trace mpi``): start, end, thread, process, name."""
        for table in sqlite.MPI:
            self.span(table)  # checks it; it is no part of the capture's extent
        parts = [self._calls(table, "textId") for table in sqlite.MPI]
        return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)

    def cpu_samples(self, thread: int, window: Window) -> pd.DataFrame:
        """What a thread ran when its CPU was sampled (``--sample``): time (ns), function and module, each innermost."""
        columns = ["time", "function", "module"]
        if not ({"id", "symbol", "module", "stackDepth"} <= self.columns(STACKS) and self.span(sqlite.SAMPLES)):
            return pd.DataFrame(columns=columns)
        first, last = (edge + self.origin for edge in (window.start, window.end))
        rows = self.rows(
            "SELECT sample.start - ?, symbol, module FROM COMPOSITE_EVENTS AS sample "
            "JOIN SAMPLING_CALLCHAINS AS frame ON frame.id = sample.id AND frame.stackDepth = 0 "
            "WHERE sample.globalTid = ? AND sample.start BETWEEN ? AND ? ORDER BY sample.start",
            (self.origin, thread, first, last),
        )
        found = pd.DataFrame(rows, columns=columns)
        return found.assign(**{name: self._text(found[name]).fillna("(unknown)") for name in columns[1:]})

    @cached_property
    def unread(self) -> list[str]:
        """What the export holds and no question reads, in words, with its rows and how long they lasted (ms)."""
        tables = {name for (name,) in self.rows("SELECT name FROM sqlite_master") if isinstance(name, str)} - READ
        tables.difference_update([IN_CALLS] if len(self._calls_made) else [])
        tables = {name for name in tables if name.isidentifier() and self.has(name)}
        kinds: dict[str, list[str]] = {}
        for start, words in UNREAD.items():
            kinds[words] = sorted(name for name in tables if name.startswith(start))
            tables.difference_update(kinds[words])
        kinds |= {name: [name] for name in sorted(tables) if "start" in self.columns(name)}
        listed = []
        for words, own in kinds.items():
            rows = sum(self.rows(f"SELECT count(*) FROM {name}")[0][0] for name in own)
            ms = self._lasted_ms(own)
            lasted = f", {ms:,.1f} ms" if ms >= 0.05 else ""
            listed += [f"{words} ({rows:,} row{'s' * (rows != 1)}{lasted}): recorded, and not read"] if rows else []
        return listed

    def _lasted_ms(self, tables: Sequence[str]) -> float:
        """How long the events of these tables lasted, added up; those without times count nothing."""
        timed = [table for table in tables if {"start", "end"} <= self.columns(table)]
        sums = [
            self.rows(f'SELECT total(max("end" - start, 0)) FROM {table} WHERE {sqlite.TIMED}')[0][0] for table in timed
        ]
        return sum(sums) / 1e6

    def program(self, process: int | None) -> str | None:
        """The name of a process's program, as its first thread carries it (``python3``); None: not in the report."""
        if process is None:
            return None
        first = process << 24 | (process & 0xFFFFFF)
        for table, number, own in (("ThreadNames", "globalTid", first), ("PROCESSES", "globalPid", process << 24)):
            if {"name" if table == "PROCESSES" else "nameId", number} <= self.columns(table):
                name = "name" if table == "PROCESSES" else "(SELECT value FROM StringIds WHERE id = nameId)"
                found = self.rows(f"SELECT {name} FROM {table} WHERE {number} = ?", (own,))
                if found and isinstance(found[0][0], str) and found[0][0]:
                    return found[0][0].rpartition("/")[2]
        return None

    @cached_property
    def diagnostics(self) -> list[str]:
        """What Nsight Systems itself warned of while it recorded (table DIAGNOSTIC_EVENT), each once."""
        if not {"severity", "text"} <= self.columns(DIAGNOSTICS):
            return []
        own = self.enumeration("ENUM_DIAGNOSTIC_SEVERITY_LEVEL")
        grave = {own.get(name, number) for name, number in SEVERITIES.items()}
        rows = self.rows(f"SELECT severity, text FROM {DIAGNOSTICS}")
        texts = [text for severity, text in rows if isinstance(text, str) and (severity in grave or LOSS.search(text))]
        return list(dict.fromkeys(" ".join(text.split()) for text in texts))

    @property
    def losses(self) -> list[str]:
        """Those of the ``diagnostics`` that tell of some events of a kind that are missing among others."""
        return [text for text in self.diagnostics if LOSS.search(text) and not ALL_OF_A_KIND.search(text)]

    @cached_property
    def overhead(self) -> pd.DataFrame:
        """What the profiler itself cost: start, end, thread, process, name."""
        self.span(sqlite.OVERHEAD)
        return self._calls(sqlite.OVERHEAD)

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """NVTX ranges: start, end, thread, process, name, raw_name, operator, library.

        ``name`` is without what PyTorch's emit_nvtx adds (``, seq = …, sizes = …``), ``raw_name`` is with it;
        ``operator``: it is a single operator's; ``library``: a library opened it, by its domain or its name.
        """
        times, codes, raw = self._range_rows()
        ranges = self._frame(RANGES, times, ["start", "end", "thread"])
        ranges["process"] = np.right_shift(ranges["thread"], 24)
        # What tells of a name is told by what is left of it, and by whether anything was cut off: few differ in these.
        cut = [EMIT_NVTX.split(name, 1)[0] for name in raw]
        same: dict[tuple[str, bool], tuple[str, bool, bool]] = {}
        of_own = self.names_of_libraries
        told = []
        for name, own in zip(raw, cut, strict=True):
            key = own, len(own) < len(name)
            if key not in same:
                is_librarys = bool(LIBRARYS.match(f"{own}, " if key[1] else own))
                same[key] = own, key[1] or bool(OPERATOR.search(own)), is_librarys
            told.append(same[key])
        texts, operator, librarys = zip(*told, strict=True) if told else ((), (), ())
        ranges["raw_name"] = _objects(raw, codes)
        ranges["name"] = ranges["raw_name"] if [*texts] == raw else _objects(texts, codes)
        ranges["operator"] = np.array(operator, dtype=bool)[codes]
        librarys = np.array(librarys, dtype=bool) | np.array([name in of_own for name in raw], dtype=bool)
        ranges["library"] = librarys[codes]
        return ranges

    def _range_rows(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Start, end, thread of each range in order, shape (n, 3), the number of its name, and the different names.

        A name is a text, or the id of one: it stands in the row or, registered, in StringIds. Each text is read as the
        number of its own: a row is whole numbers alone, and equal texts are one.
        """
        if not self.has(RANGES):
            return np.empty((0, 3), dtype=np.int64), np.empty(0, dtype=np.intp), []
        text, number = (self.column(RANGES, name) for name in ("text", "textId"))
        name = f"CASE typeof({text}) WHEN 'text' THEN numbered(CAST({text} AS BLOB)) WHEN 'null' THEN "
        name += f"CASE WHEN typeof({number}) = 'integer' AND {number} >= 0 THEN -2 - {number} ELSE -1 END END"
        columns = [_CALLED[0], f'coalesce("end" - :origin, {MISSING})', _CALLED[2], name]
        texts: dict[bytes, int] = defaultdict(count().__next__)
        where, wrong = f"eventType IN ({self.range_types})", "a name that is no text"
        self._db.create_function("numbered", 1, texts.__getitem__)
        rows = self._read(RANGES, columns, where, wrong)
        start, end, _, names = rows
        is_open = end == MISSING
        end[is_open] = self._about["last"] - self.origin
        order = np.lexsort((-end, ~is_open, start))  # of those that start together the outer one first
        codes, different = pd.factorize(names)
        known = self._strings.to_dict()
        read = [str(texts.popitem()[0], "utf-8", "replace") for _ in range(len(texts))][::-1]  # each is held once
        raw = [read[one] if one >= 0 else known.get(-2 - one, "(unnamed range)") for one in different.tolist()]
        return rows[:3, order].T, codes[order], raw

    @cached_property
    def names_of_libraries(self) -> set[str]:
        """What ranges are called that lie in the NVTX domain of a library."""
        domains = {tuple(domain) for *domain, name in self.domains if LIBRARY_DOMAINS.match(str(name))}
        rows = self.named_events(self.range_types) if domains else []
        return {name for *domain, name in rows if tuple(domain) in domains}

    @cached_property
    def nccl_calls(self) -> pd.DataFrame:
        """NCCL's own ranges, with what it wrote beside them: the columns of ``nccl.calls``."""
        found = nccl.calls(self)
        found[["start", "end"]] -= self.origin
        return found

    def counter(self, name: str, window: Window | None = None) -> pd.DataFrame:
        """Samples of a GPU counter, such as ``"Tensor Active"``, in a window or all: time (ns), counter, value, device.

        The device is the sampler's number of the GPU: its lowest byte is all that the export tells.
        """
        if ("counter", name) not in self.answers:  # read once: no index helps to find a part of them
            found = metrics.samples(self, name)
            found["time"] = found["time"].astype("int64") - self.origin
            self.answers["counter", name] = found[found["time"].between(-EXACT, EXACT)].reset_index(drop=True)
        found = self.answers["counter", name]
        inside = slice(None) if window is None else found["time"].between(window.start, window.end)
        return found[inside].reset_index(drop=True)

    @cached_property
    def sampled(self) -> list[str]:
        """Names of the GPU counters that were sampled; empty where none were."""
        return metrics.names(self)

    @cached_property
    def origin(self) -> int:
        """What is taken off every time read (ns): 0, unless the clock is too far from 0 for exact arithmetic."""
        first, last = self.reach if self.spans else (0, 0)
        return first if max(abs(first), abs(last)) > EXACT else 0

    @cached_property
    def extent(self) -> Window:
        """From the first to the last event of the capture."""
        first, last = self.reach
        return Window(first - self.origin, last - self.origin, "whole capture")

    def windows(self, name: str) -> list[Window]:
        """Every NVTX range called ``name``, in order of their starts, in whatever process and thread."""
        if ("windows", name) not in self.answers:
            found = self.ranges.loc[self.ranges["name"] == name, ["start", "end", "thread"]]
            rows = found.itertuples(index=False, name=None)
            self.answers["windows", name] = [Window(start, end, name, thread) for start, end, thread in rows]
        return [*self.answers["windows", name]]

    def window(self, name: str | None = None, occurrence: int = 1, gpu: int | None = None) -> Window:
        """The NVTX range called ``name``, the first unless ``occurrence`` says otherwise (1 is the first).

        Without a name: the range ``training``, else the whole capture. ``gpu``: of several processes with such ranges,
        those that used this card. ReportError where there is no such range.
        """
        named = "training" if name is None else name
        found = self.windows(named)
        if gpu is not None and len({window.process for window in found}) > 1:
            tables = (self.kernels, self.graphs, self.copies, self.memsets)
            users = {process for table in tables for process in table.loc[table["gpu"] == gpu, "process"].unique()}
            found = [window for window in found if window.process in users] or found
        if len(found) >= occurrence > 0:
            return found[occurrence - 1]
        if name is None and not found and occurrence == 1:
            return self.extent
        name = _cut(named)
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
            if {number, "name"} <= self.columns(table):
                break
        else:
            return pd.DataFrame(columns=columns)
        own = [number, "name", *(self.column(table, name) for name in ("computeMajor", "computeMinor"))]
        rows = self.rows(f"SELECT DISTINCT {', '.join(own)} FROM {table} ORDER BY {number}")
        found = pd.DataFrame(rows, columns=columns)
        found["name"] = [name if isinstance(name, str) and name else None for name in found["name"]]
        for column in ("gpu", "major", "minor"):
            found[column] = pd.to_numeric(found[column], errors="coerce")
        return found

    @cached_property
    def gpu(self) -> str | None:
        """The name of the GPU with the work (``with_the_work``), else of the first; None if the report tells none."""
        names = self.gpus
        if len(names) > 1 and len(self.kernels):
            used = names[names["gpu"] == with_the_work(computing(self.kernels), "gpu")]
            names = used if len(used) else names
        return str(names["name"].iloc[0]) if len(names) and names["name"].iloc[0] else None

    def sampled_gpu(self) -> int | None:
        """Number, among the sampled GPUs, of the CUDA device with the work; None if the report does not say.

        CUDA numbers the devices that a process may see, the sampler numbers all that the machine has.
        """
        if self._device_map.empty or self.kernels.empty:
            return None
        device = with_the_work(computing(self.kernels), "device")
        found = set(self.kernels.loc[self.kernels["device"] == device, "gpu"].astype(int))
        return found.pop() if len(found) == 1 else None

    @cached_property
    def profiler(self) -> str:
        """Who recorded it: ``"Nsight Systems"``, or ``"torch.profiler"``."""
        return "torch.profiler" if self._meta(PRODUCT) == "torch.profiler" else "Nsight Systems"

    @property
    def said_by(self) -> str:
        """What stands before a diagnostic: whose words it is. Of a trace the reader's own."""
        return "" if self.profiler == "torch.profiler" else f"{self.profiler} said: "

    @cached_property
    def nsys_version(self) -> str | None:
        """The version of Nsight Systems that exported the report, or None where it does not say."""
        return self._meta("EXPORT_PRODUCT_VERSION")

    # --- reading ------------------------------------------------------------------------------------------------

    @cached_property
    def _strings(self) -> pd.Series:
        """StringIds: id → text; what is none is left out."""
        rows = self.rows("SELECT id, value FROM StringIds")
        found = pd.Series([value for _, value in rows], index=[number for number, _ in rows], dtype=object)
        found = found[~found.index.duplicated()]
        return found[found.map(lambda value: isinstance(value, str)).astype(bool)]

    @cached_property
    def _device_map(self) -> pd.DataFrame:
        """Which GPU is which process's CUDA device? Columns gpu, device, pid (NaN where the export does not tell).

        Exports from 2025 on say it for each process; before, for the machine as a whole.
        """
        sources = (("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"), ("TARGET_INFO_GPU", "id", "cuDevice"))
        for table, gpu, device in sources:
            if {gpu, device} <= self.columns(table):
                pid = self.column(table, "pid")
                found = self.sql(f"SELECT {gpu} AS gpu, {device} AS device, {pid} AS pid FROM {table}")
                found = found.apply(pd.to_numeric, errors="coerce")
                found = found[found["gpu"].between(0, MOST_GPUS) & found["device"].between(0, MOST_GPUS)]
                if len(found):
                    return found
        return pd.DataFrame(columns=["gpu", "device", "pid"])

    def _activity(self, table: str, columns: dict[str, str]) -> pd.DataFrame:
        """Rows of a GPU activity table, each with its launch call where the report holds it; ``columns``: SQL."""
        columns = {**columns, "correlation": self.column(table, "correlationId")}
        place = [f"coalesce({self.column(table, number)}, 0)" for number in ("deviceId", "streamId")]
        asked = ["start - :origin", '"end" - :origin', *place, "globalPid >> 24", *_perhaps(columns.values())]
        whole = ["start", "end", "device", "stream", "process"]
        found = self._frame(table, self._numbers(table, asked, sqlite.TIMED), whole, [*columns])
        rows = self.rows(f"SELECT count(*) FROM {table}")[0][0] if self.has(table) else 0
        if rows > len(found):
            self._note(
                f"{rows - len(found)} rows of {table} have no times, or end before they begin; they were left out"
            )
        start, end = (found[edge].to_numpy() for edge in ("start", "end"))
        again = np.append(False, (start[1:] == start[:-1]) & (end[1:] == end[:-1]))[: len(found)]  # they are in order
        beside = found[again | np.append(again[1:], False)[: len(found)]]
        twice = beside.duplicated(whole) & (beside["end"] > beside["start"])
        if twice.any():
            self._note(
                f"{twice.sum()} rows of {table} repeat another's stream and times to the nanosecond: sums may be high"
            )
        calls = self._launch_calls(found["process"], found.pop("correlation"))
        for name, column in zip(("api_start", "api_end", "api_thread"), calls, strict=False):
            found[name] = _series(column)
        found["call"] = calls[3]
        found["gpu"] = self.gpu_numbers(found)
        return found

    @cached_property
    def _calls_made(self) -> np.ndarray:
        """The CUDA API calls as rows of whole numbers: start, end, thread, id of the name, correlation id."""
        if self.has(sqlite.CALLS):  # at the end of capture a thread may be in a call, and in another within that
            query = f'SELECT count(*), count(DISTINCT globalTid) FROM {sqlite.CALLS} WHERE "end" IS NULL'
            ((endless, threads),) = self.rows(query)
            if endless > 2 * threads:
                raise self.damaged(sqlite.CALLS, "calls without an end, and others of their threads after them")
        return self._numbers(sqlite.CALLS, [*_CALLED, *_perhaps(["nameId", "correlationId"])], self.calls)

    @cached_property
    def _launches_by_process(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Process → correlation ids, in order, and the row (in ``_calls_made``) of the first call that has each."""
        start, _, thread, _, correlation = self._calls_made.T
        process = thread >> 24
        order = np.lexsort((start, correlation, process))
        order = order[(correlation[order] != 0) & (correlation[order] != MISSING)]
        process, correlation = process[order], correlation[order]
        first = np.append(True, (np.diff(process) != 0) | (np.diff(correlation) != 0))[: len(order)]
        order, process, correlation = order[first], process[first], correlation[first]
        processes, at = np.unique(process, return_index=True)
        parts = zip(np.split(correlation, at[1:]), np.split(order, at[1:]), strict=True)
        return dict(zip(processes.tolist(), parts, strict=False))

    def _launch_calls(self, process: pd.Series, correlation: pd.Series) -> np.ndarray:
        """Which call launched which work on the GPU? Its start, end, thread (MISSING: in no row) and row (then -1).

        ``sums`` has the same rule in SQL: the two share a correlation id, the first such call of the process counts.
        """
        found = np.full((4, len(process)), MISSING)
        found[3] = -1
        asked = correlation.fillna(0).to_numpy(dtype=np.int64)
        for one, (ids, calls) in self._launches_by_process.items():
            rows = np.flatnonzero(process == one)
            at = np.minimum(np.searchsorted(ids, asked[rows]), len(ids) - 1)
            rows, at = rows[ids[at] == asked[rows]], at[ids[at] == asked[rows]]
            call = calls[at]
            start, end, thread = (column[call] for column in self._calls_made.T[:3])
            for column, values in zip(found, (start, np.maximum(start, end), thread, call), strict=True):
                column[rows] = values  # one still open at the end of capture ends there
        return found

    def gpu_numbers(self, work: pd.DataFrame) -> pd.Series:
        """The card of each row (device, process): by the export's map of devices to cards, else CUDA's number."""
        gpu, mapped = work["device"].copy(), self._device_map
        for process in work["process"].unique() if len(mapped) else ():
            pid = int(process) & 0xFFFFFF
            own = mapped[mapped["pid"] == pid]
            own = own if len(own) else mapped[mapped["pid"].isna()]
            known = own.drop_duplicates("device").set_index("device")["gpu"]
            rows = work["process"] == process
            gpu[rows] = work.loc[rows, "device"].map(known).fillna(work.loc[rows, "device"]).astype("int64")
        return gpu

    def _calls(self, table: str, name: str = "nameId") -> pd.DataFrame:
        rows = self._numbers(table, [*_CALLED, *_perhaps([name])])
        return self._called(self._frame(table, rows, ["start", "end", "thread"], ["name"]))

    def _called(self, calls: pd.DataFrame) -> pd.DataFrame:
        calls.insert(3, "process", np.right_shift(calls["thread"], 24))
        calls["name"] = self._text(calls["name"]).fillna(UNNAMED)
        return calls

    def _numbers(self, table: str, columns: Sequence[str], where: str = "true") -> np.ndarray:
        """Whole numbers of a table's rows, shape (rows, columns), in order of their times.

        ``columns``: SQL, the first two the times. They are read as they come: a million rows as Python's own objects
        would take time and memory. A column that holds one number in all rows, as a process or a card often does, is
        asked for once.
        """
        if not self.has(table):
            return np.empty((0, len(columns)), dtype=np.int64)
        rows = f"FROM {table} WHERE {where}"
        first = self.rows(f"SELECT {', '.join(columns)} {rows} LIMIT {FEW}", self._about)
        if not first:
            return np.empty((0, len(columns)), dtype=np.int64)
        same = {at: min(values) for at, values in enumerate(map(set, zip(*first, strict=True))) if len(values) == 1}
        while same:
            asked = [f"{columns[at]} <> {number}" for at, number in same.items()]
            query = f"SELECT {', '.join(asked)} {rows} AND ({' OR '.join(asked)}) LIMIT 1"
            if not (differs := self.rows(query, self._about)):
                break
            same = {at: number for (at, number), other in zip(same.items(), differs[0], strict=True) if not other}
        varying = [at for at in range(len(columns)) if at not in same]
        read = self._read(table, [columns[at] for at in varying] or ["0"], where, "what is no whole number")
        found = np.empty((len(columns), read.shape[1]), dtype=np.int64)
        found[varying] = read[: len(varying)]
        for at, number in same.items():
            found[at] = number
        start, end = found[:2]
        ordered = (start[1:] > start[:-1]) | (start[1:] == start[:-1]) & (end[1:] >= end[:-1])
        return found.T if ordered.all() else found[:, np.lexsort((end, start))].T

    @property
    def _about(self) -> dict[str, int]:
        """What queries ask with."""
        return {"origin": self.origin, "last": self.reach[1] if self.spans else 0}

    def _read(self, table: str, columns: Sequence[str], where: str, otherwise: str) -> np.ndarray:
        """The whole numbers of a table's rows as they come, shape (columns, rows); ``otherwise``: else it holds that.

        They go from SQLite to numpy as bytes: a million rows as Python's own objects would take time and memory.
        """
        rows = f"FROM {table} WHERE {where}"
        try:
            numbers = np.frombuffer(self.packed(columns, rows, self._about), dtype=np.int64)
        except ReportError:  # a value is no such number: what is it?
            with self._answers():
                read = self._db.execute(f"SELECT {', '.join(columns)} {rows}", self._about)
                try:  # what is read has been checked, but for ends long before any start
                    numbers = np.fromiter(chain.from_iterable(read), dtype=np.int64)
                except OverflowError as error:
                    raise self.damaged(table, "a time that lies months away from the others") from error
                except (TypeError, ValueError) as error:
                    raise self.damaged(table, otherwise) from error
        return np.ascontiguousarray(numbers.reshape(-1, len(columns)).T)

    def _frame(
        self, table: str, rows: np.ndarray, whole: Sequence[str], perhaps: Sequence[str] = (), copy: bool = True
    ) -> pd.DataFrame:
        frame = pd.DataFrame(dict(zip(whole, rows.T, strict=False)), copy=copy)
        for name, column in zip(perhaps, rows.T[len(whole) :], strict=True):
            frame[name] = _series(column)
        if (frame["end"] < frame["start"]).any():
            self._note(f"some rows of {table} end before they begin; they count as instants")
            frame["end"] = frame[["start", "end"]].max(axis=1)
        if float((frame["end"] - frame["start"]).to_numpy().sum(dtype=np.float64)) > 2**62:
            raise self.damaged(table, "times that no sum can hold")
        return frame

    def _text(self, ids: pd.Series) -> pd.Series:
        """The texts of string ids; missing where there is no such string."""
        codes, different = pd.factorize(ids)
        texts = self._strings.reindex(different).to_numpy(dtype=object)
        return _objects([text if isinstance(text, str) else None for text in texts], codes).set_axis(ids.index)

    def _meta(self, name: str) -> str | None:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):  # the second until 2023
            if {"name", "value"} <= self.columns(table):
                rows = self.rows(f"SELECT value FROM {table} WHERE name = ?", (name,))
                if rows and rows[0][0]:
                    return str(rows[0][0])
        return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def rows_where(table: pd.DataFrame, rows: pd.Series | np.ndarray) -> pd.DataFrame:
    """The rows of a table that are True; all of them, as of a window that is the whole capture, without a copy."""
    return table.copy(deep=DEEP) if rows.all() else table[rows]


def computing(kernels: pd.DataFrame) -> pd.DataFrame:
    """The kernels without those that only communicate, which may wait for long where no work is; all if no others."""
    waiting = {name for name in kernels["name"].unique() if kernel_names.is_collective(name)}
    return kernels[~kernels["name"].isin(waiting)] if waiting and len(waiting) < kernels["name"].nunique() else kernels


def with_the_work(work: pd.DataFrame, column: str) -> int:
    """The GPU (or other number in ``column``) with the work: the lowest with a STRAY part of the busiest one's time."""
    lasted = (work["end"] - work["start"]).groupby(work[column]).sum()
    return int(lasted[lasted >= STRAY * lasted.max()].index.min())


def remembered(question: Callable) -> Callable:
    """Answer a question about a report, a window (default: training) and more only once; tables are copied."""

    @wraps(question)
    def answer(report: Report, window: Window | None = None, *more: object) -> object:
        window = window or report.window()
        key = (question, window, window.thread, window.process, window.gpu, *more)
        if key not in report.answers:
            report.answers[key] = question(report, window, *more)
        found = report.answers[key]
        return found.copy(deep=DEEP) if isinstance(found, pd.DataFrame) else found

    return answer


def open_report(path: str | Path) -> Report:
    """Open a report: ``.nsys-rep``, ``.sqlite``, ``.sqlite.xz``, or torch.profiler's trace (``.json``, ``.json.gz``).

    ``close()`` or ``with`` lets go of it. A ``.nsys-rep`` is exported by nsys first, once, into the ``.sqlite`` beside
    it. Its tables are attributes
    (``kernels``, ``copies``, ``api``, ``ranges``, …): DataFrames, times in nanoseconds on the report's own clock.
    ReportError, in one sentence, where the file is missing, damaged or no report, or where nsys is needed and absent.

    >>> import stepbudget
    >>> report = stepbudget.open_report("main_baseline_nvtx.sqlite.xz")
    >>> report.gpu, report.nsys_version
    ('NVIDIA H200', '2025.3.2.0')
    >>> window = report.window("forward", occurrence=2)
    >>> round(window.duration_ms, 1), len(report.kernels)
    (1.2, 3365)
    """
    return Report(path)


def _cut(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _series(column: np.ndarray) -> pd.Series:
    """A column of whole numbers as pandas holds it best: with gaps as float64, else as it is; no type without rows."""
    gaps = column == MISSING
    if not len(column):
        return pd.Series(dtype=object)
    return pd.Series(np.where(gaps, np.nan, column.astype(np.float64)) if gaps.any() else column)


def _objects(different: Sequence[object], codes: np.ndarray) -> pd.Series:
    """The objects with these numbers, -1: None."""
    return pd.Series(np.array([*different, None], dtype=object)[codes], dtype=object)


def _perhaps(columns: Iterable[str]) -> list[str]:
    """SQL for columns that may have gaps."""
    return [f"coalesce({column}, {MISSING})" for column in columns]
