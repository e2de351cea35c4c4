"""What ran and left no rows? A table that is absent is no work that took no time.

The calls of the CUDA API say what was asked of the GPU. What a call asked for and no row tells of may have run at any
time from the call to the end of the next call that waits for the GPU: what was not recorded in that stretch is not
known to be idle. Where the report holds neither kernels nor calls, nothing is known of the GPU at all; if it names none
either, a program of the CPU was recorded, and what the CPU did is told.

In the 170 recorded reports of this repository every launch and every copy has its row; fills have not (one of no bytes
leaves none), so nothing is concluded from these. Calls while a stream is captured record a CUDA graph, and run nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask import threads
from stepbudget.report import Report, remembered, rows_where
from stepbudget.window import Window

# What calls of the CUDA Runtime and Driver API ask for, by how their names begin: versions add suffixes.
ASKED_BY = {
    "kernels": re.compile(r"^cu(da)?Launch(?!HostFunc)"),
    "copies": re.compile(r"^cu(da)?Memcpy"),
    "graphs": re.compile(r"^cu(da)?GraphLaunch"),
}
CAPTURES = re.compile(r"^cu(da)?Stream(Begin|End)Capture")
LONG_WAIT_MS = 1.0  # a wait for nothing takes microseconds
WORTH = 0.01  # of the calls, and of the window: what is less leaves the answer as it is
LATER = np.iinfo(np.int64).max

OF_NSYS = "; an Nsight Systems that fits the driver; CuptiUseRawGpuTimestamps=false in its config.ini"
CURES = (
    "the usual cures: record what the GPU does (--trace cuda); let no other profiler use CUPTI; allow tracing in the "
    f"virtual machine or container{OF_NSYS}"
)


@dataclass(frozen=True)
class Missing:
    """Work of a window that left no rows."""

    kinds: dict[str, str]  # what is missing, and what says so; empty: nothing is
    spans: np.ndarray  # when it may have run (ns)
    calls: pd.DataFrame  # of ``report.api``, those that asked for it

    @property
    def said(self) -> list[str]:
        """One sentence, with the usual cures; none where nothing is missing."""
        what = "; ".join(self.kinds.values())
        return [f"how busy the GPU was is not known: {what}; {CURES}"] if self.kinds else []


@remembered
def missing(report: Report, window: Window) -> Missing:
    """What the process of a window (as ``threads.about`` chose it) asked of the GPU without leaving rows of it.

    Calls that left none are told from WORTH of the window's calls of their kind on, and only if the work could have
    filled as much of the window.
    """
    tables = {"kernels": report.kernels, "copies": report.copies, "fills": report.memsets, "graphs": report.graphs}
    own = {kind: rows_where(table, threads.of(table, window)) for kind, table in tables.items()}
    calls = rows_where(report.api, threads.of(report.api, window))
    whole = np.array([[window.start, window.end]], dtype=np.int64)
    waits = calls[_named(calls, threads.WAITING_CALLS)]
    asked = _asked(calls)
    left = np.concatenate([table["call"].to_numpy(dtype=np.int64) for table in tables.values()])
    lost = asked[~np.isin(asked.index, left)]
    inside, lost_inside = (table["kind"][threads.begins_in(table, window)].value_counts() for table in (asked, lost))
    kinds = {
        kind: f"no row tells of {lost_inside[kind]:,} of {inside[kind]:,} calls that ask for {kind}"
        for kind in ASKED_BY
        if lost_inside.get(kind, 0) > max(WORTH * inside.get(kind, 0), _without_call(tables, kind, window))
    }
    if report.api.empty and own["kernels"].empty and own["graphs"].empty:
        kinds["kernels"] = "the report holds no kernels, and no CUDA calls that would tell whether any ran"
        return Missing(kinds, whole if len(report.gpus) else intervals.EMPTY, lost)
    if not any(map(len, own.values())):
        held = threads.within(waits, window)
        held_ms = (held["end"] - held["start"]).sum() / 1e6
        if held_ms > LONG_WAIT_MS and not kinds:
            kinds["kernels"] = f"calls waited for the GPU for {held_ms:,.1f} ms, and no row tells for what"
        return Missing(kinds or {"kernels": "the report holds no work of a GPU"}, whole, lost)
    lost = lost[lost["kind"].isin(kinds)]
    spans = intervals.clip(_until_waited_for(lost, waits), window.start, window.end)
    unseen = intervals.subtract(spans, intervals.union(*own.values()))
    if intervals.total(unseen) < WORTH * (window.end - window.start):
        kinds, spans = {}, intervals.EMPTY
    return Missing(kinds, spans, lost if kinds else lost.iloc[:0])


def _without_call(tables: dict[str, pd.DataFrame], kind: str, window: Window) -> int:
    """Rows of a kind whose call is not known: so many calls may have left them."""
    of_kind = tables[kind][threads.begins_in(tables[kind], window)]
    return int((of_kind["call"] < 0).sum())


def _asked(calls: pd.DataFrame) -> pd.DataFrame:
    """The calls that ask the GPU for work, with the ``kind`` of it; without those that are recorded into a graph."""
    kinds = {name: next((kind for kind, form in ASKED_BY.items() if form.search(name)), None)
             for name in calls["name"].unique()}  # fmt: skip
    asked = calls.assign(kind=calls["name"].map(kinds).astype(object))
    edges = calls[_named(calls, CAPTURES)]
    begins = edges["name"].str.contains("Begin")
    open_until = [
        (start, min(edges.loc[~begins & (edges["start"] > start), "start"], default=LATER))
        for start in edges.loc[begins, "start"]
    ]
    captured = intervals.from_edges(*np.array(open_until or np.empty((0, 2)), dtype=np.int64).reshape(-1, 2).T)
    starts = asked["start"].to_numpy(dtype=np.int64)
    inside = intervals.covered(captured, starts, starts + 1) > 0
    return asked[asked["kind"].notna().to_numpy() & ~inside]


def _until_waited_for(asked: pd.DataFrame, waits: pd.DataFrame) -> np.ndarray:
    """From each call to the end of the process's next wait; without one, for good. A call that waits is its own."""
    waits = waits.sort_values("start", kind="stable")
    ends = np.append(waits["end"].to_numpy(dtype=np.int64), LATER)
    at = np.searchsorted(waits["start"].to_numpy(dtype=np.int64), asked["start"].to_numpy(dtype=np.int64))
    return intervals.from_edges(asked["start"], ends[at])


def _named(calls: pd.DataFrame, form: re.Pattern) -> pd.Series:
    return calls["name"].isin([name for name in calls["name"].unique() if form.search(str(name))])
