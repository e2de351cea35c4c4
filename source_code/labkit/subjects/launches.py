"""What does it cost to launch an epoch, one by one or as a graph, by whose kernels?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from stepbudget.show.table import Table, table

HOW = ["one by one", "graph"]


def _span(ranges: Sequence[Sequence[float]]) -> str:
    """``159–193``, of all pairs of the shortest and the longest."""
    return f"{min(low for low, _ in ranges):.0f}–{max(high for _, high in ranges):.0f}"


def ways(records: Sequence[dict], **only: str) -> Table:
    """A row a way to make an epoch, from records of ``bench_launches.py``; medians over them.

    Digits a step, whose ``kernels``, which ``network``; milliseconds of the epoch launched ``one by one``, from the
    shortest to the longest (``range``), and as one ``graph``; how many ``times as fast`` the graph is. ``only``: those
    with these ``kernels``, of this ``network``.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    rows["kernels"] = rows["compiled"].map({False: "PyTorch's", True: "the compiler's"})
    keys = ["batch", "kernels", "network", "steps"]
    found = rows.pivot_table("epoch_ms", keys, "how", aggfunc="median", sort=False).reset_index()
    for column, value in only.items():
        found = found[found[column] == value]
    caption = (
        f"ms of an epoch of {found['steps'].max()} steps, channels-last and 16 bits throughout, "
        "launched one by one and as one graph (medians)"
    )
    frame = pd.DataFrame({"digits a step": found["batch"], **found[["kernels", "network", *HOW]]})
    spans = rows[rows["how"] == HOW[0]].set_index(keys)["epoch_ms_range"].groupby(level=keys).agg(_span)
    frame.insert(4, "range", found.set_index(keys).index.map(spans))
    frame["times as fast"] = frame["one by one"] / frame["graph"]
    formats = dict.fromkeys(HOW, "{:.0f}") | {"times as fast": "{:.2f}"}
    return table(frame, caption, formats)
