"""Who drives the GPU? The process and the threads of a window, and what a thread is doing at a time."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.report import Report
from stepbudget.window import Window

# Calls in which a thread may sleep until another thread or process lets it go on.
WAITS = re.compile(
    r"^_*(poll|ppoll|select|pselect|epoll_p?wait2?|sem_wait|sem_timedwait|sem_clockwait|pthread_cond_(timed|clock)?wait"
    r"|pthread_join|pthread_timedjoin_np|pthread_mutex_(timed)?lock|pthread_rwlock_\w*lock|pthread_barrier_wait|futex\w*"
    r"|wait|waitpid|waitid|wait3|wait4|sigwait\w*|sigtimedwait|pause|u?sleep|nanosleep|clock_nanosleep|accept4?"
    r"|recv|recvfrom|recvmsg|recvmmsg|read|readv|msgrcv|mq_receive|fgetc?|fread)$"
)


def process_of(report: Report, window: Window) -> int | None:
    """The process that the window is about: its range's, else the one whose kernels within it ran longest."""
    if window.process is not None:
        return window.process
    for table in (report.kernels, report.graphs, report.copies, report.memsets):
        inside = within(table, window)
        if len(inside):
            lasted = (inside["end"] - inside["start"]).groupby(inside["process"]).sum()
            return int(lasted.sort_values(ascending=False, kind="stable").index[0])
    for table in (report.api, report.ranges, report.os_calls):
        inside = within(table, window)
        if len(inside):
            return int(inside["process"].value_counts().index[0])
    return None


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
    """Which rows begin within the window? For a window that is an NVTX range: of those of its process."""
    inside = (table["start"] >= window.start) & (table["start"] < window.end)
    return inside if window.process is None else inside & (table["process"] == window.process)


def spans(table: pd.DataFrame, window: Window, chosen: pd.Series | None = None) -> np.ndarray:
    """The times within the window at which any (chosen) row of the table runs."""
    rows = table if chosen is None else table[chosen]
    return intervals.clip(intervals.union(rows), window.start, window.end)


def waiting(report: Report, thread: int, window: Window) -> np.ndarray:
    """When is the thread inside a call into the operating system that can put it to sleep?"""
    calls = report.os_calls
    own = calls[calls["thread"] == thread]
    return spans(own, window, own["name"].isin({name for name in own["name"].unique() if WAITS.match(name)}))


def seen(report: Report, thread: int) -> tuple[int, int] | None:
    """From the thread's first recorded call or range to its last (ns); None if it left none."""
    firsts, lasts = [], []
    for table in (report.api, report.os_calls, report.ranges):
        own = table[table["thread"] == thread]
        if len(own):
            firsts.append(int(own["start"].min()))
            lasts.append(int(own["end"].max()))
    return (min(firsts), max(lasts)) if firsts else None
