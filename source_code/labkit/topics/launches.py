"""What does it cost to launch an epoch, one by one or as a graph, by whose kernels? And what did a graph launch?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.display.table import Table, table
from stepbudget.report import Report

HOW = ["one by one", "graph"]


def bare_us(records: Sequence[dict]) -> pd.Series:
    """Microseconds of a kernel with next to nothing to do, launched from ``python`` and in a ``graph``.

    ``records``: of ``bench_peaks.py``; medians over them.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    return rows[rows["what"] == "launch"].groupby("how")["us"].median()


def ways(records: Sequence[dict]) -> pd.DataFrame:
    """A row a way to make an epoch, from records of ``bench_launches.py``; medians over them.

    Columns: ``batch`` (digits a step), whose ``kernels``, which ``network``, ``steps`` of the epoch; milliseconds of it
    launched ``one by one`` and as one ``graph``, and how many ``times as fast`` the graph is.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    rows["kernels"] = rows["compiled"].map({False: "PyTorch's", True: "the compiler's"})
    keys = ["batch", "kernels", "network", "steps"]
    found = rows.pivot_table("epoch_ms", keys, "how", aggfunc="median", sort=False).reset_index()
    found.columns.name = None
    return found.assign(**{"times as fast": found["one by one"] / found["graph"]})[[*keys, *HOW, "times as fast"]]


def ways_table(found: pd.DataFrame) -> Table:
    """``ways()``, or some of its rows."""
    caption = (
        f"ms of an epoch of {found['steps'].max()} steps, channels-last and 16 bits throughout, "
        "launched one by one and as one graph (medians)"
    )
    formats = dict.fromkeys(HOW, "{:.0f}") | {"times as fast": "{:.2f}"}
    shown = found.drop(columns="steps").rename(columns={"batch": "digits a step"})
    return table(shown, caption, formats, list(formats))


def in_and_beside_a_graph(report: Report, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The kernels that were launched in the training epoch's first range of this name: a graph's own, and all others.

    The report's rows of kernels; of a graph that was traced as a whole there are none. Two empty tables where there is
    no such range.
    """
    window, kernels = report.window(), report.kernels
    ranges = report.ranges[report.ranges["start"].between(window.start, window.end)]
    calls = ranges[ranges["name"] == name][["start", "end"]].to_numpy()
    first = kernels[kernels["api_start"].between(*calls[0])] if len(calls) else kernels[:0]
    return first[first["graph_node"].notna()], first[first["graph_node"].isna()]


def kernel_sizes(reports: Mapping[str, Report]) -> pd.DataFrame:
    """How many and how long are the kernels of a training epoch? A row a report, by its name.

    Columns: ``kernels``, ``mean µs`` of one, ``GPU ms`` of all, added up.
    """
    rows = {}
    for name, report in reports.items():
        window, kernels = report.window(), report.kernels
        own = kernels[kernels["start"].between(window.start, window.end)]
        took_ms = (own["end"] - own["start"]) / 1e6
        rows[name] = len(own), 1e3 * took_ms.mean(), took_ms.sum()
    return pd.DataFrame.from_dict(rows, orient="index", columns=["kernels", "mean µs", "GPU ms"])


def kernel_sizes_table(found: pd.DataFrame) -> Table:
    """``kernel_sizes()``."""
    formats = {"kernels": "{:,d}"} | dict.fromkeys(["mean µs", "GPU ms"], "{:,.1f}")
    shown = found.rename_axis("step").reset_index()
    return table(shown, "Kernels of one training epoch", formats, ["mean µs", "GPU ms"])
