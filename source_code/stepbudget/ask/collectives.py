"""How long did the GPUs talk to one another, and for whom did they wait? Kernels of NCCL and its like.

On each GPU communication is *hidden* while another kernel or a CUDA graph of that GPU runs, and *exposed* while none
does. A collective comes to its end nowhere before it has begun everywhere: until the last rank's kernel starts, a rank
*waits*; what follows is *transfer*.

A rank is a process on a GPU. All are in one report, on one clock. Which kernels belong together is told by name and
order: the first of a name on one rank and the first on every other, and so on. Where a rank ran fewer (the capture cut
it short), its order is shifted to where most of its kernels run beside the others'. What does not fit is *unmatched*:
where a rank ended before the last began (another communicator, a broadcast's root), or a rank's part is missing, and
all that passes from one rank to another only (SendRecv).

Sources: NVIDIA, NCCL User Guide, "Collective Operations"; names as NCCL 2.4 to 2.27 gives its kernels.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.phases import named
from stepbudget.kernel_names import is_collective
from stepbudget.report import Report, remembered
from stepbudget.window import Window

POINT_TO_POINT = re.compile(r"send|recv", re.IGNORECASE)
MOST_SHIFTS = 256  # collectives by which a capture may cut one rank shorter than another

COLUMNS = [
    "gpu", "process", "kernels", "total_ms", "hidden_ms", "exposed_ms", "waiting_ms", "transfer_ms", "unmatched_ms",
    "matched", "last", "alone_ms",
]  # fmt: skip


def communication(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a rank (a process on a GPU) with collectives that run within the window (default: training).

    Columns: ``gpu``, ``process``, number of ``kernels``; milliseconds in which any of them ran, ``total_ms``, which are
    ``hidden_ms`` + ``exposed_ms``, and are ``waiting_ms`` (for the last rank, no other transfer running) +
    ``transfer_ms`` + ``unmatched_ms``; how many were ``matched`` on all ranks, at how many of these this rank's start
    was the ``last``, and ``alone_ms``: for how long, in sum, all others had begun and waited for it alone.
    """
    window = window or report.window()
    table = collectives(report, Window(window.start, window.end, window.name))
    rows = []
    for (gpu, process), own in table.groupby(["gpu", "process"]):
        known = own[own["last_start"].notna()]
        until = known["last_start"].astype("int64")
        total, waits, moves = (
            intervals.clip(intervals.from_edges(start, end), window.start, window.end)
            for start, end in ((own["start"], own["end"]), (known["start"], until), (until, known["end"]))
        )
        hidden_ns = intervals.total(intervals.intersect(total, _others(report, int(gpu))))
        total_ns, transfer_ns = intervals.total(total), intervals.total(moves)
        waiting_ns = intervals.total(intervals.subtract(waits, moves))
        ns = [total_ns, hidden_ns, total_ns - hidden_ns, waiting_ns, transfer_ns, total_ns - waiting_ns - transfer_ns]
        counts = len(known), int((known["alone_ns"] > 0).sum())
        rows.append(
            (int(gpu), int(process), len(own), *(one / 1e6 for one in ns), *counts, own["alone_ns"].sum() / 1e6)
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def late(found: pd.DataFrame) -> pd.Series | None:
    """The row of ``communication`` whose rank the others waited for longest; None where they waited for none."""
    return found.loc[found["alone_ms"].idxmax()] if len(found) and found["alone_ms"].max() > 0 else None


@remembered
def collectives(report: Report, window: Window) -> pd.DataFrame:
    """One row a kernel of a collective that runs within the window (default: training), in order of their starts.

    Columns: ``gpu``, ``process``, ``name``, ``start``, ``end`` (ns); ``last_start``: when it began on the last of all
    ranks (NaN: unmatched); ``alone_ns``: on the rank that began last, by how much it was later than the last but one.
    """
    table = report.kernels[["gpu", "process", "name", "start", "end"]]
    table = table[named(table["name"], is_collective)].reset_index(drop=True)
    table = table.assign(last_start=np.nan, alone_ns=0)
    ranks = table.groupby(["gpu", "process"]).ngroup()
    for name, own in table.groupby("name") if ranks.nunique() > 1 else ():
        if not POINT_TO_POINT.search(str(name)):
            together = _together([rows.index.to_numpy() for _, rows in own.groupby(ranks[own.index])], table)
            _match(table, together)
    inside = (table["start"] < window.end) & (table["end"] > window.start)
    return table[inside].reset_index(drop=True)


def _together(ranks: list[np.ndarray], table: pd.DataFrame) -> np.ndarray:
    """Which rows of the table are one collective? Shape (collectives, ranks); ``ranks``: the rows of each, in order."""
    start, end = (table[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    longest = max(ranks, key=len)
    first, last = 0, len(longest)  # of the longest: where all ranks have their part
    shifts = []
    for own in ranks:
        beside = [
            int((np.maximum(start[own], start[part]) < np.minimum(end[own], end[part])).sum())
            for shift in range(min(len(longest) - len(own), MOST_SHIFTS) + 1)
            for part in [longest[shift : shift + len(own)]]
        ]
        shift = int(np.argmax(beside))
        shifts.append(shift)
        first, last = max(first, shift), min(last, shift + len(own))
    return np.column_stack(
        [own[first - shift : max(first, last) - shift] for own, shift in zip(ranks, shifts, strict=True)]
    )


def _match(table: pd.DataFrame, together: np.ndarray) -> None:
    """Write into the table when each collective began on its last rank, and by how much that one was later."""
    if together.shape[1] < 2:
        return
    start, end = (table[edge].to_numpy(dtype=np.int64)[together] for edge in ("start", "end"))
    together = together[start.max(axis=1) < end.min(axis=1)]
    start = table["start"].to_numpy(dtype=np.int64)[together]
    ordered = np.sort(start, axis=1)
    table.loc[together.ravel(), "last_start"] = np.repeat(ordered[:, -1], together.shape[1])
    table.loc[together[np.arange(len(together)), start.argmax(axis=1)], "alone_ns"] = ordered[:, -1] - ordered[:, -2]


def _others(report: Report, gpu: int) -> np.ndarray:
    """When does a GPU run any other kernel, or a CUDA graph?"""
    kernels = report.kernels[report.kernels["gpu"] == gpu]
    graphs = report.graphs[report.graphs["gpu"] == gpu] if len(report.graphs) else report.graphs
    return intervals.union(kernels[~named(kernels["name"], is_collective)], graphs)
