"""What limits the kernels of a step, conv2's three among them, and which is worth a rewrite?"""

from __future__ import annotations

import pandas as pd

from labkit.subjects.floors import BATCH, kernel_traffic
from labkit.training import sizes
from stepbudget.kernel_names import short as short_kernel
from stepbudget.show.table import Table, table


def by_limit(limits: pd.DataFrame) -> Table:
    """How much of a step's time is in the kernels of each limit (``roofline.limits``)."""
    sums = {"kinds of kernels": ("kernel", "size"), "µs": ("us", "sum"), "µs above their roofs": ("over_us", "sum")}
    found = limits.groupby("limit").agg(**sums).sort_values("µs", ascending=False)
    found["% of the step"] = 100 * found["µs"] / found["µs"].sum()
    formats = dict.fromkeys(found.columns[1:], "{:.0f}")
    return table(found.rename_axis("limited by").reset_index(), "By what limits them", formats)


def plan(limits: pd.DataFrame, top: int = 4) -> Table:
    """The kernels that lie highest above their roofs, and the step's kernels if these and all before were at theirs."""
    first = limits.sort_values("over_us", ascending=False).head(top)
    then = limits["us"].sum() - first["over_us"].cumsum()
    frame = pd.DataFrame({"kernel": first["kernel"], "saves at most µs": first["over_us"], "step then µs": then})
    formats = {"kernel": short_kernel} | dict.fromkeys(frame.columns[1:], "{:.0f}")
    return table(frame, "If each were at its roof", formats)


# conv2's three products, by the words in cuDNN's names for their kernels; and in kernel_traffic.
CONV2 = {"fprop": "conv2", "dgrad": "conv2, data gradient", "wgrad": "conv2, weight gradient"}


def conv2_products(kernels: pd.DataFrame, batch: int = BATCH) -> pd.DataFrame:
    """conv2's three products: what they had to do, and what they did; none of those whose kernel is not found by name.

    ``kernels``: from ``in_depth``. Columns: ``word``, ``kernel``, ``product``, ``us``, ``shapes_mb``, ``counted_mb``,
    ``needed_gflop``, ``done_gflop``, ``blocks``, ``waves`` (how often its blocks fill the GPU).
    """
    shapes_mb = kernel_traffic("as a compiler fuses", batch).set_index("kernel").sum(axis=1)
    needed = batch * sizes.flops_per_sample()["conv2"] / 1e9
    rows = []
    for word, product in CONV2.items():
        for own in kernels[kernels["kernel"].str.contains(word)].head(1).itertuples():
            moved, done = own.bytes / 1e6, own.tensor_flops / 1e9
            about = (word, own.kernel, product, own.time_us, shapes_mb[product], moved, needed, done)
            rows.append((*about, own.blocks, own.waves))
    columns = ["word", "kernel", "product", "us", "shapes_mb", "counted_mb", "needed_gflop", "done_gflop"]
    return pd.DataFrame(rows, columns=[*columns, "blocks", "waves"])


def conv2(products: pd.DataFrame) -> Table:
    """``conv2_products()``: how much of the GPU they fill, what they move by shapes and counters, operations needed and
    done."""
    names = {
        "word": "kernel",
        "product": "what",
        "us": "µs",
        "blocks": "blocks",
        "waves": "% of the blocks that fit",
        "shapes_mb": "MB by hand",
        "counted_mb": "MB counted",
        "needed_gflop": "GFLOP needed",
        "done_gflop": "GFLOP done",
    }
    frame = products.assign(waves=100 * products["waves"])[list(names)].rename(columns=names)
    frame["done / needed"] = products["done_gflop"] / products["needed_gflop"]
    formats = dict.fromkeys(["µs", "blocks", names["waves"], "MB counted"], "{:.0f}") | {"GFLOP done": "{:.1f}"}
    return table(frame, "conv2's three products", formats)
