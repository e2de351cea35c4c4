"""How long is something true? Arithmetic on sets of time intervals.

A set of intervals is an integer array of shape ``(n, 2)``: starts and ends in nanoseconds, sorted, not overlapping.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

EMPTY = np.empty((0, 2), dtype=np.int64)


def union(*tables: pd.DataFrame) -> np.ndarray:
    """The times at which any row of any table runs (columns ``start``, ``end``); overlaps count once."""
    parts = [table[["start", "end"]].to_numpy(dtype=np.int64) for table in tables if len(table)]
    if not parts:
        return EMPTY
    rows = np.concatenate(parts)
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])  # the latest end so far
    first = np.concatenate([[True], rows[1:, 0] > reach[:-1]])  # begins after all earlier ones have ended
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([rows[first, 0], reach[last]])


def clip(intervals: np.ndarray, start: int, end: int) -> np.ndarray:
    """The part of the intervals that lies within ``[start, end)``."""
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
    first = np.searchsorted(
        b[:, 1], a[:, 0], side="right"
    )  # per interval of a: the first of b that ends after it starts
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")  # and the first of b that starts after it ends
    pairs = [(i, j) for i in range(len(a)) for j in range(first[i], last[i])]
    if not pairs:
        return EMPTY
    i, j = np.array(pairs).T
    return np.column_stack([np.maximum(a[i, 0], b[j, 0]), np.minimum(a[i, 1], b[j, 1])])


def total(intervals: np.ndarray) -> int:
    """The length of all intervals together, in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def innermost(rows: Iterable[tuple[int, int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Nested, named ranges cut into a flat sequence: at each moment, the range that began last.

    Returns ``(edges, names)``: ``names[i]`` holds from ``edges[i]`` up to ``edges[i + 1]``; None where no range runs.
    """
    events = []
    for number, (start, end, name) in enumerate(rows):
        if end > start:
            events += [(start, 1, number, name), (end, 0, number, name)]
    events.sort(key=lambda event: event[:3])  # at one moment, ends come before starts
    active: dict[int, str] = {}
    edges, names = [], []
    for time, begins, number, name in events:
        if begins:
            active[number] = name
        else:
            del active[number]
        current = active[next(reversed(active))] if active else None
        if edges and edges[-1] == time:
            names[-1] = current
        else:
            edges.append(time)
            names.append(current)
    return np.array(edges, dtype=np.int64), np.array(names, dtype=object)
