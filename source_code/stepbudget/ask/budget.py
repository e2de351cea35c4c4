"""Where does the time go? Every nanosecond of a window has one cause, and the causes add up to the window.

While the GPU works, the cause is its work: Tensor Core kernels, other kernels, kernels of which one cannot tell, whole
CUDA graphs, communication between GPUs (so far as none of these hides it), copies (where several run at once, the first
of these). Each gap between is laid to what held up the work that ends it. Up to the call that launched that work, the
cause is what the CPU was doing; from the call on, the launch. The first of these that holds at a moment is its cause:

1. *profiler*: Nsight Systems was busy with itself in the launching threads;
2. *pageable copy*: a thread was inside the call of a copy from or to pageable memory, which stages it, or in the
   stream synchronisation that follows it at once (the copies of a helper thread: only while the main thread slept);
3. *launch overhead*: the work had been launched and had not started (no longer than LAUNCH_LIMIT_US after the call,
   unless it is a node of a CUDA graph), or a thread was inside a call that launches, records or queries;
4. *synchronisation*: a thread was inside a call that waits for the GPU, or that copies a result to the host
   (``.item()``: at most copies.RESULT_BYTES, or ``.cpu()`` of more, where it mostly waited for kernels: copies.waits),
   from whatever memory;
5. *CUDA set-up*: a thread was inside another CUDA call (allocation, loading of modules), or for longer than LOADING_MS
   in one that otherwise launches or records: a program's first such calls create its context;
6. *communication on the CPU*: a thread was inside a call of MPI, and in no CUDA call within it;
7. *loader*: the main thread was in an NVTX range of the loader (``iterations.loaders``), or it slept until a worker's
   batch arrived;
8. *pageable copy*, *synchronisation* once more: if a gap begins during such a call, the call also gets the time after
   it, for as long as it had run before the gap: without it, the launch would have come that much earlier;
9. *optimizer*: the main thread was in an NVTX range named after the optimizer;
10. *Python*: a thread that launches was running, outside any CUDA call: the interpreter, or PyTorch's own code (where
    the operating system was not traced: for no longer than BRIEF_MS between two of its calls or ranges);
11. *blocked*: the main thread slept in the operating system, and nothing says for whom;
12. *unexplained*: the report does not tell.

Where work may have run that left no rows (stepbudget.ask.missing), nobody knows whether the GPU was idle: that time is
unexplained. A cause that the tables cannot tell is ``untold``: its 0 means "not known", and in JSON it is null.

What removing a cause can gain is another question: stepbudget.ask.predict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from stepbudget import intervals, kernel_names
from stepbudget.ask import copies, iterations, tensor_cores, threads
from stepbudget.ask.missing import Missing, missing
from stepbudget.ask.phases import named, phase_ranges
from stepbudget.ask.threads import WAITING_CALLS
from stepbudget.ask.work import work_of
from stepbudget.coded import coded
from stepbudget.report import Report, remembered, rows_where
from stepbudget.window import Window

CAUSES = {
    "tensor_core_kernels": "Tensor Core kernels",
    "other_kernels": "other kernels",
    "unknown_kernels": "kernels, Tensor Cores unknown",
    "cuda_graph": "CUDA graphs, not looked into",
    "communication": "communication between GPUs",
    "copies": "copies",
    "loader": "waiting for the loader",
    "pageable_copy": "pageable copy",
    "synchronisation": "synchronisation",
    "launch_overhead": "launch overhead",
    "optimizer": "optimizer's CPU code",
    "python": "CPU code: Python, libraries",
    "cuda_setup": "CUDA set-up",
    "mpi": "communication on the CPU (MPI)",
    "os_wait": "blocked in the operating system",
    "profiler": "profiler",
    "unexplained": "unexplained",
}
# By which rule each is told, in words.
RULES = {
    "tensor_core_kernels": "kernels that use Tensor Cores, by their names or the sampled counter",
    "other_kernels": "kernels that use none, by their names or the sampled counter",
    "unknown_kernels": "kernels of which neither name nor counter tells",
    "cuda_graph": "graphs that were traced as a whole",
    "communication": "kernels named as a collective's, where nothing else ran",
    "copies": "copies and fills, where no kernel ran",
    "loader": "the main thread waited for a batch",
    "pageable_copy": "a copy from or to pageable memory held a thread",
    "synchronisation": "a thread was in a call that waits for the GPU",
    "launch_overhead": "work was being launched, and had not started",
    "optimizer": "the main thread was in a range named after the optimizer",
    "python": "a thread that launches ran, outside any CUDA call",
    "cuda_setup": "a thread was in a CUDA call that neither waits nor launches",
    "mpi": "a thread was in a call of MPI",
    "os_wait": "the main thread slept, and nothing says for whom",
    "profiler": "Nsight Systems was busy with itself",
    "unexplained": "no call, range or sample tells",
}
WORK = ("tensor_core_kernels", "other_kernels", "unknown_kernels", "cuda_graph", "communication", "copies")
IDLE = tuple(cause for cause in CAUSES if cause not in WORK)

PYTHON = re.compile(r"^(python|pt_|ipython|jupyter|torchrun|uv$)", re.IGNORECASE)  # programs that run Python
OPTIMIZER = re.compile(r"optimi[sz]er", re.I)

LAUNCHING_CALLS = (
    r"Launch|Async|^cu(da)?(Memset|Event|StreamWaitEvent|StreamIsCapturing|StreamGetCaptureInfo)|Query$|^cuda(Get|Peek|SetDevice)"
    r"|^cuKernelGet|^cuCtx|^cuOccupancy|^cudaOccupancy|^cuFuncGet|^cuTensorMapEncode"
)
COPYING_CALLS = r"^cu(da)?Memcpy"
GRAPH_LAUNCH = r"^cu(da)?GraphLaunch"
LOADING_MS = 1.0  # a call that launches or records takes microseconds: one so long creates a context or loads code
LAUNCH_LIMIT_US = 50  # a drained GPU starts a kernel some 5 µs after its call, a large CUDA graph in some 50
LEAST_SAMPLES = 10  # of a CPU, at some 1,000 a second
BRIEF_MS = 1.0  # without a trace of the operating system: a longer stretch outside CUDA may be sleep as well as work
LOST_MS = 10  # whole reports hold up to 4 ms of work of the GPU after the last traced one
UNSEEN = "work that left no rows may have run"
KINDS = {  # of work that left no rows → the causes that it would be
    "kernels": ("tensor_core_kernels", "other_kernels", "unknown_kernels", "communication"),
    "copies": ("copies",),
    "graphs": ("tensor_core_kernels", "other_kernels", "unknown_kernels", "cuda_graph", "communication"),
}
BY_CALLS = ("pageable_copy", "synchronisation", "launch_overhead", "optimizer", "python", "cuda_setup")
DELIVERIES = (
    "where no range names the loader, the main thread slept until shared memory arrived (connect, recvmsg, mmap)"
)
DELIVERY_MS = 5.0  # within it a batch that ended a wait is unpacked: its shared memory is received and mapped


@dataclass(frozen=True)
class Budget:
    """A window's time by cause."""

    window: Window
    device: int | None  # the GPU that it is about
    process: int | None
    spans: dict[str, np.ndarray]  # cause → when, in nanoseconds: arrays of shape (n, 2), no two overlap
    evidence: dict[str, str] = field(default_factory=dict)  # how a cause was told, where that is not plain
    held_ms: dict[str, float] = field(default_factory=dict)  # how long a cause held the program, GPU idle or not
    not_looked_at: tuple[str, ...] = ()  # what the report does not hold, and what could not be told without it
    started: int | None = None  # ns: until then the program started up (context, first code); None: not seen to
    program: str | None = None  # its name, where the report tells it
    missing: Missing | None = None  # work that left no rows
    untold: frozenset[str] = frozenset()  # causes that the report cannot tell: of these 0 means "not known"

    @cached_property
    def ns(self) -> dict[str, int]:
        """Nanoseconds of each cause; they add up to the window's length."""
        return {cause: intervals.total(self.spans[cause]) for cause in CAUSES}

    @cached_property
    def ms(self) -> dict[str, float]:
        """Milliseconds of each cause."""
        return {cause: ns / 1e6 for cause, ns in self.ns.items()}

    @property
    def fractions(self) -> dict[str, float]:
        """Share of the window for each cause; they add up to 1 (all 0 for a window without length)."""
        length = self.window.end - self.window.start
        return {cause: ns / length if length else 0.0 for cause, ns in self.ns.items()}

    def label(self, cause: str) -> str:
        """What a cause is called: CAUSES's words, but no Python where the program is known to be none."""
        is_other = cause == "python" and self.program and not PYTHON.search(self.program)
        return CAUSES[cause].partition(":")[0] if is_other else CAUSES[cause]

    @property
    def busy_fraction(self) -> float | None:
        """Share of the window in which the GPU did anything; None where work left no rows, so that nobody knows."""
        if self.missing and self.missing.kinds:
            return None
        return 1 - sum(self.fractions[cause] for cause in IDLE) if self.window.duration_ms else 0.0

    @property
    def idle_causes(self) -> tuple[str, ...]:
        """Those causes that stand for an idle GPU."""
        return IDLE

    @property
    def idle_ms(self) -> float:
        """Milliseconds in which the GPU did nothing."""
        return sum(ms for cause, ms in self.ms.items() if cause in IDLE)

    def table(self) -> pd.DataFrame:
        """One row a cause that occurs: cause, ms, share of the window, share of the GPU's idle time (NaN for work)."""
        idle_ms = self.idle_ms
        rows = [
            (self.label(cause), ms, self.fractions[cause], ms / idle_ms if cause in IDLE else np.nan)
            for cause, ms in self.ms.items()
            if ms > 0
        ]
        return pd.DataFrame(rows, columns=["cause", "ms", "share", "share_of_idle"])

    def over(self, windows: list[Window]) -> pd.DataFrame:
        """The same budget for parts of the window, such as its steps: a row each, milliseconds of each cause."""
        starts, ends = ([getattr(window, edge) for window in windows] for edge in ("start", "end"))
        columns = {cause: intervals.covered(spans, starts, ends) / 1e6 for cause, spans in self.spans.items()}
        return pd.DataFrame(columns, index=[window.name for window in windows])


def budget(report: Report, window: Window | None = None, device: int | None = None) -> Budget:
    """The budget of a window (default: the training range, else the whole capture), for one GPU.

    ``device`` is the number of the card; which one and which process it is without is ``threads.about``'s choice, and
    ``window`` of the answer tells. What was found once is kept as long as the report is.

    Of the answer, ``ns`` and ``ms`` are nanoseconds and milliseconds by cause (the keys of CAUSES), ``fractions`` their
    shares, which add up to 1; ``table()`` has the causes that occur. ReportError where the report is damaged.
    """
    return _find(report, threads.about(report, window or report.window(), device))


@dataclass(frozen=True)
class Claim:
    """What would explain an idle GPU."""

    cause: str
    spans: np.ndarray  # when it would
    held: np.ndarray | None = None  # when the cause held the program, GPU idle or not
    evidence: str = ""  # how it was told, where that is not plain


@remembered
def _find(report: Report, window: Window) -> Budget:
    process, device = window.process, window.gpu
    spans = _work(report, window, device)
    busy = intervals.clip(_union(spans.values()), window.start, window.end)
    rest = intervals.complement(busy, window.start, window.end)
    lost = _lost(report, window)
    unseen = missing(report, window)
    after = intervals.clip(rest, lost[0], window.end) if lost else intervals.EMPTY  # idle or not: nobody knows
    after = _union([after, intervals.intersect(rest, unseen.spans)])
    rest = intervals.subtract(rest, after)
    evidence: dict[str, str] = {}
    held: dict[str, np.ndarray] = {}
    for claim in _claims(report, window, device, rest):
        explained = intervals.intersect(rest, claim.spans)
        spans[claim.cause] = _union([spans.get(claim.cause, intervals.EMPTY), explained])
        rest = intervals.subtract(rest, explained)
        if claim.held is not None:
            held[claim.cause] = claim.held
        if claim.evidence:
            evidence[claim.cause] = claim.evidence
    spans["unexplained"] = _union([spans.get("unexplained", intervals.EMPTY), rest, after])
    if len(unseen.spans):
        evidence["unexplained"] = UNSEEN
    for cause in IDLE:
        if len(spans.get(cause, ())):
            evidence[cause] = ". ".join(filter(None, [evidence.get(cause), where(report, window, spans[cause])]))
    spans = {cause: spans.get(cause, intervals.EMPTY) for cause in CAUSES}
    held_ms = {cause: intervals.total(intervals.clip(t, window.start, window.end)) / 1e6 for cause, t in held.items()}
    known = _started(report, window), report.program(process)
    not_looked_at = tuple(_missing(report, lost, unseen))
    untold = frozenset(cause for cause in _untold(report, unseen) if not len(spans[cause]))
    return Budget(window, device, process, spans, evidence, held_ms, not_looked_at, *known, unseen, untold)


def _untold(report: Report, unseen: Missing) -> Iterator[str]:
    """The causes that the report's tables do not tell, or not in full."""
    if unseen.kinds:
        yield from (cause for cause in IDLE if cause != "unexplained")
    yield from (cause for kind in unseen.kinds for cause in KINDS[kind])
    yield from BY_CALLS if report.api.empty else ()
    yield from ("optimizer",) if report.ranges.empty else ()
    yield from ("loader",) if report.ranges.empty and report.os_calls.empty else ()  # else told by its deliveries
    yield from ("os_wait",) if report.os_calls.empty and report.scheduled.empty else ()


def _started(report: Report, window: Window) -> int | None:
    """When the last of the long CUDA calls that no work of the process came before was over (ns), if within the window.

    Such calls create the context and load code; a capture that begins later in the program holds none.
    """
    work = (report.kernels, report.graphs, report.copies, report.memsets)
    own = [table[table["process"] == window.process] for table in work]
    first = min((int(table["start"].min()) for table in own if len(table)), default=None)
    drivers = {*threads.launching_threads(report, window), threads.main_thread(report, window)}
    calls = report.api[report.api["thread"].isin(drivers)]  # a loader's thread may pin memory at any time
    if first is None or first < window.start or calls.empty:
        return None
    calls = calls.assign(end=calls["end"].clip(upper=first))  # a copy that has begun is staged, and nothing starts up
    calls = calls[(calls["start"] < first) & (calls["end"] - calls["start"] > 1e6 * LOADING_MS)]
    calls = calls[~_named(calls, WAITING_CALLS.search) & ~_named(calls, r"Profiler")]
    return int(calls["end"].max()) if len(calls) else None


def where(report: Report, window: Window, spans: np.ndarray) -> str:
    """In words: the phase, the CUDA call and the system call of the main thread that fill most of the times.

    Each is named where it fills a tenth of the times or more, and so is the function that its CPU was sampled in most
    often, of at least LEAST_SAMPLES; empty where none does.
    """
    listed = []
    whole = intervals.total(spans)
    for what, (names, ran, owner) in _ran(report, window).items():
        filled = np.zeros(len(names), dtype=np.int64)
        np.add.at(filled, owner, intervals.covered(spans, *ran.T))
        ns = int(filled.max(initial=0))
        if ns >= 0.1 * whole > 0:
            listed.append(f"{100 * ns / whole:.0f} % {what} {names[filled.argmax()]}")
    samples = _cpu_samples(report, window)
    times = samples["time"].to_numpy(dtype=np.int64)
    inside = samples[intervals.covered(spans, times, times + 1) > 0]
    if len(inside) >= LEAST_SAMPLES:
        (function, module), count = next(inside.groupby(["function", "module"]).size().nlargest(1).items())
        if count >= 0.1 * len(inside):
            where_of = module.rpartition("/")[2]
            share = f"{100 * count / len(inside):.0f} % of {len(inside):,} CPU samples"
            listed.append(f"{share} in {function} ({where_of})")
    return ", ".join(listed)


def told(report: Report, found: Budget) -> dict[str, str]:
    """How each cause that occurs was told, in words: by its own evidence, else by its rule; none is empty."""
    answers = {}
    for cause, spans in found.spans.items():
        if len(spans):
            outside = cause in IDLE and _outside(report, found.window, spans)
            answers[cause] = found.evidence.get(cause) or f"{RULES[cause]}{outside or ''}"
    return answers


def _outside(report: Report, window: Window, spans: np.ndarray) -> str:
    """In words: how much of the times lies outside any phase of the main thread; empty where it has no phases."""
    _, phases, _ = _ran(report, window)["in phase"]
    inside = intervals.from_edges(*phases.T)
    share = 1 - intervals.total(intervals.intersect(spans, inside)) / max(1, intervals.total(spans))
    return f"; {100 * share:.0f} % outside any phase" if len(phases) and share >= 0.1 else ""


@remembered
def _ran(report: Report, window: Window) -> dict[str, tuple[list[str], np.ndarray, np.ndarray]]:
    """What the main thread was in, and when: its phases, CUDA calls and waits in the operating system, by name.

    Of each: the names, the times (no two of one name overlap), and the number of each time's name.
    """
    main = threads.main_thread(report, window)
    found = {}
    tables = {"in phase": phase_ranges(report, window), "in": report.api, "asleep in": report.os_calls}
    for what, table in tables.items():
        own = threads.within(table[table["thread"] == main], window)
        own = own[threads.may_sleep(own)] if table is report.os_calls else own
        numbers, names = coded(own["name"])
        found[what] = (names, *intervals.union_of_each(numbers, own["start"], own["end"]))
    return found


@remembered
def _cpu_samples(report: Report, window: Window) -> pd.DataFrame:
    """What the main thread's CPU was sampled in, in the window."""
    return report.cpu_samples(threads.main_thread(report, window) or 0, window)


def before_graphs(report: Report, window: Window, within_one: bool) -> np.ndarray:
    """The gaps of a window's GPU that end with work of a CUDA graph; ``within_one``: only those inside a graph.

    Inside means after the first work of the launch: the next node waits for those before it, and not for the CPU.
    """
    graphs, kernels = (work_of(table, window.gpu) for table in (report.graphs, report.kernels))
    nodes = kernels[_nodes(kernels)]
    later = nodes[nodes.duplicated("call") & (nodes["call"] >= 0)]
    tables = [later] if within_one else [graphs, nodes]
    starts = np.concatenate([table["start"].to_numpy(dtype=np.int64) for table in tables])
    work = [work_of(table, window.gpu) for table in (report.kernels, report.graphs, report.copies, report.memsets)]
    gaps = intervals.complement(intervals.union(*work), window.start, window.end)
    return gaps[np.isin(gaps[:, 1], starts)]


def graph_share(report: Report, window: Window) -> float:
    """How much of the time of a window's kernels is CUDA graphs', between 0 and 1; 0 without either."""
    kernels, graphs = (threads.within(work_of(table, window.gpu), window) for table in (report.kernels, report.graphs))
    own = threads.spans(pd.concat([graphs, kernels[_nodes(kernels)]]), window)
    return intervals.total(own) / (intervals.total(_union([own, threads.spans(kernels, window)])) or 1)


def causes_of_kernels(report: Report, window: Window, names: Iterable[str]) -> dict[str, str]:
    """Of each (demangled) kernel name the cause that its time is: by Tensor Core use, or communication."""
    known = tensor_cores.verdicts(report, window).set_index("kernel")["tensor_core"]
    causes = {
        kernel_names.YES: "tensor_core_kernels",
        kernel_names.NO: "other_kernels",
        kernel_names.UNKNOWN: "unknown_kernels",
    }
    # A kernel that began before the window is told by its name alone.
    return {
        name: "communication"
        if kernel_names.is_collective(name)
        else causes[known.get(name) or kernel_names.by_name(name)]
        for name in names
    }


def _work(report: Report, window: Window, device: int | None) -> dict[str, np.ndarray]:
    """What the GPU does, by kind of work; of several at once, the first kind counts."""
    kernels = work_of(report.kernels, device)
    numbers, names = coded(kernels["name"])
    causes = [*causes_of_kernels(report, window, names).values()]
    own = {cause: kernels[np.isin(numbers, [at for at, one in enumerate(causes) if one == cause])] for cause in WORK}
    kinds = {
        "tensor_core_kernels": [own["tensor_core_kernels"]],
        "other_kernels": [own["other_kernels"]],
        "unknown_kernels": [own["unknown_kernels"]],
        "cuda_graph": [work_of(report.graphs, device)],
        "communication": [own["communication"]],
        "copies": [work_of(report.copies, device), work_of(report.memsets, device)],
    }
    spans, taken = {}, intervals.EMPTY
    for kind, tables in kinds.items():
        times = intervals.clip(intervals.union(*tables), window.start, window.end)
        spans[kind] = intervals.subtract(times, taken)
        taken = _union([taken, times])
    return spans


def _claims(report: Report, window: Window, device: int | None, gaps: np.ndarray) -> Iterator[Claim]:
    """What would explain the gaps, in order: at each moment the first claim that holds is taken."""
    process, main = window.process, threads.main_thread(report, window)
    launching = threads.launching_threads(report, window)
    drivers = sorted({*launching, *([] if main is None else [main])})
    calls = rows_where(report.api, report.api["thread"].isin(drivers))
    blocking = _named(calls, WAITING_CALLS.search)
    queueing = _named(calls, LAUNCHING_CALLS) & ~blocking
    loading = queueing & (calls["end"] - calls["start"] > 1e6 * LOADING_MS) & ~_named(calls, GRAPH_LAUNCH)
    pageable, after, results = _pageable(report, process)
    held = [pageable[["api_start", "api_end", "api_thread"]].set_axis(["start", "end", "thread"], axis=1)]
    held += [after[["start", "end"]].assign(thread=pageable["api_thread"]).dropna()]
    copying, following, staged = (
        _holding(report, table, drivers, main, window)
        for table in (*held, held[0].assign(end=after["end"].fillna(held[0]["end"])))
    )
    result = pd.Series(asks_for(calls, results), index=calls.index)
    waits = calls[(blocking | result) & ~asks_for(calls, pageable) & ~calls.index.isin(after["call"])]
    waited = intervals.union(waits)
    unclear = calls[_unclear(report, calls) & ~blocking]  # pageable memory would hold the thread, pinned would not
    queueing &= ~calls.index.isin(unclear.index)
    loading &= queueing
    next_work = _next_work(report, device, gaps)

    yield Claim("profiler", _profiler(report, window, drivers, calls))
    yield Claim("pageable_copy", copying, held=_unhidden(staged, waits, gaps, window))
    yield Claim("pageable_copy", following)
    yield Claim("synchronisation", intervals.union(calls[result]))
    yield Claim("pageable_copy", _until_start(next_work[next_work["pageable"] & next_work["thread"].isin(drivers)]))
    yield Claim("unexplained", intervals.union(unclear))
    yield Claim("cuda_setup", intervals.union(calls[loading]))
    yield Claim("launch_overhead", _until_start(next_work[~next_work["pageable"]]))
    yield Claim("launch_overhead", intervals.union(calls[queueing]))
    yield Claim("synchronisation", waited, held=waited)
    yield Claim("cuda_setup", intervals.union(calls[~queueing & ~blocking]))
    talking = intervals.union(report.mpi[report.mpi["thread"].isin(drivers)])
    yield Claim("mpi", talking, held=talking)

    ranges = phase_ranges(report, window)
    ranges = ranges[ranges["thread"] == main] if main is not None else ranges.iloc[:0]
    loader = iterations.loaders(report, ranges)
    waiting = _innermost(ranges, loader, window)
    delivered = intervals.EMPTY if main is None else _deliveries(report, main, process, window)
    if loader.any():  # elsewhere: the long waits in no phase, or in none but what holds steps, such as a test
        delivered = intervals.subtract(
            delivered, _innermost(ranges, ~_named(ranges, iterations.CONTAINER.search), window)
        )
        delivered = delivered[delivered[:, 1] - delivered[:, 0] > 1e6 * DELIVERY_MS]
    yield Claim("loader", _union([waiting, delivered]), _union([waiting, delivered]), DELIVERIES * bool(len(delivered)))
    asleep = _asleep(report, main, launching, window)
    known = set(calls["thread"])  # a thread without a recorded call may have been in one at any time
    running = _running(report, [thread for thread in drivers if thread in known], calls, window)
    running = intervals.subtract(running, asleep)
    yield Claim("pageable_copy", intervals.intersect(_aftermath(staged, gaps), running))
    yield Claim("synchronisation", intervals.intersect(_aftermath(waited, gaps), running))
    if main in known:
        yield Claim("optimizer", _innermost(ranges, _named(ranges, OPTIMIZER.search), window))
    yield Claim("python", running)
    yield Claim("os_wait", asleep)


def _unhidden(held: np.ndarray, waits: pd.DataFrame, gaps: np.ndarray, window: Window) -> np.ndarray:
    """Those of the holds after which the GPU ran out of work before the program waited for it.

    Behind all others it went on working until the program waited for it: without them that wait is longer by as much.
    """
    starts = np.append(np.sort(waits["start"].to_numpy(dtype=np.int64)), window.end)
    until = starts[np.minimum(np.searchsorted(starts, held[:, 1]), len(starts) - 1)]
    return held[intervals.covered(gaps, held[:, 0], np.maximum(until, held[:, 1])) > 0]


def _unclear(report: Report, calls: pd.DataFrame) -> pd.Series:
    """Which calls ask for a copy of which no row tells, or none the kind of memory?"""
    table = copies.with_memory(report, report.copies)
    clear = table.loc[table["host_memory"] != "unknown", "call"]
    return _named(calls, COPYING_CALLS) & ~calls.index.isin(clear)


def _holding(report: Report, calls: pd.DataFrame, drivers: list[int], main: int | None, window: Window) -> np.ndarray:
    """When do calls hold the program? Those of another thread only while the main thread sleeps: else nobody waits."""
    own = calls["thread"].isin(drivers)
    theirs = intervals.union(calls[~own])
    asleep = threads.waiting(report, main, window) if len(theirs) and main is not None else intervals.EMPTY
    return _union([intervals.union(calls[own]), intervals.intersect(theirs, asleep)])


def _next_work(report: Report, device: int | None, gaps: np.ndarray) -> pd.DataFrame:
    """For each gap the work that ends it, and that work's call.

    Columns: gap_start, gap_end, call_start, call_end, thread (of the call), pageable (a copy of such
    memory), node (of a CUDA graph).
    """
    found = copies.with_memory(report, work_of(report.copies, device))
    columns = ["start", "api_start", "api_end", "api_thread"]
    tables = [work_of(table, device) for table in (report.kernels, report.graphs, report.memsets)]
    work = [table[columns].assign(pageable=False, node=_nodes(table)) for table in tables]
    pageable = (found["host_memory"] == "pageable") & ~copies.brings_result(found)
    work.append(found[columns].assign(pageable=pageable, node=False))
    work = pd.concat([table for table in work if len(table)] or work[:1])
    if not len(work) or not len(gaps):
        empty = pd.DataFrame(columns=["gap_start", "gap_end", "call_start", "call_end", "thread", "pageable", "node"])
        return empty.astype({"pageable": bool, "node": bool})
    work = work.sort_values("start", kind="stable")
    at = np.searchsorted(work["start"].to_numpy(), gaps[:, 1], side="left")
    known = at < len(work)
    follows = work.iloc[at[known]].reset_index(drop=True)
    result = pd.DataFrame({"gap_start": gaps[known, 0], "gap_end": gaps[known, 1]})
    result["call_start"], result["call_end"] = follows["api_start"].astype(float), follows["api_end"].astype(float)
    result["thread"] = follows["api_thread"]
    result[["pageable", "node"]] = follows[["pageable", "node"]].astype(bool)
    # The work that begins exactly where the gap ends; behind a window's end, later work ended nothing.
    return result[follows["start"].to_numpy() == result["gap_end"]].dropna()


def _until_start(work: pd.DataFrame) -> np.ndarray:
    """From the call to the start of the work, as far as it lies in the gap and within LAUNCH_LIMIT_US of the call.

    A node of a CUDA graph waits for the nodes before it, long after the graph's one call: there is no such limit.
    """
    start = np.maximum(work["gap_start"], work["call_start"])
    limit = np.maximum(work["call_end"], work["gap_start"]) + 1000 * LAUNCH_LIMIT_US
    end = np.minimum(work["gap_end"], np.maximum(limit, start)).where(~work["node"], work["gap_end"])
    return intervals.from_edges(start, np.maximum(start, end))


def _nodes(table: pd.DataFrame) -> pd.Series | bool:
    return pd.to_numeric(table["graph_node"]).fillna(0) > 0 if "graph_node" in table else False


def _pageable(report: Report, process: int | None) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The process's copies from or to pageable memory whose call is known, and the wait after each.

    Those that only bring a result (``.item()``) or wait for kernels come apart, as the third: they are waits, whatever
    they copy. Of one call's copies the first stands for all; those of a CUDA graph are no call's.
    """
    table = copies.with_memory(report, report.copies[report.copies["process"] == process])
    table = table[(table["host_memory"] == "pageable") & table["api_start"].notna()]
    table = table[copies.made_by_call(report, table)]
    results = copies.waits(report, table)
    return table[~results], copies.wait_after(report, table[~results]), table[results]


def asks_for(calls: pd.DataFrame, work: pd.DataFrame) -> np.ndarray:
    """Which of the calls are those that asked for the work?"""
    return calls.index.isin(work["call"])


def _aftermath(held: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The stretch of a gap after a call that it began in: as long as the call had held the thread while the GPU worked.

    ``held``: when calls held a thread, each with what follows it at once.
    """
    if not len(gaps) or not len(held):
        return intervals.EMPTY
    at = np.searchsorted(held[:, 0], gaps[:, 0], side="right") - 1
    inside = (at >= 0) & (held[np.maximum(at, 0), 1] > gaps[:, 0])
    start, end = held[at[inside]].T
    gap_start, gap_end = gaps[inside].T
    idle = intervals.covered(gaps, start, gap_start)
    until = end + (gap_start - start) - idle
    return intervals.from_edges(end, np.maximum(end, np.minimum(gap_end, until)))


def _profiler(report: Report, window: Window, drivers: list[int], calls: pd.DataFrame) -> np.ndarray:
    own = report.overhead[report.overhead["thread"].isin(drivers)]
    control = _named(calls, r"^cu(da)?Profiler(Start|Stop|Initialize)")
    return _union([threads.spans(own, window), threads.spans(calls, window, control)])


def _innermost(ranges: pd.DataFrame, chosen: pd.Series, window: Window) -> np.ndarray:
    """When is the innermost range one of the chosen?"""
    if not chosen.any():
        return intervals.EMPTY
    edges, own = intervals.innermost(ranges["start"], ranges["end"], chosen)
    own = np.flatnonzero(own.astype(bool))  # None, where no range runs, is not chosen
    return intervals.clip(intervals.from_edges(edges[own], edges[own + 1]), window.start, window.end)


def _deliveries(report: Report, main: int, process: int | None, window: Window) -> np.ndarray:
    """Waits of the main thread that end as a batch arrives through shared memory: a PyTorch loader without a range.

    For each tensor of a batch a worker of PyTorch's loader opens a connection (connect), sends the handle of shared
    memory over it (recvmsg), and the receiver maps it (mmap): the main thread itself, or, with pinned memory, a thread
    that hands the batch on. (torch.multiprocessing's sharing strategy file_descriptor, the default on Linux.)
    """
    calls = report.os_calls
    calls = calls[calls["process"] == process]
    own = calls[
        (calls["thread"] == main) & _named(calls, r"^(poll|ppoll|select|epoll_wait|sem_\w*wait|pthread_cond_\w*wait)$")
    ]
    start, end = (own[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    until = end + round(1e6 * DELIVERY_MS)
    kept = np.ones(len(own), dtype=bool)
    for name in (r"^connect$", r"^recvmsg$", r"^mmap(64)?$"):
        at = np.sort(calls.loc[_named(calls, name), "start"].to_numpy(dtype=np.int64))
        kept &= np.searchsorted(at, until) > np.searchsorted(at, start)
    return intervals.clip(intervals.from_edges(start[kept], end[kept]), window.start, window.end)


def _asleep(report: Report, main: int | None, launching: list[int], window: Window) -> np.ndarray:
    """When does the main thread sleep in the operating system, and no other thread that launches runs?"""
    if main is None or (report.os_calls.empty and report.scheduled.empty):
        return intervals.EMPTY
    asleep = threads.waiting(report, main, window)
    for thread in launching:
        if thread != main and (seen := threads.seen(report, thread)):
            awake = intervals.complement(threads.waiting(report, thread, window), window.start, window.end)
            asleep = intervals.subtract(asleep, intervals.clip(awake, *seen))
    return asleep


def at_rest(report: Report, window: Window) -> np.ndarray:
    """When does the CPU of a window's process wait, for the GPU or in the operating system, and run nothing of its own?

    For the GPU: in a call that waits for it, or for longer than LOADING_MS in one that launches, as where its queue is
    full. All else is the program's own time, which others' being quicker does not shorten. Where neither calls into the
    operating system nor the scheduler's events were traced, nothing tells, and it may have waited all the time.
    """
    if report.os_calls.empty and report.scheduled.empty:
        return np.array([[window.start, window.end]], dtype=np.int64)
    main, launching = threads.main_thread(report, window), threads.launching_threads(report, window)
    calls = report.api[report.api["thread"].isin({*launching, main})]
    held = _named(calls, WAITING_CALLS.search) | (calls["end"] - calls["start"] > 1e6 * LOADING_MS)
    return _union([threads.spans(calls, window, held), _asleep(report, main, launching, window)])


def _running(report: Report, drivers: list[int], calls: pd.DataFrame, window: Window) -> np.ndarray:
    """When is a thread that launches known to run its own code?

    Where calls into the operating system or the scheduler's events were traced: from its first trace to its last. Where
    not: in the brief stretches between two of its traces, which are the edges of its CUDA calls and of its ranges.
    """
    if len(report.os_calls) or len(report.scheduled):
        return _union([intervals.clip(np.array([seen]), window.start, window.end)
                       for thread in drivers if (seen := threads.seen(report, thread))])  # fmt: skip
    parts = []
    for thread in drivers:
        own = [table.loc[table["thread"] == thread, ["start", "end"]] for table in (calls, report.ranges)]
        edges = np.concatenate([threads.within(table, window).to_numpy(dtype=np.int64).ravel() for table in own])
        edges = intervals.distinct(edges)
        brief = np.concatenate([[False], np.diff(edges) <= 1e6 * BRIEF_MS, [False]])[: len(edges) + 1]
        begins, ends = (edges[is_edge] for is_edge in (brief[1:] & ~brief[:-1], brief[:-1] & ~brief[1:]))
        parts.append(np.column_stack([begins, ends]))  # brief stretches that meet are one
    return intervals.clip(_union(parts), window.start, window.end)


def _lost(report: Report, window: Window) -> tuple[int, float] | None:
    """Where the last traced work of a GPU ends, and how many ms of work the counters saw later; None if next to none.

    Seen with JAX: kernels, calls and ranges end early, and the counters, which are read in the GPU, go on.
    """
    samples = report.counter("SMs Active", window)
    if len(samples) < 2 or samples["device"].nunique() > 1:
        return None
    work = (report.kernels, report.graphs, report.copies, report.memsets)
    last = max((int(table["end"].max()) for table in work if len(table)), default=window.start)
    active = ((samples["time"] > last) & (samples["value"] > 0)).sum()
    active_ms = active * samples["time"].diff().median() / 1e6
    return (max(last, window.start), active_ms) if active_ms > LOST_MS else None


def _missing(report: Report, lost: tuple[int, float] | None, unseen: Missing) -> Iterator[str]:
    """What a full answer would need and this report does not hold: first what the profiler itself said of it."""
    yield from (f"{report.said_by}{text}" for text in report.diagnostics)
    yield from unseen.said
    yield from report.unread
    if lost:
        yield f"{lost[1]:,.0f} ms of work that the GPU's counters saw (SMs Active) after the last work that was traced"
    if report.api.empty:
        yield "CUDA API calls (--trace cuda): what the CPU did while the GPU was idle"
    if report.ranges.empty:
        yield "NVTX ranges (--trace nvtx, and ranges in the program): phases, steps, the loader by name"
    if report.os_calls.empty and report.scheduled.empty:
        yield "operating system calls (--trace osrt): whether a thread slept or worked"
    if len(report.graphs):
        yield "the kernels inside CUDA graphs (--cuda-graph-trace=node)"
    elif _named(report.api, GRAPH_LAUNCH).any() and not _nodes(report.kernels).any():
        yield "the work of CUDA graphs: launched, and no row tells what they did; the GPU was busier than it seems"


def _named(rows: pd.DataFrame, question: Callable[[str], object] | str) -> pd.Series:
    """For each row: does its name answer the question, or match the pattern?"""
    return named(rows["name"], re.compile(question).search if isinstance(question, str) else question)


def _union(parts: Iterable[np.ndarray]) -> np.ndarray:
    parts = [part for part in parts if len(part)]
    return intervals.from_edges(*np.concatenate(parts).T) if parts else intervals.EMPTY
