"""How long is something true? Arithmetic on sets of time intervals.

A set of intervals is an integer array of shape ``(n, 2)``: starts and ends in nanoseconds, sorted, not overlapping.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

EMPTY = np.empty((0, 2), dtype=np.int64)
EDGES = ("start", "end")


def union(*tables: pd.DataFrame) -> np.ndarray:
    """The times at which any row of any table runs (columns ``start``, ``end``); overlaps count once."""
    tables = [table for table in tables if len(table)]
    if not tables:
        return EMPTY
    return from_edges(*(np.concatenate([table[edge].to_numpy(np.int64) for table in tables]) for edge in EDGES))


def union_of_each(numbers: np.ndarray, starts: ArrayLike, ends: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The union of the ranges of each kind; ``numbers`` (from 0 on) says which kind a range is of.

    Returns the intervals, shape ``(n, 2)``, kind by kind and in order, and each one's kind, shape ``(n,)``.
    """
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    lasting = ends > starts
    numbers, rows = np.asarray(numbers, dtype=np.int64)[lasting], np.column_stack([starts, ends])[lasting]
    edges, places = np.unique(rows, return_inverse=True)
    apart = places.reshape(-1, 2) + (numbers * len(edges))[:, None]  # each kind's times behind all of the one before
    merged = from_edges(*apart.T)
    return edges[merged % max(1, len(edges))], merged[:, 0] // max(1, len(edges))


def distinct(times: np.ndarray) -> np.ndarray:
    """The times in order, each once. ``np.unique`` has hashed whole numbers since NumPy 2.3: 60 times as slow here."""
    times = np.sort(times)
    return times[np.append(True, times[1:] != times[:-1])] if len(times) else times


def clip(intervals: np.ndarray, start: int, end: int) -> np.ndarray:
    """The part of the intervals, disjoint and in order, that lies within ``[start, end)``; themselves if all does."""
    if len(intervals) and start <= intervals[0, 0] and intervals[-1, 1] <= end:
        return intervals
    cut = np.clip(intervals, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def complement(intervals: np.ndarray, start: int, end: int) -> np.ndarray:
    """The times within ``[start, end)`` at which none of the intervals runs."""
    busy = clip(intervals, start, end)
    edges = np.concatenate([[start], busy.ravel(), [end]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def intersect(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The times at which both run."""
    if not len(a) or not len(b):
        return EMPTY
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")  # of b, the first that ends after a's interval starts
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")  # and the first that starts after it has ended
    pairs = np.maximum(last - first, 0)
    i = np.repeat(np.arange(len(a)), pairs)
    j = np.arange(len(i)) + np.repeat(first - (np.cumsum(pairs) - pairs), pairs)
    return np.column_stack([np.maximum(a[i, 0], b[j, 0]), np.minimum(a[i, 1], b[j, 1])])


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The times at which ``a`` runs and ``b`` does not."""
    if not len(a) or not len(b):
        return a
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def from_edges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The union of any intervals, given by their starts and ends; those without length are nothing."""
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    lasting = ends > starts
    if not lasting.all():
        starts, ends = starts[lasting], ends[lasting]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)  # the latest end so far
    first = np.append(True, starts[1:] > reach[:-1])  # begins after all earlier ones have ended
    return np.column_stack([starts[first], reach[np.append(first[1:], True)]])


def total_before(intervals: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How long the intervals have run before each time (ns)."""
    times = np.asarray(times, dtype=np.int64)
    if not len(intervals):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    number = np.searchsorted(intervals[:, 0], times, side="right")  # those that have begun
    last = np.append(np.iinfo(np.int64).min, intervals[:, 1])[number]  # when the last of them ends
    return whole[number] - (np.maximum(last, times) - times)


def covered(intervals: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How long the intervals run within each ``[start, end)`` (ns)."""
    return total_before(intervals, ends) - total_before(intervals, starts)


def total(intervals: np.ndarray) -> int:
    """The length of all intervals together, in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def innermost(starts: ArrayLike, ends: ArrayLike, names: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Nested, named ranges cut into a flat sequence: at each moment the innermost.

    Returns ``(edges, names)``: ``names[i]`` holds from ``edges[i]`` up to ``edges[i + 1]``; None where no range runs.
    """
    starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    lasting = ends > starts
    edges = distinct(np.concatenate([starts[lasting], ends[lasting]]))
    return edges, innermost_at(starts, ends, names, edges)


def innermost_at(starts: ArrayLike, ends: ArrayLike, names: ArrayLike, times: ArrayLike) -> np.ndarray:
    """The name of the innermost range at each time, in whatever order; None where no range runs."""
    return np.append(np.array(names, dtype=object), None)[place_at(starts, ends, times)]


def place_at(starts: ArrayLike, ends: ArrayLike, times: ArrayLike) -> np.ndarray:
    """The place of the innermost range at each time, in whatever order; -1 where no range runs.

    It is the one that began last of those that run then; of ranges that start together the outer one comes first. They
    need not nest: any two may overlap.
    """
    starts, times = np.asarray(starts, dtype=np.int64), np.asarray(times, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    ends, around = _around(np.asarray(ends, dtype=np.int64)[order])
    last = np.searchsorted(starts[order], times, side="right") - 1
    return np.append(order, -1)[_outwards(last, around, ends, times)]


def parents(starts: np.ndarray, ends: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Of ranges in order (of those that start together the outer first): the last before each that runs beyond a time.

    ``until`` is that time, not before the start: the start itself, or the last moment to be held. -1: there is none.
    """
    ends, around = _around(ends)
    return _outwards(np.arange(len(starts)) - 1, around, ends, until)


def nested_at(starts: np.ndarray, ends: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``place_at`` of ranges in order, and their ``parents`` at their starts: both by one look at how they nest."""
    ends, around = _around(ends)
    last = np.searchsorted(starts, times, side="right") - 1
    return _outwards(last, around, ends, times), _outwards(np.arange(len(starts)) - 1, around, ends, starts)


def _around(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of ranges in order, and at place -1 one behind them all; of each, the last before it that ends later."""
    ends = np.append(ends, np.iinfo(np.int64).max)
    around = np.arange(len(ends) - 1) - 1
    return ends, _outwards(around, around, ends, ends)


def _outwards(places: np.ndarray, around: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """From each place to the first of those around it that runs at a time; at most as many steps as ranges nest."""
    moving = np.flatnonzero(ends[places] <= times[: len(places)])
    while len(moving):
        at = around[places[moving]]
        places[moving] = at
        moving = moving[ends[at] <= times[moving]]
    return places
