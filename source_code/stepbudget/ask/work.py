"""What did the GPUs do? Kernels, copies, memory fills and CUDA graphs, of one card or of all, in one table."""

from __future__ import annotations

import pandas as pd

from stepbudget.ask.threads import about
from stepbudget.report import Report, rows_where
from stepbudget.window import Window

COLUMNS = ["start", "end", "device", "gpu", "stream", "process", "api_start", "api_end", "api_thread"]


def gpu_work(report: Report) -> pd.DataFrame:
    """All that the GPUs did, in order of its start: kernels, copies, memory fills, CUDA graphs traced as a whole.

    Columns: ``start``, ``end`` (ns), ``device``, ``gpu``, ``stream``, ``process``, ``api_start``, ``api_end``,
    ``api_thread``, ``kind`` (``kernel``, ``copy``, ``memset``, ``graph``), ``graph_node`` (NaN outside graphs).
    """
    tables = {"kernel": report.kernels, "copy": report.copies, "memset": report.memsets, "graph": report.graphs}
    parts = [table.reindex(columns=[*COLUMNS, "graph_node"]).assign(kind=kind) for kind, table in tables.items()]
    parts = [part for part in parts if len(part)]  # empty tables have no types of their own
    if not parts:
        return pd.DataFrame(columns=[*COLUMNS, "graph_node", "kind"])
    return pd.concat(parts, ignore_index=True).sort_values(["start", "end"], kind="stable", ignore_index=True)


def work_of(table: pd.DataFrame, device: int | None) -> pd.DataFrame:
    """The rows of a GPU activity table that ran on one card (all rows for None)."""
    return table if device is None else rows_where(table, table["gpu"] == device)


def device_of(report: Report, window: Window) -> int | None:
    """The card that a window is about (``threads.about``); None where none did anything."""
    return about(report, window).gpu
