"""What limits the kernels of a step, conv2's three among them, and which is worth a rewrite?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from labkit.subjects.floors import BATCH, kernel_traffic
from labkit.subjects.roofline import Peaks, counted_points
from labkit.subjects.roofline_charts import roofline
from labkit.training import sizes
from stepbudget.kernel_names import short as short_kernel
from stepbudget.show.table import Table, table


def longest(kernels: pd.DataFrame, limits: pd.DataFrame, peaks: Peaks, top: int = 12) -> Figure:
    """The longest kernels of a step under their roofs, by their number in the table of limits."""
    numbers = {name: f"#{number}" for number, name in enumerate(limits["kernel"].head(top), 1)}
    points = [point for point in counted_points(kernels) if point.name in numbers]
    return roofline(peaks, points, numbers, "The longest kernels of main_opt6, by their number in the table")


def plan(limits: pd.DataFrame, top: int = 4) -> Table:
    """The kernels that lie highest above their roofs, and the step's kernels if these and all before were at theirs."""
    numbered = limits.assign(number=range(1, len(limits) + 1))  # as in the table of limits
    first = numbered.sort_values("over_us", ascending=False).head(top)
    then = limits["us"].sum() - first["over_us"].cumsum()
    columns = {"#": first["number"], "kernel": first["kernel"]}
    frame = pd.DataFrame(columns | {"saves µs": first["over_us"], "step then µs": then})
    formats = {"kernel": lambda name: short_kernel(name, 28)} | dict.fromkeys(frame.columns[2:], "{:.0f}")
    return table(frame, "If each, and those above it, were at their roofs", formats)


# conv2's three products, by the words in cuDNN's names for their kernels; and in kernel_traffic.
CONV2 = {"fprop": "conv2", "dgrad": "conv2, data gradient", "wgrad": "conv2, weight gradient"}


def conv2_products(kernels: pd.DataFrame) -> pd.DataFrame:
    """conv2's three products: what they had to do, and what they did; none of those whose kernel is not found by name.

    ``kernels``: from ``in_depth``. Columns: ``word``, ``kernel``, ``product``, ``us``, ``shapes_mb``, ``counted_mb``,
    ``needed_gflop``, ``done_gflop``, ``blocks``, ``waves`` (how often its blocks fill the GPU).
    """
    shapes_mb = kernel_traffic("as a compiler fuses").set_index("kernel").sum(axis=1)
    needed = BATCH * sizes.flops_per_sample()["conv2"] / 1e9
    rows = []
    for word, product in CONV2.items():
        for own in kernels[kernels["kernel"].str.contains(word)].head(1).itertuples():
            moved, done = own.bytes / 1e6, own.tensor_flops / 1e9
            about = (word, own.kernel, product, own.time_us, shapes_mb[product], moved, needed, done)
            rows.append((*about, own.blocks, own.waves))
    columns = ["word", "kernel", "product", "us", "shapes_mb", "counted_mb", "needed_gflop", "done_gflop"]
    return pd.DataFrame(rows, columns=[*columns, "blocks", "waves"])


def conv2(products: pd.DataFrame) -> Table:
    """``conv2_products()``: how much of the GPU they fill, and what they moved and did of what was needed."""
    frame = pd.DataFrame(
        {
            "kernel": products["word"],
            "µs": products["us"],
            "blocks": products["blocks"],
            "% of the blocks that fit": 100 * products["waves"],
            "MB": products["counted_mb"],
            "GFLOP done": products["done_gflop"],
            "× needed": products["done_gflop"] / products["needed_gflop"],
        }
    )
    formats = dict.fromkeys(frame.columns[1:5], "{:.0f}") | {"GFLOP done": "{:.1f}", "× needed": "{:.2f}"}
    needed = [f"{products[column].max():.{digits}f}" for column, digits in (("needed_gflop", 1), ("shapes_mb", 0))]
    each = "" if products.empty else f": each needs {needed[0]} GFLOP and {needed[1]} MB"
    return table(frame, f"conv2's three products{each}", formats)
