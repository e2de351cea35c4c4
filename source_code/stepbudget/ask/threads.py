"""Who drives the GPU? The process and the threads of a window, and what a thread is doing at a time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.errors import ReportError
from stepbudget.report import STRAY, UNNAMED, Report, computing, remembered, rows_where, with_the_work
from stepbudget.window import Window

# Calls in which a thread may sleep until another thread, a process, a clock or a device lets it go on, by what they
# wait for: events; locks and threads; processes, signals and time; data to be moved, whatever way and to what offset.
# What tells variants of them apart stands around their names: leading _, …_chk, …_nocancel, 64 for an offset's size.
WAITS = re.compile(
    r"^_*(?:libc_)?(?:"
    r"p?poll|p?select|epoll_p?wait2?|io_uring_enter2?|io_p?getevents|aio_suspend"
    r"|sem_\w*wait|pthread_\w*(?:join(?:_np)?|(?<!un)(?<!try)lock|wait)|futex\w*|flock|lockf"
    r"|mtx_(?:timed)?lock|cnd_(?:timed)?wait|thrd_(?:join|sleep)"
    r"|wait(?:pid|id|[34])?|sig(?:timed)?wait(?:info)?|sigsuspend|pause|u?sleep|(?:clock_)?nanosleep"
    r"|p?(?:read|write)v?2?|f(?:read|write|flush|(?:data)?sync)|f?(?:get|put)[cs]|getline|syncfs|sync(?:_file_range)?"
    r"|msync|sendfile|splice|vmsplice|tee|copy_file_range|process_vm_(?:read|write)v"
    r"|accept4?|connect|(?:send|recv)(?:to|from|m?msg)?|(?:msg|mq_)\w*(?:rcv|snd|receive|send)"
    r")(?:_unlocked|_chk|_nocancel|64|v2)*$"
)
# Those that hand data over: they put it into a buffer in some 5 µs, and wait only where that is full.
HANDS_OVER = re.compile(r"write|send|snd|connect|put")
BUFFERED_US = 100

# Calls that return only when the GPU has finished. A fill does not wait, but for one of the host's memory (NVIDIA, CUDA
# Runtime API, "API synchronization behavior").
WAITING_CALLS = re.compile(r"Synchronize$|^cu(da)?Memcpy\w*(?<!Async)$")
STRETCHES = 100  # of the capture: in how many of them does a thread launch?


def about(report: Report, window: Window, gpu: int | None = None) -> Window:
    """The window with the one card and the one process that every answer about it is about.

    The card is ``gpu`` (its number), else the one with the work of the window's process (of any process, where no range
    says whose the window is): the lowest of those that computed for a STRAY part or more of what the busiest did; where
    none ran kernels, the lowest that copied. What only communicates counts where nothing else runs. The process is the
    window's own if it used that card, else the one whose work on the card lasted longest. ReportError where ``gpu`` did
    nothing in the report.
    """
    if window.gpu is not None and gpu in (None, window.gpu):
        return window
    return _about(report, window, gpu)


@remembered
def _about(report: Report, window: Window, gpu: int | None) -> Window:
    used = gpus_used(report)
    if gpu is not None and gpu not in used:
        listed = f"the GPUs that did are {', '.join(map(str, used))}" if used else "nor on any other"
        raise ReportError(f"{report.path.name} holds no work on a GPU with the number {gpu}; {listed}.")
    tables = (report.kernels, report.graphs, report.copies, report.memsets)
    work = [table if gpu is None else table[table["gpu"] == gpu] for table in tables]
    own = [table[table["process"] == window.process] for table in work]
    # What it did within the window says most; a window in which it did nothing is about what it did elsewhere.
    of_anyone = [[within(table, window) for table in work], work]
    for kernels, graphs, *others in ([within(table, window) for table in own], own, *of_anyone):
        busy = [table for table in (computing(kernels), graphs) if len(table)]
        for found in (pd.concat(busy) if busy else kernels, *others):
            if len(found):
                card = with_the_work(found, "gpu")
                found = found[found["gpu"] == card]
                lasted = (found["end"] - found["start"]).groupby(found["process"]).sum()
                return narrowed(window, int(lasted.sort_values(ascending=False, kind="stable").index[0]), card)
    for table in (report.api, report.ranges, report.os_calls) if window.process is None else ():
        found = within(table, window)
        if len(found):
            return narrowed(window, int(found["process"].value_counts().index[0]), gpu)
    return replace(window, gpu=gpu)


def gpus_used(report: Report) -> list[int]:
    """The numbers of the cards that did anything in the report."""
    tables = (report.kernels, report.graphs, report.copies, report.memsets)
    return sorted({int(gpu) for table in tables for gpu in table["gpu"].unique()})


def narrowed(window: Window, process: int, gpu: int | None) -> Window:
    """The window, about one process and one card."""
    thread = window.thread if window.process == process else None
    return replace(window, thread=thread, only_process=process, gpu=gpu)


def process_of(report: Report, window: Window) -> int | None:
    """The process that the window is about: its range's, else that of ``about``; None where nothing tells one."""
    return about(report, window).process if window.process is None else window.process


def main_thread(report: Report, window: Window) -> int | None:
    """The program's own thread: the one that launches the GPU's work, or waits for it.

    A window that is an NVTX range is its own thread's, unless that hardly calls CUDA and one that launches has ranges
    inside. Else it is, of the process's threads that launch all the time (loaders, writers and pinning threads do not):

    1. the first of the process, as autograd's thread launches besides it; a thread's id holds its process's number
       above its own (24 bits each), and on Linux the two are equal for the first thread;
    2. of those with ranges of the program the likeliest. Where none has ranges and the first thread does, a runtime
       launches for that;
    3. the likeliest of all of them: of those that launch not much less than the busiest (one that only prepares data
       does) the one that waits for the GPU most often, as autograd's does not; of equals the one that launched first.

    Where no launch is recorded: the first thread, if it left ranges or CUDA calls, else the one with most of them.
    """
    process = process_of(report, window)
    if process is None:
        return window.thread
    launchers, first = _launchers(report, process), process << 24 | (process & 0xFFFFFF)
    if window.thread in launchers:
        return window.thread
    if window.thread is None and first in launchers:
        return first
    ranges = report.ranges[report.ranges["process"] == process]
    ranges = ranges[~ranges["operator"] & ~ranges["library"]]
    if window.thread is not None:
        inside = set(ranges.loc[begins_in(ranges, window), "thread"])
        trainers = [thread for thread in launchers if thread in inside]
        calls = report.api["thread"].value_counts()
        hardly = trainers and calls.get(window.thread, 0) < STRAY * calls[trainers[0]]
        return trainers[0] if hardly else window.thread
    if launchers:
        annotated = set(ranges["thread"])
        trainers = [thread for thread in launchers if thread in annotated]
        return first if first in annotated and not trainers else (trainers or launchers)[0]
    for table in (report.ranges, report.api):
        threads = table.loc[table["process"] == process, "thread"]
        if (threads == first).any():
            return first
        if len(threads):
            return int(threads.value_counts().index[0])
    return None


def _launchers(report: Report, process: int) -> list[int]:
    """The threads that launch the work of a process all the time, the likeliest to be the program's own first."""
    key = (_launchers, process)
    if key not in report.answers:
        work = [table[table["process"] == process] for table in (report.kernels, report.graphs)]
        work = [table.loc[table["api_thread"].notna(), ["api_thread", "api_start"]] for table in work if len(table)]
        launches = pd.concat(work or [pd.DataFrame(columns=["api_thread", "api_start"])]).astype("int64")
        stretch = (report.extent.end - report.extent.start) / STRETCHES or 1
        launches["stretch"] = (launches["api_start"] // stretch).astype("int64")
        own = launches.groupby("api_thread").agg(
            launches=("stretch", "size"), stretches=("stretch", "nunique"), began=("api_start", "min")
        )
        waits = report.api[report.api["thread"].isin(own.index)]
        waits = waits[waits["name"].isin({name for name in waits["name"].unique() if WAITING_CALLS.search(name)})]
        own["waits"] = waits["thread"].value_counts().reindex(own.index).fillna(0)
        own["prepares"] = own["launches"] < STRAY * own["launches"].max()
        own = own[own["stretches"] >= STRAY * own["stretches"].max()]
        order = own.sort_values(["prepares", "waits", "began"], ascending=[True, False, True])
        report.answers[key] = order.index.tolist()
    return report.answers[key]


def launching_threads(report: Report, window: Window) -> list[int]:
    """The threads of the window's process that launched kernels or graphs within it: the main one and autograd's.

    One that launches now and then, such as one that prepares data, is left out: what it waits for holds nobody up.
    """
    process = process_of(report, window)
    if process is None:
        return []
    found: set[int] = set()
    for table in (report.kernels, report.graphs):
        own = table[(table["process"] == process) & table["api_start"].between(window.start, window.end)]
        found |= {int(thread) for thread in own["api_thread"].dropna().unique()}
    return sorted(found & {*_launchers(report, process)} or found)


def within(table: pd.DataFrame, window: Window) -> pd.DataFrame:
    """The rows that have any part inside the window (columns start, end); an instant counts where it lies."""
    return table if table.empty else rows_where(table, overlaps(table, window))


def overlaps(table: pd.DataFrame, window: Window) -> pd.Series:
    """Which rows have any part inside the window?"""
    start, end = table["start"], table["end"]
    return (start < window.end) & ((end > window.start) | ((start == end) & (start >= window.start)))


def begins_in(table: pd.DataFrame, window: Window) -> pd.Series:
    """Which rows begin within the window? Where it is about one process or one card: of those of that one."""
    return ((table["start"] >= window.start) & (table["start"] < window.end)) & of(table, window)


def of(table: pd.DataFrame, window: Window) -> pd.Series:
    """Which rows are of the process and, where they tell one, of the card that the window is about?"""
    asked = {"process": window.process, "gpu": window.gpu}
    own = pd.Series(True, index=table.index)
    for column, number in asked.items():
        if number is not None and column in table:
            own &= table[column] == number
    return own


def spans(table: pd.DataFrame, window: Window, chosen: pd.Series | None = None) -> np.ndarray:
    """The times within the window at which any (chosen) row of the table runs."""
    rows = table if chosen is None else table[chosen]
    return intervals.clip(intervals.union(rows), window.start, window.end)


def waiting(report: Report, thread: int, window: Window) -> np.ndarray:
    """When is the thread inside a call into the operating system that can put it to sleep, or without a CPU?

    A call without a name may be any of them. The second where the scheduler's events were traced: what sleeps in a call
    that is not traced has no CPU either.
    """
    calls = report.os_calls
    own = calls[calls["thread"] == thread]
    in_call = spans(own, window, may_sleep(own))
    ran = report.scheduled[report.scheduled["thread"] == thread]
    if ran.empty:
        return in_call
    off = intervals.clip(intervals.complement(intervals.union(ran), *_ends(ran)), window.start, window.end)
    return intervals.from_edges(*np.concatenate([in_call, off]).T)


def may_sleep(calls: pd.DataFrame) -> pd.Series:
    """Which calls into the operating system can put their thread to sleep? One without a name may be any of them."""
    waits = {name for name in calls["name"].unique() if WAITS.match(name) or name == UNNAMED}
    brief = calls["end"] - calls["start"] <= 1000 * BUFFERED_US
    return calls["name"].isin(waits) & ~(brief & calls["name"].isin({one for one in waits if HANDS_OVER.search(one)}))


def seen(report: Report, thread: int) -> tuple[int, int] | None:
    """From the thread's first recorded call or range to its last (ns); None if it left none."""
    tables = (report.api, report.os_calls, report.ranges, report.scheduled)
    found = [_ends(own) for table in tables if len(own := table[table["thread"] == thread])]
    return (min(first for first, _ in found), max(last for _, last in found)) if found else None


def _ends(table: pd.DataFrame) -> tuple[int, int]:
    return int(table["start"].min()), int(table["end"].max())
