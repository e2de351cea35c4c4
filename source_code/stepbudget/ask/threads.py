"""Who drives the GPU? The process and the threads of a window, and what a thread is doing at a time."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.report import UNNAMED, Report, remembered
from stepbudget.window import Window

# Calls in which a thread may sleep until another thread or process lets it go on.
WAITS = re.compile(
    r"^_*(poll|ppoll|select|pselect|epoll_p?wait2?|sem_wait|sem_timedwait|sem_clockwait|pthread_cond_(timed|clock)?wait"
    r"|pthread_join|pthread_timedjoin_np|pthread_mutex_(timed)?lock|pthread_rwlock_\w*lock|pthread_barrier_wait|futex\w*"
    r"|wait|waitpid|waitid|wait3|wait4|sigwait\w*|sigtimedwait|pause|u?sleep|nanosleep|clock_nanosleep|accept4?"
    r"|recv|recvfrom|recvmsg|recvmmsg|read|readv|msgrcv|mq_receive|fgetc?|fread)$"
)


def about(report: Report, window: Window, gpu: int | None = None) -> Window:
    """The window with the one card and the one process that every answer about it is about.

    The card is ``gpu`` (its number), else the lowest that ran kernels of the window's process (of any process, where
    no range says whose the window is); where none ran any, the lowest that copied. The process is the window's own if
    it used that card, else the one whose work on the card lasted longest.
    """
    if window.gpu is not None and gpu in (None, window.gpu):
        return window
    return _about(report, window, gpu)


@remembered
def _about(report: Report, window: Window, gpu: int | None) -> Window:
    tables = (report.kernels, report.graphs, report.copies, report.memsets)
    work = [table if gpu is None else table[table["gpu"] == gpu] for table in tables]
    own = [table[table["process"] == window.process] for table in work]
    # What it did within the window says most; a window in which it did nothing is about what it did elsewhere.
    of_anyone = [[within(table, window) for table in work], work]
    for found in chain([within(table, window) for table in own], own, *of_anyone):
        if len(found):
            card = int(found["gpu"].min())
            found = found[found["gpu"] == card]
            lasted = (found["end"] - found["start"]).groupby(found["process"]).sum()
            return narrowed(window, int(lasted.sort_values(ascending=False, kind="stable").index[0]), card)
    for table in (report.api, report.ranges, report.os_calls) if window.process is None else ():
        found = within(table, window)
        if len(found):
            return narrowed(window, int(found["process"].value_counts().index[0]), gpu)
    return replace(window, gpu=gpu)


def narrowed(window: Window, process: int, gpu: int | None) -> Window:
    """The window, about one process and one card."""
    thread = window.thread if window.process == process else None
    return replace(window, thread=thread, only_process=process, gpu=gpu)


def process_of(report: Report, window: Window) -> int | None:
    """The process that the window is about: its range's, else that of ``about``; None where nothing tells one."""
    return about(report, window).process if window.process is None else window.process


def main_thread(report: Report, window: Window) -> int | None:
    """The thread that the process started with, if it left any rows; else the busiest with ranges or CUDA calls.

    A thread's id holds its process's number above its own (24 bits each); on Linux the two are equal for the first
    thread. A window that is an NVTX range is its own thread's.
    """
    if window.thread is not None:
        return window.thread
    process = process_of(report, window)
    if process is None:
        return None
    first = process << 24 | (process & 0xFFFFFF)
    for table in (report.ranges, report.api):
        threads = table.loc[table["process"] == process, "thread"]
        if (threads == first).any():
            return first
        if len(threads):
            return int(threads.value_counts().index[0])
    return None


def launching_threads(report: Report, window: Window) -> list[int]:
    """The threads of the window's process that launched kernels or graphs within it: the main one and autograd's."""
    process = process_of(report, window)
    found: set[int] = set()
    for table in (report.kernels, report.graphs):
        own = table[(table["process"] == process) & table["api_start"].between(window.start, window.end)]
        found |= {int(thread) for thread in own["api_thread"].dropna().unique()}
    return sorted(found)


def within(table: pd.DataFrame, window: Window) -> pd.DataFrame:
    """The rows that have any part inside the window (columns start, end); an instant counts where it lies."""
    if table.empty:
        return table
    start, end = table["start"], table["end"]
    return table[(start < window.end) & ((end > window.start) | ((start == end) & (start >= window.start)))]


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
    sleeping = {name for name in own["name"].unique() if WAITS.match(name) or name == UNNAMED}
    in_call = spans(own, window, own["name"].isin(sleeping))
    ran = report.scheduled[report.scheduled["thread"] == thread]
    if ran.empty:
        return in_call
    off = intervals.clip(intervals.complement(intervals.union(ran), *_ends(ran)), window.start, window.end)
    return intervals.from_edges(*np.concatenate([in_call, off]).T)


def seen(report: Report, thread: int) -> tuple[int, int] | None:
    """From the thread's first recorded call or range to its last (ns); None if it left none."""
    tables = (report.api, report.os_calls, report.ranges, report.scheduled)
    found = [_ends(own) for table in tables if len(own := table[table["thread"] == thread])]
    return (min(first for first, _ in found), max(last for _, last in found)) if found else None


def _ends(table: pd.DataFrame) -> tuple[int, int]:
    return int(table["start"].min()), int(table["end"].max())
