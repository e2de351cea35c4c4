"""What is copied between host and GPU, from which kind of memory, and how fast?"""

from __future__ import annotations

import pandas as pd

from stepbudget import intervals
from stepbudget.export.kinds import DIRECTIONS, MEMORY
from stepbudget.report import Report
from stepbudget.window import Window


def copies(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a direction and kind of host memory, for copies that begin within the window (default: training).

    Columns: ``direction``, ``host_memory``, ``count``, ``bytes``, ``mb`` (10⁶ bytes), ``gpu_ms`` on the copy engine,
    ``overlap_ms`` of it while a kernel of the same GPU ran, ``api_ms`` for which the calling thread is held,
    ``longest_gpu_us``, ``longest_api_us``, ``gb_per_s``.

    Held means in the call that asks for the copy, and in a stream synchronisation if that is the thread's very next
    call: PyTorch's blocking ``.to(device)`` is those two.
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
    result["gb_per_s"] = result["mb"] / result["gpu_ms"]
    return result


def labelled(report: Report, window: Window | None = None) -> pd.DataFrame:
    """The copies of the window, a row each, with direction and host memory in words and both durations in ns."""
    window = window or report.window()
    table = report.copies
    own = (table["start"] >= window.start) & (table["start"] < window.end)
    if window.process is not None:
        own &= table["process"] == window.process
    table = with_memory(report, table[own])
    table["gpu_ns"] = table["end"] - table["start"]
    table["api_ns"] = table["api_end"] - table["api_start"] + _synchronise_after(report, table)
    return table


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


def _synchronise_after(report: Report, table: pd.DataFrame) -> pd.Series:
    """Nanoseconds of the stream synchronisation that directly follows each copy's call on its thread; else 0."""
    calls = report.api[["start", "end", "thread", "name"]].rename(columns={"start": "next_start", "end": "next_end"})
    known = table[table["api_end"].notna() & table["api_thread"].notna()]
    copies = pd.DataFrame(
        {"after": known["api_end"].astype("int64"), "thread": known["api_thread"].astype("int64"), "row": known.index}
    )
    if copies.empty or calls.empty:
        return pd.Series(0, index=table.index)
    following = pd.merge_asof(
        copies.sort_values("after"),
        calls.astype({"next_start": "int64", "thread": "int64"}).sort_values("next_start"),
        left_on="after",
        right_on="next_start",
        by="thread",
        direction="forward",
    ).set_index("row")
    waits = following["name"].str.contains("StreamSynchronize", na=False)
    held = (following["next_end"] - following["next_start"]).where(waits, 0)
    return held.reindex(table.index, fill_value=0)


def _overlap_with_kernels(report: Report, table: pd.DataFrame) -> pd.Series:
    """Nanoseconds of each copy during which the same GPU also ran a kernel."""
    overlap = pd.Series(0, index=table.index, dtype="int64")
    for gpu, own in table.groupby("gpu"):
        kernels = intervals.union(report.kernels[report.kernels["gpu"] == gpu])
        overlap[own.index] = intervals.covered(kernels, own["start"].to_numpy(), own["end"].to_numpy())
    return overlap
