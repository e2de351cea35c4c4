"""What is copied between host and GPU, from which kind of memory, and how fast?"""

from __future__ import annotations

import pandas as pd

from labkit.nsight.report import Report, Window

# CUPTI's numbers: CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind (as in the export's ENUM_CUDA_* tables).
DIRECTIONS = {1: "host to device", 2: "device to host", 8: "device to device", 10: "GPU to GPU"}
MEMORY = {0: "pageable", 1: "pinned", 2: "device", 4: "managed"}


def copies(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a direction and kind of host memory, for copies that begin within the window (default: training).

    Columns: ``direction``, ``host_memory``, ``count``, ``mb`` (10⁶ bytes), ``gpu_ms`` on the copy engine, ``api_ms``
    for which the calling thread is held, ``longest_gpu_us``, ``longest_api_us``, ``gb_per_s``.

    Held means in the call that asks for the copy, and in a stream synchronisation if that is the thread's very next
    call: PyTorch's blocking ``.to(device)`` is those two.
    """
    table = labelled(report, window)
    grouped = table.groupby(["direction", "host_memory"], sort=True)
    result = grouped.agg(
        count=("bytes", "size"),
        mb=("bytes", lambda b: b.sum() / 1e6),
        gpu_ms=("gpu_ns", lambda ns: ns.sum() / 1e6),
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
    table = table[(table["start"] >= window.start) & (table["start"] < window.end)].copy()
    table["direction"] = table["copy_kind"].map(lambda kind: DIRECTIONS.get(kind, "other"))
    host = table["source_kind"].where(table["copy_kind"] != 2, table["target_kind"])
    table["host_memory"] = host.map(lambda kind: MEMORY.get(kind, "unknown"))
    table["gpu_ns"] = table["end"] - table["start"]
    table["api_ns"] = table["api_end"] - table["api_start"] + _synchronise_after(report, table)
    return table


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
