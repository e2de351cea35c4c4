"""What is copied between host and GPU, from which kind of memory, and how fast?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from stepbudget import intervals
from stepbudget.ask.threads import begins_in
from stepbudget.export.kinds import DIRECTIONS, MEMORY
from stepbudget.report import Report, remembered
from stepbudget.window import Window

RESULT_BYTES = 1024  # some 0.1 µs on the slowest link: a copy of so little takes no time of its own


def copies(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a direction and kind of host memory, for copies that begin within the window (default: training).

    Columns: ``direction``, ``host_memory``, ``count``, ``bytes``, ``mb`` (10⁶ bytes), ``gpu_ms`` on the copy engine,
    ``overlap_ms`` of it while a kernel of the same GPU ran, ``api_ms`` for which the calling thread is held,
    ``longest_gpu_us``, ``longest_api_us``, ``gb_per_s``.

    Held means in the call that asks for the copy, and in a stream synchronisation if that is the thread's very next
    call: PyTorch's blocking ``.to(device)`` is those two. A call holds its thread once, however many copies it asks
    for, and not for the copies of a CUDA graph that it launches.
    """
    table = labelled(report, window)
    table["overlap_ns"] = _overlap_with_kernels(report, table)
    grouped = table.groupby(["direction", "host_memory"], sort=True)
    result = grouped.agg(
        count=("bytes", "size"),
        bytes=("bytes", "sum"),
        mb=("bytes", lambda b: b.sum() / 1e6),
        gpu_ms=("gpu_ns", lambda ns: ns.sum() / 1e6),
        overlap_ms=("overlap_ns", lambda ns: ns.sum() / 1e6),
        api_ms=("api_ns", lambda ns: ns.sum() / 1e6),
        longest_gpu_us=("gpu_ns", lambda ns: ns.max() / 1e3),
        longest_api_us=("api_ns", lambda ns: ns.max() / 1e3),
    ).reset_index()
    result["gb_per_s"] = result["mb"] / result["gpu_ms"].where(result["gpu_ms"] > 0)
    return result


@remembered
def labelled(report: Report, window: Window | None = None) -> pd.DataFrame:
    """The copies of the window, a row each, with direction and host memory in words and both durations in ns."""
    table = with_memory(report, report.copies[begins_in(report.copies, window)])
    waits = wait_after(report, table)
    table["gpu_ns"] = table["end"] - table["start"]
    table["api_ns"] = table["api_end"] - table["api_start"] + (waits["end"] - waits["start"]).fillna(0)
    table["api_ns"] = table["api_ns"].where(made_by_call(report, table) | table["api_ns"].isna(), 0)
    return table


def made_by_call(report: Report, table: pd.DataFrame) -> pd.Series:
    """Of the copies that one call asked for the first, and none of those that a launch of a CUDA graph makes."""
    names = report.api["name"]
    graphs = names.index[names.isin([name for name in names.unique() if "GraphLaunch" in name])]
    return ~table.duplicated("call") & (table["call"] >= 0) & ~table["call"].isin(graphs)


def with_memory(report: Report, table: pd.DataFrame) -> pd.DataFrame:
    """The copies with ``direction`` and ``host_memory`` in words; "other" and "unknown" where the report's numbers are.

    The host's side of a copy is its source, or its target on the way from the device; a copy between devices has none,
    and its source's kind stands there.
    """
    directions = report.words("ENUM_CUDA_MEMCPY_OPER", DIRECTIONS)
    memory = report.words("ENUM_CUDA_MEM_KIND", MEMORY)
    direction = table["copy_kind"].map(directions).astype(object).fillna("other")
    host = table["source_kind"].where(direction != "device to host", table["target_kind"])
    return table.assign(direction=direction, host_memory=host.map(memory).astype(object).fillna("unknown"))


def brings_result(table: pd.DataFrame) -> pd.Series:
    """Which copies (with ``direction``) bring a result that the program waits for, such as ``.item()``'s one number?

    Those to the host of at most RESULT_BYTES: whatever they cost is the wait for the kernels before them.
    """
    return (table["direction"] == "device to host") & (table["bytes"] <= RESULT_BYTES)


def waits(report: Report, table: pd.DataFrame) -> pd.Series:
    """Which copies (``with_memory``) are a wait for kernels: those that bring a result, and those that come late.

    A call came late if it, with the wait after it, lasted mostly because kernels or CUDA graphs of its process ran on
    its GPU before the copy began. To the host the thread would wait as long without the copy; on the way to the device
    it would not from pinned memory, so that only what is as small as a result is a wait.
    """
    until = wait_after(report, table)["end"].fillna(table["api_end"])
    late = pd.Series(False, index=table.index)
    for (gpu, process), own in table[table["api_start"].notna()].groupby(["gpu", "process"]):
        work = [one[(one["gpu"] == gpu) & (one["process"] == process)] for one in (report.kernels, report.graphs)]
        began = own["api_start"].to_numpy(dtype=np.int64)
        starts = np.maximum(own["start"].to_numpy(dtype=np.int64), began)
        ran = intervals.covered(intervals.union(*work), began, starts)
        late[own.index] = 2 * ran > until[own.index].to_numpy(dtype=np.int64) - began
    return brings_result(table) | late & ((table["direction"] == "device to host") | (table["bytes"] <= RESULT_BYTES))


def wait_after(report: Report, table: pd.DataFrame) -> pd.DataFrame:
    """For each copy the stream synchronisation that is its thread's very next call, in which the thread is held too.

    PyTorch's blocking ``.to(device)`` is the copy's call and this one. Columns: ``start``, ``end`` (ns), ``call`` (its
    row in ``report.api``); NaN where another call follows, or none.
    """
    columns = ["start", "end", "call"]
    calls = report.api.rename_axis("call").reset_index()
    known = table[table["api_end"].notna() & table["api_thread"].notna()]
    if known.empty or calls.empty:
        return pd.DataFrame(np.nan, index=table.index, columns=columns)
    copies = known[["api_end", "api_thread"]].astype("int64").set_axis(["start", "thread"], axis=1)
    copies = copies.rename_axis("copy").reset_index().sort_values("start")
    calls = calls[["start", "thread", "end", "call", "name"]].sort_values("start", kind="stable")
    following = pd.merge_asof(copies, calls.assign(begun=calls["start"]), on="start", by="thread", direction="forward")
    waits = {name for name in following["name"].unique() if "StreamSynchronize" in str(name)}
    following = following[following["name"].isin(waits)].set_index("copy")
    return following[["begun", "end", "call"]].set_axis(columns, axis=1).reindex(table.index)


def _overlap_with_kernels(report: Report, table: pd.DataFrame) -> pd.Series:
    """Nanoseconds of each copy during which the same GPU also ran a kernel."""
    overlap = pd.Series(0, index=table.index, dtype="int64")
    for gpu, own in table.groupby("gpu"):
        kernels = intervals.union(report.kernels[report.kernels["gpu"] == gpu])
        overlap[own.index] = intervals.covered(kernels, own["start"].to_numpy(), own["end"].to_numpy())
    return overlap
