"""What ran when, row by row? Causes, ranges, calls, streams: what a picture of a report and a trace are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.budget import Budget, causes_of_kernels
from stepbudget.ask.copies import with_memory
from stepbudget.ask.phases import named
from stepbudget.ask.threads import WAITING_CALLS, within
from stepbudget.report import Report
from stepbudget.show.style import CALL, FILL
from stepbudget.window import Window

CAUSES, RANGES, CALLS, OS_CALLS, WORK = "causes", "ranges", "calls", "os_calls", "work"

A_FILL, A_GRAPH = "memory fill", "CUDA graph"  # the names of GPU work that has none of its own
COPYING = re.compile("Memcpy")
OF_WORK = ["start", "end", "name", "look", "gpu", "stream", "process", "api_start", "api_thread", "bytes"]


@dataclass(frozen=True)
class Row:
    """What one thread or one stream did within a window, in order of its start.

    ``events``: ``start``, ``end`` (ns, not cut at the window's edges), ``name``, ``look`` (a cause of the budget, a
    range's name, CALL or FILL of stepbudget.show.style); of GPU work also ``api_start``, ``api_thread`` (NaN where the
    report does not hold the call) and ``bytes`` (NaN but of copies and fills).
    """

    kind: str
    owner: int | None  # of causes and work the number of the GPU; else of the process
    number: int  # of the stream or of the thread
    events: pd.DataFrame


def rows(report: Report, found: Budget, window: Window | None = None) -> Iterator[Row]:
    """All that runs within a window, whosever it is: first the budget, then what it was made from.

    ``window``: a part of the budget's (default: all of it).
    """
    window = window or found.window
    ranges, calls = within(report.ranges, window), within(report.api, window)
    yield Row(CAUSES, found.device, 0, causes(found, window))
    yield from _by(WORK, "gpu", "stream", work(report, found, window))
    yield from _by(RANGES, "process", "thread", ranges.assign(look=ranges["name"]))
    yield from _by(CALLS, "process", "thread", calls.assign(look=looks_of_calls(calls["name"])))
    yield from _by(OS_CALLS, "process", "thread", within(report.os_calls, window).assign(look=CALL))


def work(report: Report, found: Budget, window: Window) -> pd.DataFrame:
    """Kernels, copies, fills and whole graphs of every GPU that run within a window; columns: OF_WORK.

    Kernels look as in the budget, whatever part of its window is asked for.
    """
    kernels, copies = within(report.kernels, window), with_memory(report, within(report.copies, window))
    looks = causes_of_kernels(report, found.window, kernels["name"].unique())
    parts = [
        kernels.assign(look=kernels["name"].map(looks)),
        copies.assign(name=copies["direction"] + ", " + copies["host_memory"], look="copies"),
        within(report.memsets, window).assign(name=A_FILL, look=FILL),
        within(report.graphs, window).assign(name=A_GRAPH, look="cuda_graph"),
    ]
    parts = [part.reindex(columns=OF_WORK) for part in parts if len(part)]  # empty tables have no types of their own
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=OF_WORK)


def causes(found: Budget, window: Window) -> pd.DataFrame:
    """The budget's stretches within a window as events."""
    parts = []
    for cause, spans in found.spans.items():
        inside = intervals.clip(spans, window.start, window.end)
        parts.append(pd.DataFrame(inside, columns=["start", "end"]).assign(name=found.label(cause), look=cause))
    return pd.concat(parts).sort_values("start", ignore_index=True)


def looks_of_calls(names: pd.Series) -> pd.Series:
    """What a CUDA call is for: copying, waiting, or launching and the like."""
    copies, waits = named(names, COPYING.search), named(names, WAITING_CALLS.search)
    return pd.Series(np.select([copies, waits], ["copies", "synchronisation"], CALL), index=names.index, dtype=object)


def nested(events: pd.DataFrame) -> np.ndarray:
    """For each event the number of its track, so that any two of one track lie apart or one within the other.

    One track is enough for what was pushed and popped, or ran one after the other.
    """
    return np.array([track for track, _ in _places(events)], dtype=np.int64)


def depths(events: pd.DataFrame) -> np.ndarray:
    """For each event, how many of the others of its track hold it: 0 for the outermost."""
    return np.array([depth for _, depth in _places(events)], dtype=np.int64)


def _places(events: pd.DataFrame) -> list[tuple[int, int]]:
    """Track and depth of each event, in the order of the table."""
    start, end = (events[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    order = np.lexsort((-end, start))
    if not (end[order][:-1] > start[order][1:]).any():  # one after the other
        return [(0, 0)] * len(events)
    open_: list[list[int]] = []  # of each track, the ends of what runs
    places: list[tuple[int, int]] = [(0, 0)] * len(events)
    for at, first, last in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        track = 0
        for running in open_:
            while running and running[-1] <= first:
                running.pop()
            if not running or running[-1] >= last:
                break
            track += 1
        else:
            running = []
            open_.append(running)
        places[at] = track, len(running)
        running.append(last)
    return places


def _by(kind: str, owner: str, number: str, table: pd.DataFrame) -> Iterator[Row]:
    for (whose, which), own in table.groupby([owner, number], sort=True) if len(table) else ():
        own = own if own["start"].is_monotonic_increasing else own.sort_values(["start", "end"], kind="stable")
        yield Row(kind, int(whose), int(which), own.reset_index(drop=True))
