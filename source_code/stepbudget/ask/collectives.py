"""How long did the GPUs talk to one another, and for whom did they wait? Kernels of NCCL and its like.

On each GPU communication is *hidden* while another kernel or a CUDA graph of that GPU runs, and *exposed* while none
does. A collective comes to its end nowhere before it has begun everywhere: until the last rank's kernel starts, a rank
*waits*; what follows is *transfer*.

A rank is a process on a GPU. In one report all are on one clock; stepbudget.ask.ranks brings those of several reports
together. Which kernels belong together is told by the communicator and its own number of the operation, where NCCL
wrote them (stepbudget.nccl); by communicator and order, where it wrote the communicator only; else by name and order:
the first of a name on one rank and the first on every other, and so on. Where a rank ran fewer (the capture cut it
short), its order is shifted to where most of its kernels run beside the others'. What does not fit is *unmatched*:
where a rank ended before the last began (another communicator, a broadcast's root), or a rank's part is missing, and
all that passes from one rank to another only (SendRecv).

Which call a kernel came from: the range that its launch lies in. A launch within ``ncclGroupEnd`` came from the calls
of the group; several in one kernel are one message of all their bytes.

Bus bandwidth is nccl-tests': size over time, times what each rank's link moves of it, so that one number can be held
against the link's peak whatever the number of ranks. The time is the transfer: from the last start to the last end.

Sources: NVIDIA, NCCL User Guide, "Collective Operations", "Group Calls"; nccl-tests, doc/PERFORMANCE.md; names as NCCL
2.4 to 2.30 gives its kernels.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.phases import named
from stepbudget.kernel_names import is_collective
from stepbudget.report import Report, remembered
from stepbudget.window import Window

POINT_TO_POINT = re.compile(r"send|recv", re.IGNORECASE)
MOST_SHIFTS = 256  # collectives by which a capture may cut one rank shorter than another

# What a kernel does, by its name: the first that fits, letters alone.
FUNCTIONS = {
    "crossdevicereduce": "AllReduce",
    **{
        name.lower(): name
        for name in ("ReduceScatter", "AllReduce", "AllGather", "AlltoAll", "Broadcast", "SendRecv", "Reduce")
    },
}
# Bus bandwidth of n ranks: how many times a rank's message is the size that counts, and the factor of it.
BUS = {
    "AllReduce": (lambda n: 1, lambda n: 2 * (n - 1) / n),
    "ReduceScatter": (lambda n: n, lambda n: (n - 1) / n),
    "AllGather": (lambda n: n, lambda n: (n - 1) / n),
    "AlltoAll": (lambda n: n, lambda n: (n - 1) / n),
    "Broadcast": (lambda n: 1, lambda n: 1),
    "Reduce": (lambda n: 1, lambda n: 1),
}

COLUMNS = [
    "gpu", "process", "kernels", "total_ms", "hidden_ms", "exposed_ms", "waiting_ms", "transfer_ms", "unmatched_ms",
    "matched", "last", "alone_ms",
]  # fmt: skip
WRITTEN = ["communicator", "bytes", "ranks", "sequence"]
NO_SIZES = (
    "message sizes of collectives, and so bus bandwidth: NCCL writes them into its NVTX ranges (--trace cuda,nvtx), "
    "and nsys exports them where it knows --include-json and --include-blobs (2024.2 does not)"
)
BANDWIDTH = [
    "function", "ranks", "count", "bytes", "transfer_ms", "algorithm_gb_per_s", "bus_gb_per_s", "largest_bytes",
    "largest_bus_gb_per_s",
]  # fmt: skip


def communication(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a rank (a process on a GPU) with collectives that run within the window (default: training).

    Columns: ``gpu``, ``process``, and those of ``split``.
    """
    window = window or report.window()
    table = collectives(report, window)
    rows = [
        {"gpu": int(gpu), "process": int(process), **split(report, int(gpu), own, window)}
        for (gpu, process), own in table.groupby(["gpu", "process"])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def split(report: Report, gpu: int, own: pd.DataFrame, window: Window) -> dict[str, float]:
    """What one rank's collectives of a window come to; ``own``: its rows of ``matched``, on the report's clock.

    Number of ``kernels``; milliseconds in which any of them ran, ``total_ms``, which are ``hidden_ms`` +
    ``exposed_ms``, and are ``waiting_ms`` (for the last rank, no other transfer running) + ``transfer_ms`` +
    ``unmatched_ms``; how many were ``matched`` on all ranks, at how many of these this rank's start was the ``last``,
    and ``alone_ms``: for how long, in sum, all others had begun and waited for it alone.
    """
    known = own[own["last_start"].notna()]
    until = np.minimum(known["last_start"].astype("int64"), known["end"])
    total, waits, moves = (
        intervals.clip(intervals.from_edges(start, end), window.start, window.end)
        for start, end in ((own["start"], own["end"]), (known["start"], until), (until, known["end"]))
    )
    hidden_ns = intervals.total(intervals.intersect(total, others(report, gpu)))
    total_ns, transfer_ns = intervals.total(total), intervals.total(moves)
    waiting_ns = intervals.total(intervals.subtract(waits, moves))
    return {
        "kernels": len(own),
        "total_ms": total_ns / 1e6,
        "hidden_ms": hidden_ns / 1e6,
        "exposed_ms": (total_ns - hidden_ns) / 1e6,
        "waiting_ms": waiting_ns / 1e6,
        "transfer_ms": transfer_ns / 1e6,
        "unmatched_ms": (total_ns - waiting_ns - transfer_ns) / 1e6,
        "matched": len(known),
        "last": int((known["alone_ns"] > 0).sum()),
        "alone_ms": float(own["alone_ns"].sum()) / 1e6,
    }


def late(found: pd.DataFrame) -> pd.Series | None:
    """The row of ``communication`` whose rank the others waited for longest; None where they waited for none."""
    return found.loc[found["alone_ms"].idxmax()] if len(found) and found["alone_ms"].max() > 0 else None


def bandwidth(table: pd.DataFrame) -> pd.DataFrame:
    """How fast did the collectives of ``matched`` move what their messages held? One row a function and group size.

    Of those whose size NCCL wrote, and of which every rank is there (as many as NCCL wrote; where it did not, as many
    as are in the table). Columns: ``function``, ``ranks``, ``count``, ``bytes`` of one rank's messages in sum,
    ``transfer_ms`` in sum, ``algorithm_gb_per_s``, ``bus_gb_per_s``; of the largest messages alone, which latency slows
    least, ``largest_bytes`` and ``largest_bus_gb_per_s`` (the median).
    """
    table = table[(table["collective"] >= 0) & table["bytes"].notna() & table["function"].isin(BUS)]
    table = table.astype({"ranks": float, "bytes": float})
    each = table.groupby("collective").agg(
        function=("function", "first"), told=("ranks", "max"), there=("rank", "nunique"), least=("bytes", "min"),
        bytes=("bytes", "max"), start=("last_start", "max"), end=("last_end", "max"),
    )  # fmt: skip
    size = table.groupby("collective").size()
    each["ranks"] = each["told"].fillna(table.groupby("collective")["group"].first()).astype(int)
    whole = (each["there"] == each["ranks"]) & (size == each["ranks"]) & (each["least"] == each["bytes"])
    each = each[whole & (each["ranks"] > 1) & (each["end"] > each["start"]) & (each["bytes"] > 0)]
    rows = []
    for (function, n), own in each.groupby(["function", "ranks"]):
        parts, factor = (of(n) for of in BUS[function])
        ns, largest = own["end"] - own["start"], own["bytes"].max()
        rates = own["bytes"] * parts / ns  # bytes a nanosecond are GB/s
        rate, of_largest = own["bytes"].sum() * parts / ns.sum(), rates[own["bytes"] == largest].median()
        sums = int(own["bytes"].sum()), ns.sum() / 1e6
        rows.append((function, int(n), len(own), *sums, rate, rate * factor, int(largest), of_largest * factor))
    return pd.DataFrame(rows, columns=BANDWIDTH)


def collectives(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a kernel of a collective that runs within the window (default: training), in order of their starts.

    Of whatever process. The columns of ``kernels``, a number for each ``rank``, and those of ``matched``.
    """
    window = window or report.window()
    return _collectives(report, Window(window.start, window.end, window.name))


@remembered
def _collectives(report: Report, window: Window) -> pd.DataFrame:
    table = kernels(report)
    table = matched(table.assign(rank=table.groupby(["gpu", "process"]).ngroup()))
    inside = (table["start"] < window.end) & (table["end"] > window.start)
    return table[inside].reset_index(drop=True)


def matched(table: pd.DataFrame, slack_ns: int = 0) -> pd.DataFrame:
    """Kernels of collectives (columns of ``kernels``, and ``rank``; on one clock), with what belongs together.

    New columns: ``collective``, the same number on all ranks (-1: unmatched); ``group``: how many ranks it has here;
    ``last_start`` and ``last_end``: when it began, and ended, on the last of them (NaN: unmatched); ``alone_ns``: on
    the rank that began last, by how much it was later than the last but one. ``slack_ns``: by how much the clocks may
    differ, and so a rank may seem to end before the last began.
    """
    table = table.assign(collective=-1, group=0, last_start=np.nan, last_end=np.nan, alone_ns=0)
    communicator = table["communicator"] if by_communicator(table) else None
    what = table["name"] if communicator is None else table["function"].where(communicator.notna(), table["name"])
    for _, own in table.groupby([what if communicator is None else communicator.fillna(""), what], sort=False):
        ranks = [rows for _, rows in own.groupby("rank")]
        if len(ranks) > 1 and not POINT_TO_POINT.search(str(own["name"].iloc[0])):
            numbered = own["sequence"].notna().all()
            _match(
                table, _same_number(ranks) if numbered else _together([rows.index for rows in ranks], table), slack_ns
            )
    return table


def by_communicator(table: pd.DataFrame) -> bool:
    """Did NCCL write, on every rank of the table, to which communicator its kernels belong?"""
    return len(table) > 0 and bool(table["communicator"].notna().groupby(table["rank"]).any().all())


def _same_number(ranks: list[pd.DataFrame]) -> np.ndarray:
    """The rows whose number in the communicator is on every rank: shape (collectives, ranks)."""
    places = [pd.Series(rows.index, index=rows["sequence"]) for rows in ranks]
    places = [own[~own.index.duplicated()] for own in places]
    return pd.concat(places, axis=1, join="inner").to_numpy()


def _together(ranks: list[pd.Index], table: pd.DataFrame) -> np.ndarray:
    """Which rows of the table are one collective? Shape (collectives, ranks); ``ranks``: the rows of each, in order."""
    start, end = (table[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
    ranks = [own.to_numpy() for own in ranks]
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


def _match(table: pd.DataFrame, together: np.ndarray, slack_ns: int) -> None:
    """Write into the table which rows are one collective, when it began and ended on its last rank, and by how much."""
    if not len(together) or together.shape[1] < 2:
        return
    start, end = (table[edge].to_numpy(dtype=np.int64)[together] for edge in ("start", "end"))
    fits = start.max(axis=1) < end.min(axis=1) + slack_ns
    together, start, end = together[fits], start[fits], end[fits]
    count, ranks = together.shape
    ordered = np.sort(start, axis=1)
    rows, numbers = together.ravel(), np.arange(count) + table["collective"].max() + 1
    for column, values in (("collective", numbers), ("last_start", ordered[:, -1]), ("last_end", end.max(axis=1))):
        table.loc[rows, column] = np.repeat(values, ranks)
    table.loc[rows, "group"] = ranks
    table.loc[together[np.arange(count), start.argmax(axis=1)], "alone_ns"] = ordered[:, -1] - ordered[:, -2]


# --- the kernels, and what NCCL wrote of them ---------------------------------------------------------------


def kernels(report: Report) -> pd.DataFrame:
    """Every kernel of a collective in the report, in order of their starts.

    Columns: ``gpu``, ``process``, ``name``, ``start``, ``end`` (ns), ``function`` (``AllReduce``, …; None: the name
    does not tell), and what NCCL wrote, else None: ``communicator``, ``bytes`` of one rank's message, ``ranks`` of the
    communicator, ``sequence``, its number in it.
    """
    if "collective kernels" not in report.answers:
        table = report.kernels
        table = table[named(table["name"], is_collective)].reset_index(drop=True)
        table = table.assign(function=table["name"].map(function_of).astype(object))
        told = _told(table, report.nccl_calls if len(table) else None)
        kept = ["gpu", "process", "name", "start", "end", "function"]
        report.answers["collective kernels"] = pd.concat([table[kept], told], axis=1)
    return report.answers["collective kernels"].copy()


@lru_cache(maxsize=1024)
def function_of(name: str) -> str | None:
    """What a kernel of this name does, as NCCL calls it (``AllReduce``); None where the name does not tell."""
    letters = re.sub(r"[^a-z]", "", re.match(r"[^<(]*", name).group().lower())
    return next((function for part, function in FUNCTIONS.items() if part in letters), None)


def _told(table: pd.DataFrame, calls: pd.DataFrame | None) -> pd.DataFrame:
    """For each kernel what NCCL wrote of it: the columns WRITTEN."""
    found: dict[int, dict] = {}
    if calls is not None and len(calls):
        found = _asked(table, calls[calls["sequence"].isna()])
        found |= _ran(table, calls[calls["sequence"].notna() & calls["communicator"].notna()])
    rows = [[found.get(place, {}).get(column) for column in WRITTEN] for place in table.index]
    told = pd.DataFrame(rows, index=table.index, columns=WRITTEN, dtype=object)
    if found:
        sizes = calls.dropna(subset=["communicator", "ranks"]).groupby("communicator")["ranks"].max().to_dict()
        told["ranks"] = pd.Series([sizes.get(one) for one in told["communicator"]], index=told.index, dtype=object)
    return told


def _asked(table: pd.DataFrame, calls: pd.DataFrame) -> dict[int, dict]:
    """Kernel → the call that asked for it, by the range that its launch lies in; none where several could have."""
    found: dict[int, dict] = {}
    launched = table[table["api_thread"].notna()]
    for thread, own in launched.groupby("api_thread"):
        mine = calls[calls["thread"] == thread]
        asks = mine[mine["function"].isin(BUS)].to_dict("records")
        starts, ends = (np.array([call[edge] for call in asks], dtype=np.int64) for edge in ("start", "end"))
        opened, begun, over = _groups(mine)
        held: dict[int, list[int]] = {}  # the end of a group → the kernels launched in it
        for place, at in zip(own.index, own["api_start"].astype("int64"), strict=True):
            last, group = (int(np.searchsorted(edges, at, side="right")) - 1 for edges in (starts, begun))
            if last >= 0 and at <= ends[last]:
                found[place] = asks[last]
            elif group >= 0 and at <= over[group]:
                held.setdefault(group, []).append(place)
        for group, places in held.items():
            first, last = np.searchsorted(starts, [opened[group], begun[group]])
            found |= _of_group(table, places, asks[first:last])
    return found


def _groups(calls: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A thread's outermost groups (ns): where the first ``ncclGroupStart`` began, where the last ``ncclGroupEnd`` did.

    And where that ended. Groups within a group launch nothing. A start that the capture missed was after the group
    before.
    """
    found: list[tuple[int, int, int]] = []
    depth, since = 0, np.iinfo(np.int64).min
    chosen = calls[calls["function"].isin(("GroupStart", "GroupEnd"))]
    for function, start, end in zip(chosen["function"], chosen["start"], chosen["end"], strict=True):
        if function == "GroupStart":
            since = since if depth else start
            depth += 1
        elif depth <= 1:
            found.append((since, start, end))
            depth, since = 0, end
        else:
            depth -= 1
    opened, begun, over = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return opened, begun, over


def _of_group(table: pd.DataFrame, places: list[int], calls: list[dict]) -> dict[int, dict]:
    """Kernels of one group → what their calls come to: where it is one kernel, or calls that do not differ."""
    found = {}
    for function in {table.at[place, "function"] for place in places}:
        mine = [place for place in places if table.at[place, "function"] == function]
        asked = [call for call in calls if call["function"] == function]
        sizes, communicators = [call["bytes"] for call in asked], {call["communicator"] for call in asked}
        if len(communicators) == 1:
            whole = None if None in sizes else sum(sizes) if len(mine) == 1 else None
            if len(mine) == len(asked) and len(set(sizes)) == 1:
                whole = sizes[0]
            call = {"communicator": communicators.pop(), "bytes": whole}
            found |= {place: call for place in mine}
    return found


def _ran(table: pd.DataFrame, operations: pd.DataFrame) -> dict[int, dict]:
    """Kernel → the operation, as NCCL itself saw it run on the GPU, that the kernel ran beside longest.

    NCCL reports one range a channel of an operation. The clock is the GPU's, so no launch is needed.
    """
    by = ["process", "function", "communicator", "sequence"]
    seen = {"start": "min", "end": "max", "bytes": "max"}
    merged = operations.astype({"bytes": float}).groupby(by, as_index=False, sort=False).agg(seen)
    found = {}
    for (process, function), own in merged.groupby(["process", "function"]):
        mine = table[(table["process"] == process) & (table["function"] == function)]
        start, end = (own[edge].to_numpy(dtype=np.int64) for edge in ("start", "end"))
        calls = own.to_dict("records")
        for place, first, last in zip(mine.index, mine["start"], mine["end"], strict=True):
            beside = np.minimum(end, last) - np.maximum(start, first)
            if beside.max() * 2 > last - first:
                found[place] = calls[int(beside.argmax())]
    return found


def others(report: Report, gpu: int) -> np.ndarray:
    """When does a GPU run any other kernel, or a CUDA graph?"""
    kernels = report.kernels[report.kernels["gpu"] == gpu]
    graphs = report.graphs[report.graphs["gpu"] == gpu] if len(report.graphs) else report.graphs
    return intervals.union(kernels[~named(kernels["name"], is_collective)], graphs)
