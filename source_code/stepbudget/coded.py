"""Which rows hold the same text? Names come a million times and are few: what is asked of one is asked once.

pandas looks at all letters of a text in each row. Equal texts of a report are one object: they are told apart by where
it lies, which takes as long for a name of 200,000 letters as for one of ten, and only one of each object is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd


def coded(texts: Iterable[object]) -> tuple[np.ndarray, list]:
    """For each text the number of its own, shape (n,), and the different texts in order of first appearance."""
    rows = np.ascontiguousarray(np.asarray(texts, dtype=object))
    if not len(rows):
        return np.empty(0, dtype=np.intp), []
    # An array of objects is one of addresses. ``rows`` holds on to the objects, so that no two share one.
    addresses = np.ctypeslib.as_array((ctypes.c_ssize_t * len(rows)).from_address(rows.ctypes.data))
    codes, _ = pd.factorize(addresses)
    numbers: dict[object, int] = {}
    same = [numbers.setdefault(text, len(numbers)) for text in rows[firsts(codes)].tolist()]
    return (codes if len(numbers) == len(same) else np.array(same, dtype=np.intp)[codes]), list(numbers)


def together(*codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row of several columns of whole numbers the number of its own combination, and where each comes first.

    The numbers, shape (n,), are those of the combinations in order of first appearance; the places, shape (k,), too.
    """
    number, _ = pd.factorize(np.asarray(codes[0]), use_na_sentinel=False)
    for code in codes[1:]:
        code, different = pd.factorize(np.asarray(code))
        number, _ = pd.factorize(number * (len(different) + 1) + code)
    return number, firsts(number)


def firsts(numbers: np.ndarray) -> np.ndarray:
    """Where each number comes first, of numbers from 0 on in order of their first appearance."""
    highest = np.maximum.accumulate(numbers)
    return np.append(0, np.flatnonzero(highest[1:] > highest[:-1]) + 1)[: len(numbers)]


def each(texts: pd.Series, change: Callable[[str], object]) -> pd.Series:
    """The texts with ``change`` made to each, worked out once for each different one; equal results are one object."""
    codes, different = coded(texts)
    same: dict[object, object] = {}
    changed = [same.setdefault(found, found) for found in map(change, different)]
    return pd.Series(np.array([*changed, None], dtype=object)[codes], index=texts.index, dtype=object)
