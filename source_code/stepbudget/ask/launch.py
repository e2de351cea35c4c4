"""Does the GPU wait for launches?

A kernel runs only after the CPU has launched it. While the CPU is ahead, launched kernels queue up and the GPU goes
from one to the next. Where the kernels are shorter than the time that the CPU takes to launch the next, the queue runs
dry, and the GPU waits for every launch: the program is launch-bound, and a faster GPU would not help it.

A launch is one call: of a CUDA graph too, whatever number of kernels it holds. Durations of calls include what the
profiler adds to each, so the measured launch cost is an upper bound of the unprofiled one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.iterations import loader_ranges
from stepbudget.ask.missing import missing
from stepbudget.ask.threads import WAITING_CALLS, about
from stepbudget.ask.work import gpu_work
from stepbudget.coded import together
from stepbudget.report import Report, remembered, rows_where
from stepbudget.window import Window

BOUND, NOT_BOUND, NOT_LOOKED_AT = "launch-bound", "not launch-bound", "not looked at"
LEAST_LAUNCHES = 5  # the first ones of a program load its code, and say nothing about those that follow
MOST = 0.5  # of the launches: with more than this waited for, the verdict is launch-bound

PAUSE_US = 1000  # fifty launches' time: whoever launches nothing for so long does something else

NEVER = np.iinfo(np.int64).min  # before all times
LAUNCH_COLUMNS = [
    "start_ms", "kind", "kernels", "device", "stream", "thread", "duration_us", "api_us", "latency_us", "queued",
    "drained", "after", "starved", "gap_us", "interval_us",
]  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """Whether the GPU waits for launches within a window, and what says so. NaN where nothing can be said."""

    window: Window
    verdict: str  # launch-bound, not launch-bound, not looked at
    evidence: str  # in sentences
    launches: int  # calls that launched a kernel or a CUDA graph
    kernels: int  # kernels that those calls launched
    unknown: int  # kernels that run in the window, but whose launch the report does not hold
    drained: int  # launches whose stream had finished all earlier work
    after_loader: int  # of these: the first launch after a wait for the loader
    after_wait: int  # of these: the first launch after a call that waited for the GPU
    after_pause: int  # of these: the first launch after more than a millisecond without any
    waits: int  # works put on the GPU first after a call that waited for it
    emptied: int  # of these: nothing was queued any more
    emptied_us: float  # and how long the GPU had then been idle: median
    drained_share: float  # of the launches, the first ones after a wait for the loader left out
    starved: int  # launches that found the whole GPU without work, and not for a wait or a pause
    starved_share: float  # of the launches, the first ones after a wait or a pause left out
    starved_ms: float  # how long the GPU stood idle before these
    kernel_us: float  # duration of the kernels: median, and the 10th and 90th percentile
    kernel_p10_us: float
    kernel_p90_us: float
    launch_us: float  # from one launch call's start to the next one's on the same thread: median
    api_us: float  # duration of a launch call: median
    latency_us: float  # from the call's start to the kernel's where the stream had drained: median
    shorter_share: float  # of the kernels that are shorter than launch_us: with these the CPU cannot keep up
    queue_mean: float  # works launched and not finished: mean over the window's time
    queue_0_share: float  # of the window's time with none
    queue_1_share: float  # and with one


def launch(report: Report, window: Window | None = None, gpu: int | None = None) -> Launch:
    """Does the GPU wait for launches within the window (default: the training range)?

    Looked at is one process on one GPU (``gpu``, a card's number), both as ``threads.about`` chooses them. Launches
    belong to the window by the start of their call.

    The verdict is launch-bound where more than half of the launches found the GPU with nothing queued, leaving out the
    first ones after a wait for the loader, after a wait for the GPU itself, and after a pause of more than a
    millisecond, which no launch takes. It is "not looked at" where there are no calls or no kernels, where work
    left no rows, or where fewer than LEAST_LAUNCHES launches would make it launch-bound.
    """
    return _launch(report, window or report.window(), gpu)


@remembered
def _launch(report: Report, window: Window, gpu: int | None) -> Launch:
    looked_at = _look_at(report, window, gpu)
    queue = _queue_shares(window, looked_at)
    calls = _launches(report, window, looked_at)
    waited = calls[calls["after"] == "wait"]
    emptied = waited[waited["queued"] == 0]
    asked = ["kernels", "api_us", "latency_us", "drained", "after", "starved"]
    own = calls.loc[calls["kind"].isin(["kernel", "graph"]), asked]
    kernels, of_gpu = looked_at.work, looked_at.work["gpu"] == looked_at.gpu
    kernels = kernels.loc[(kernels["kind"] == "kernel") & of_gpu, ["start", "end", "api_start"]]
    del looked_at  # a million launches fill memory
    known = kernels["api_start"].notna()
    times = kernels["api_start"].where(known, kernels["start"])
    inside = (times >= window.start) & (times < window.end)
    kernel_us = ((kernels["end"] - kernels["start"]) / 1e3)[inside].to_numpy(dtype=float)
    first_after_loader = own["after"] == "loader"
    drained, starved = own["drained"].astype(bool), own["starved"].astype(bool)
    launch_us = calls["interval_us"].median() if len(calls) and calls["interval_us"].notna().any() else np.nan
    in_turn = int((own["after"] == "").sum())
    share = _share(int(starved.sum()), in_turn) if len(own) else np.nan
    p10, median, p90 = np.percentile(kernel_us, [10, 50, 90]) if len(kernel_us) else (np.nan,) * 3
    verdict = BOUND if len(own) and share > MOST else NOT_BOUND
    unseen = missing(report, about(report, window, gpu))
    if unseen.kinds or not len(own) or (verdict == BOUND and len(own) < LEAST_LAUNCHES):
        verdict = NOT_LOOKED_AT
    found = Launch(
        window=window,
        verdict=verdict,
        evidence="",
        launches=len(own),
        kernels=int(own["kernels"].sum()),
        unknown=int((inside & ~known).sum()),
        drained=int(drained.sum()),
        after_loader=int((drained & first_after_loader).sum()),
        after_wait=int((drained & (own["after"] == "wait")).sum()),
        after_pause=int((drained & (own["after"] == "pause")).sum()),
        waits=len(waited),
        emptied=len(emptied),
        emptied_us=float(emptied["gap_us"].median()) if len(emptied) else np.nan,
        drained_share=_share(int((drained & ~first_after_loader).sum()), int((~first_after_loader).sum())),
        starved=int(starved.sum()),
        starved_share=share,
        starved_ms=float(calls.loc[calls["starved"].astype(bool), "gap_us"].sum()) / 1e3 if len(calls) else np.nan,
        kernel_us=float(median),
        kernel_p10_us=float(p10),
        kernel_p90_us=float(p90),
        launch_us=float(launch_us),
        api_us=float(own["api_us"].median()) if len(own) else np.nan,
        latency_us=float(own.loc[drained, "latency_us"].median()) if drained.any() else np.nan,
        shorter_share=_share(int((kernel_us < launch_us).sum()), len(kernel_us)) if launch_us > 0 else np.nan,
        **queue,
    )
    evidence = f"{'; '.join(unseen.kinds.values())}." if unseen.kinds else _evidence(report, found, in_turn)
    return Launch(**{**vars(found), "evidence": evidence})


def launches(report: Report, window: Window | None = None, gpu: int | None = None) -> pd.DataFrame:
    """One row a call that put work on the GPU within the window (default: the training range), in order of the calls.

    Columns: ``start_ms`` of the call since the window's start; ``kind`` (kernel, graph, copy, memset) and number of
    ``kernels``; ``device``, ``stream``, ``thread``; ``duration_us`` of the work on the GPU, ``api_us`` of the call,
    ``latency_us`` from the call's start to the work's; works ``queued`` when the call began; ``drained``: had all
    earlier work on its stream ended by then; ``after``: "loader" or "wait" if it is the process's first launch after a
    wait for the loader or for the GPU, "pause" after more than a millisecond without any, else ""; ``starved``: nothing
    was queued on this GPU, and not for one of these; ``gap_us`` that the GPU stood idle before; ``interval_us`` since
    the launch before, where the same thread made both and nothing of this lay between.
    """
    window = window or report.window()
    return _launches(report, window, _look_at(report, window, gpu))


def _launches(report: Report, window: Window, looked_at: _LookedAt) -> pd.DataFrame:
    groups = looked_at.calls
    if groups.empty:
        return pd.DataFrame(columns=LAUNCH_COLUMNS)
    began = groups["api_start"].to_numpy(dtype=np.int64)
    waits = report.api[report.api["process"] == looked_at.process]
    waits = waits[waits["name"].isin([name for name in waits["name"].unique() if WAITING_CALLS.search(str(name))])]
    loaders = loader_ranges(report)
    since = np.diff(began, prepend=began[0]) / 1e3
    after = np.where(since > PAUSE_US, "pause", "").astype(object)
    after[_first_after(began, waits["end"])] = "wait"
    after[_first_after(began, loaders.loc[loaders["process"] == looked_at.process, "end"])] = "loader"
    thread = groups["api_thread"].to_numpy()
    follows = np.concatenate([[False], (thread[1:] == thread[:-1]) & (after[1:] == "")])
    interval = np.where(follows, since, np.nan)
    own = (groups["gpu"] == looked_at.gpu).to_numpy()
    groups, began, after, interval = rows_where(groups, own), began[own], after[own], interval[own]
    queued = _depth_at(*_queue(looked_at), began)
    table = pd.DataFrame(
        {
            "start_ms": (began - window.start) / 1e6,
            "kind": groups["kind"].to_numpy(),
            "kernels": groups["kernels"].to_numpy(),
            "device": groups["device"].to_numpy(),
            "stream": groups["stream"].to_numpy(),
            "thread": groups["api_thread"].to_numpy(dtype=np.int64),
            "duration_us": (groups["last"] - groups["start"]).to_numpy() / 1e3,
            "api_us": (groups["api_end"] - groups["api_start"]).to_numpy() / 1e3,
            "latency_us": (groups["start"] - groups["api_start"]).to_numpy() / 1e3,
            "queued": queued,
            "drained": began >= groups["stream_free"].to_numpy(),
            "after": after,
            "starved": (queued == 0) & (after == ""),
            "gap_us": np.maximum(groups["start"] - groups["gpu_free"], 0).to_numpy() / 1e3,
            "interval_us": interval,
        },
        copy=False,  # a million rows twice would fill memory
    )
    return rows_where(table, (began >= window.start) & (began < window.end)).reset_index(drop=True)


def queue_depth(report: Report, window: Window | None = None) -> pd.DataFrame:
    """How many works are launched and not yet finished, over the window (default: the training range).

    Columns: ``time`` (ns, the report's clock) and ``depth`` from then until the next row's time; the first row is the
    window's start. A CUDA graph is one work. Work whose launch the report does not hold counts while it runs.
    """
    window = window or report.window()
    return _queue_depth(window, _look_at(report, window, None))


def _queue_depth(window: Window, looked_at: _LookedAt) -> pd.DataFrame:
    launched, finished = _queue(looked_at)
    times = np.sort(np.concatenate([[window.start], launched, finished]), kind="stable")
    times = times[(times >= window.start) & ((times < window.end) | (times == window.start))]
    times = times[np.concatenate([[True], np.diff(times) > 0])]
    depth = np.searchsorted(launched, times, side="right") - np.searchsorted(finished, times, side="right")
    changes = np.concatenate([[True], np.diff(depth) != 0])
    return pd.DataFrame({"time": times[changes], "depth": depth[changes]})


def _queue_shares(window: Window, looked_at: _LookedAt) -> dict[str, float]:
    """The fields of ``Launch`` that tell of the queue."""
    queue = _queue_depth(window, looked_at)
    depth, durations = queue["depth"].to_numpy(), np.diff(queue["time"], append=window.end)
    whole = int(durations.sum())
    shares = {f"queue_{number}_share": _share(int(durations[depth == number].sum()), whole) for number in (0, 1)}
    return {"queue_mean": _share(float((depth * durations).sum()), whole), **shares}


# --- the work ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LookedAt:
    """The one process and the one GPU that are looked at; all work of that process, and its calls, on any GPU."""

    process: int | None
    gpu: int
    work: pd.DataFrame
    calls: pd.DataFrame


def _look_at(report: Report, window: Window, gpu: int | None) -> _LookedAt:
    own = about(report, window, gpu)
    work = gpu_work(report)
    if work.empty:
        return _LookedAt(None, own.gpu or 0, work, work)
    work = rows_where(work, work["process"] == own.process)
    kept = work[["start", "end", "gpu", "kind", "api_start", "api_thread"]]  # a million rows of more would fill memory
    return _LookedAt(own.process, own.gpu, kept, _calls(work))


def _calls(work: pd.DataFrame) -> pd.DataFrame:
    """One row a launch call, in order: the first work of it, the last one's end, when its stream and GPU were free.

    Adds the columns ``last``, ``kernels``, ``stream_free`` and ``gpu_free`` (a time before all others where nothing
    came earlier). The nodes of a CUDA graph share one call. ``work`` is in order of its start.
    """
    launched = (work["api_start"].notna() & work["api_thread"].notna()).to_numpy()
    known = rows_where(work, launched)
    number, first = together(known["api_thread"], known["api_start"])
    order = np.lexsort((known["start"].iloc[first], known["api_start"].iloc[first]))
    columns = ["start", "device", "gpu", "stream", "api_start", "api_end", "api_thread", "kind"]
    groups = pd.DataFrame({name: known[name].to_numpy()[first[order]] for name in columns})
    for column, place in (("stream_free", ["device", "stream"]), ("gpu_free", ["gpu"])):
        groups[column] = _free(work, place)[launched][first[order]]
    last = np.full(len(first), NEVER)
    np.maximum.at(last, number, known["end"].to_numpy(dtype=np.int64))
    kernels, nodes, works = (
        np.bincount(number, weights=weights, minlength=len(first))[order].astype(int)
        for weights in (known["kind"] == "kernel", known["graph_node"].notna(), None)
    )
    groups["last"], groups["kernels"] = last[order], kernels
    groups.loc[(nodes > 0) | (works > 1), "kind"] = "graph"
    return groups


def _free(work: pd.DataFrame, place: list[str]) -> np.ndarray:
    """For each work the end of all earlier ones at its place, such as its stream; NEVER where nothing came earlier."""
    number, _ = together(*(work[name] for name in place))
    end, free = work["end"].to_numpy(dtype=np.int64), np.full(len(work), NEVER)
    order = np.argsort(number, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        free[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    return free


def _queue(looked_at: _LookedAt) -> tuple[np.ndarray, np.ndarray]:
    """When each work on the GPU was launched, and when it had finished; both sorted. A graph is one work."""
    work, calls = (rows_where(table, table["gpu"] == looked_at.gpu) for table in (looked_at.work, looked_at.calls))
    alone = work[work["api_start"].isna() | work["api_thread"].isna()]
    if work.empty:
        calls = calls.assign(last=0)
    launched = np.concatenate([calls["api_start"].to_numpy(dtype=np.int64), alone["start"].to_numpy(dtype=np.int64)])
    finished = np.concatenate([calls["last"].to_numpy(dtype=np.int64), alone["end"].to_numpy(dtype=np.int64)])
    lasting = finished > launched  # the two clocks can disagree by less than a call takes
    return np.sort(launched[lasting]), np.sort(finished[lasting])


def _depth_at(launched: np.ndarray, finished: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Works launched before each time and not finished by then."""
    return np.searchsorted(launched, times, side="left") - np.searchsorted(finished, times, side="right")


def _first_after(began: np.ndarray, ends: pd.Series) -> np.ndarray:
    """The places of the first launch that begins after each wait's end."""
    places = intervals.distinct(np.searchsorted(began, ends.to_numpy(dtype=np.int64), side="left"))
    return places[places < len(began)]


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _evidence(report: Report, found: Launch, in_turn: int) -> str:
    """The numbers behind the verdict, or what is missing; ``in_turn``: the launches that ``starved_share`` is of."""
    if found.verdict == NOT_LOOKED_AT:
        if report.kernels.empty and report.graphs.empty:
            return "The report holds no kernels."
        if report.api.empty:
            return "The report holds no CUDA API calls, so nothing says when a kernel was launched."
        if found.launches:
            return f"{found.launches} launches are too few to tell."
        return f"No launch call of a kernel lies in {found.window.name}."
    words = (
        f"{found.starved:,} of {in_turn:,} launches found the GPU with nothing to do "
        f"({100 * found.starved_share:.0f} %, waits aside)"
    )
    medians = {"A kernel": found.kernel_us, "A launch": found.launch_us}
    told = [f"{what} takes {us:.1f} µs" for what, us in medians.items() if np.isfinite(us)]
    words += f". {', '.join(told).replace(', A launch takes', ', a launch')} (medians)" if told else ""
    return words + (f". The launches of {found.unknown:,} kernels are unknown." if found.unknown else ".")
