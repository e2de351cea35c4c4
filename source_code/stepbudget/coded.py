"""Which rows hold the same text? Names come a million times and are few: what is asked of one is asked once.

pandas looks at all letters of a text in each row. Equal texts of a report are one object, of which Python knows the
hash: telling them apart by it takes as long for a name of 200,000 letters as for one of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd


def coded(texts: Iterable[object]) -> tuple[np.ndarray, list]:
    """For each text the number of its own, shape (n,), and the different texts in order of first appearance."""
    rows = np.asarray(texts, dtype=object).tolist()
    numbers = {text: number for number, text in enumerate(dict.fromkeys(rows))}
    return np.fromiter(map(numbers.__getitem__, rows), dtype=np.intp, count=len(rows)), list(numbers)


def each(texts: pd.Series, change: Callable[[str], object]) -> pd.Series:
    """The texts with ``change`` made to each, worked out once for each different one; equal results are one object."""
    codes, different = coded(texts)
    same: dict[object, object] = {}
    changed = [same.setdefault(found, found) for found in map(change, different)]
    return pd.Series(np.array([*changed, None], dtype=object)[codes], index=texts.index, dtype=object)
