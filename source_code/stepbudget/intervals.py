"""How long is something true? Arithmetic on sets of time intervals.

A set of intervals is an integer array of shape ``(n, 2)``: starts and ends in nanoseconds, sorted, not overlapping.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from stepbudget import nesting

EMPTY = np.empty((0, 2), dtype=np.int64)


def union(*tables: pd.DataFrame) -> np.ndarray:
    """The times at which any row of any table runs (columns ``start``, ``end``); overlaps count once."""
    parts = [table[["start", "end"]].to_numpy(dtype=np.int64) for table in tables if len(table)]
    if not parts:
        return EMPTY
    return _merged(np.concatenate(parts))


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
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")  # of b, the first that ends after a's interval starts
    last = np.searchsorted(b[:, 0], a[:, 1], side="left")  # and the first that starts after it has ended
    pairs = np.maximum(last - first, 0)
    i = np.repeat(np.arange(len(a)), pairs)
    j = np.arange(pairs.sum()) - np.repeat(np.cumsum(pairs) - pairs, pairs) + np.repeat(first, pairs)
    return np.column_stack([np.maximum(a[i, 0], b[j, 0]), np.minimum(a[i, 1], b[j, 1])])


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The times at which ``a`` runs and ``b`` does not."""
    if not len(a) or not len(b):
        return a
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def from_edges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The union of any intervals, given by their starts and ends; those without length are nothing."""
    rows = np.column_stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)])
    return _merged(rows)


def total_before(intervals: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How long the intervals have run before each time (ns)."""
    times = np.asarray(times, dtype=np.int64)
    if not len(intervals):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    number = np.searchsorted(intervals[:, 0], times, side="right")  # those that have begun
    over = np.where(number > 0, intervals[np.maximum(number - 1, 0), 1] - times, 0)
    return whole[number] - np.maximum(over, 0)


def covered(intervals: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How long the intervals run within each ``[start, end)`` (ns)."""
    return total_before(intervals, ends) - total_before(intervals, starts)


def total(intervals: np.ndarray) -> int:
    """The length of all intervals together, in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def innermost(rows: Iterable[tuple[int, int, object]]) -> tuple[np.ndarray, np.ndarray]:
    """Nested, named ranges cut into a flat sequence: at each moment the innermost.

    Returns ``(edges, names)``: ``names[i]`` holds from ``edges[i]`` up to ``edges[i + 1]``; None where no range runs.
    """
    ranges = sorted((row for row in rows if row[1] > row[0]), key=lambda row: row[0])
    edges = sorted({edge for start, end, _ in ranges for edge in (start, end)})
    names = [found and found[2] for found in nesting.innermost(ranges, edges)]
    return np.array(edges, dtype=np.int64), np.array(names, dtype=object)


def innermost_at(rows: Iterable[tuple[int, int, object]], times: np.ndarray) -> np.ndarray:
    """The name of the innermost range at each time, in whatever order; None where no range runs."""
    edges, names = innermost(rows)
    found = np.searchsorted(edges, times, side="right") - 1  # before the first and behind the last edge there is none
    return np.append(names, None)[found]


def _merged(rows: np.ndarray) -> np.ndarray:
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return EMPTY
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])  # the latest end so far
    first = np.concatenate([[True], rows[1:, 0] > reach[:-1]])  # begins after all earlier ones have ended
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([rows[first, 0], reach[last]])
