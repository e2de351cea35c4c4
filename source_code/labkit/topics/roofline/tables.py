"""What do roofs, points and floors look like as tables? Measured numbers are marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.display.table import Table, short_kernel, table
from labkit.topics.roofline import floors as measured
from labkit.topics.roofline import readings as roofline
from labkit.topics.roofline.floors import Roofs
from labkit.topics.roofline.readings import DTYPE_WORDS, Peaks, Point


def peaks(peaks: Peaks) -> Table:
    """The roofs as measured, and the arithmetic intensity at which each type's roof meets that of the memory."""
    rows = [(DTYPE_WORDS[dtype], tflops, peaks.ridge(dtype)) for dtype, tflops in peaks.tflops.items()]
    measured = "the best of several matrix products"
    caption = f"The roofs of one {peaks.gpu} as measured: {measured}; memory moves ~{peaks.tb_per_s:.2f} TB/s"
    columns = ["arithmetic in", "TFLOP/s", "FLOP/byte where the roofs meet"]
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:], "{:.0f}"), columns[1:])


def points(points: Sequence[Point], peaks: Peaks) -> Table:
    """Each point: what it does and moves, how fast, which roof is above it, and its share of that roof."""
    found = roofline.table(points, peaks)
    frame = pd.DataFrame(
        {
            "step": found["name"],
            "in": found["dtype"],
            "µs": found["us"],
            "GFLOP": found["gflop"],
            "MB": found["mb"],
            "FLOP/byte": found["intensity"],
            "TFLOP/s": found["tflops"],
            "roof above": found["bound"],
            "% of it": 100 * found["share"],
            "µs at the roof": found["floor_us"],
            "bytes from": found["bytes from"],
        }
    )
    formats = {"GFLOP": "{:.1f}", "MB": "{:,.0f}", "µs": "{:,.0f}", "FLOP/byte": "{:.1f}", "TFLOP/s": "{:.1f}"}
    formats |= {"% of it": "{:.1f}", "µs at the roof": "{:,.0f}"}
    measured = [name for name in formats if name != "GFLOP"]
    return table(frame, f"One training step of {roofline.BATCH:,} digits under its roof", formats, measured)


def floor(peaks: Peaks) -> Table:
    """The recipe's ten epochs at the roofs: arithmetic, and traffic by how the step is cut into kernels."""
    frame = roofline.floor(peaks)
    frame = pd.DataFrame(
        {
            "what": frame["what"],
            "amount": [f"{amount:.3g} {unit}" for amount, unit in zip(frame["amount"], frame["unit"], strict=True)],
            "rate": frame["rate"],
            "of": frame["rate_unit"],
            "ms": frame["ms"],
        }
    )
    formats = {"rate": "{:,.4g}", "ms": "{:.0f}"}
    caption = f"Ten epochs at the roofs of one {peaks.gpu}, in {DTYPE_WORDS[peaks.narrow]}"
    return table(frame, caption, formats, ["rate", "ms"])


def limits(limits: pd.DataFrame, top: int = 12) -> Table:
    """What limits each kernel, numbered; the rest in one row."""
    head, rest = limits.head(top), limits.iloc[top:]
    frame = pd.DataFrame(
        {
            "#": range(1, len(head) + 1),
            "kernel": head["kernel"].to_list(),
            "limited by": head["limit"].to_list(),
            "µs": head["us"],
            "MB": head["mb"],
            "% of memory": 100 * head["memory"],
            "% of arithmetic": 100 * head["arithmetic"],
            "busiest else": [
                None if pd.isna(row.busiest) else f"~{row.busiest_pct:.0f} % {row.busiest}" for row in head.itertuples()
            ],
            "% of threads": head["warps_pct"],
            "µs above roof": head["over_us"],
        }
    )
    if len(rest):
        sums = {"kernel": f"{len(rest)} more kinds", "µs": rest["us"].sum(), "MB": rest["mb"].sum()}
        last = pd.DataFrame([sums | {"µs above roof": rest["over_us"].sum()}])
        frame = pd.concat([frame, last], ignore_index=True)
    formats = dict.fromkeys(["µs", "MB", "µs above roof"], "{:,.0f}")
    formats |= dict.fromkeys(["% of memory", "% of arithmetic", "% of threads"], "{:.0f}")
    formats |= {"#": "{:.0f}", "kernel": lambda name: short_kernel(name, 28)}
    caption = f"What limits each kernel of a step: ~{limits['us'].sum():,.0f} µs in all"
    return table(frame, caption, formats, [name for name in formats if name not in ("#", "kernel")])


def traffic(steps: Sequence[str], counted: dict[str, pd.DataFrame]) -> Table:
    """Megabytes of a training step, as Nsight Compute counted them and as the tensors' shapes say."""
    rows = []
    for step in steps:
        cut, dtype = roofline.RUNGS[step]
        mb, shapes_mb = counted[step]["bytes"].sum() / 1e6, roofline.step_traffic(cut, dtype=dtype) / 1e6
        rows.append((step, cut, dtype, len(counted[step]), mb, shapes_mb, mb / shapes_mb))
    columns = ["step", "cut into kernels", "in", "kernels", "MB counted", "MB from shapes", "ratio"]
    formats = {"MB counted": "{:,.0f}", "MB from shapes": "{:,.0f}", "ratio": "{:.2f}"}
    caption = "Memory traffic of one training step"
    return table(pd.DataFrame(rows, columns=columns), caption, formats, ["kernels", "MB counted", "ratio"])


def by_limit(limits: pd.DataFrame) -> Table:
    """How much of a step's time is in the kernels of each limit (``labkit.topics.roofline.readings.limits``)."""
    sums = {"kinds of kernels": ("kernel", "size"), "µs": ("us", "sum"), "µs above their roofs": ("over_us", "sum")}
    found = limits.groupby("limit").agg(**sums).sort_values("µs", ascending=False)
    found["% of the step"] = 100 * found["µs"] / found["µs"].sum()
    formats = dict.fromkeys(found.columns[1:], "{:.0f}")
    return table(found.rename_axis("limited by").reset_index(), "By what limits them", formats, list(formats))


def plan(limits: pd.DataFrame, top: int = 4) -> Table:
    """The kernels that lie highest above their roofs, and the step's kernels if these and all before were at theirs."""
    first = limits.sort_values("over_us", ascending=False).head(top)
    then = limits["us"].sum() - first["over_us"].cumsum()
    frame = pd.DataFrame({"kernel": first["kernel"], "saves at most µs": first["over_us"], "step then µs": then})
    formats = {"kernel": short_kernel} | dict.fromkeys(frame.columns[1:], "{:.0f}")
    return table(frame, "If each were at its roof", formats, list(frame.columns[1:]))


def conv2(products: pd.DataFrame) -> Table:
    """conv2's three products (``labkit.topics.roofline.readings.conv2_products``): how much of the GPU they fill, what
    they move by the shapes and by the counters, and the operations needed and done."""
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
    return table(frame, "conv2's three products", formats, [*formats, "done / needed"])


def sums(steps: Mapping[str, pd.DataFrame]) -> Table:
    """One training step each, as counted (``in_depth``): kernels, time, bytes, operations of the Tensor Cores."""
    parts = {"kernels": ("count", 1), "µs": ("time_us", 1), "MB": ("bytes", 1e-6)}
    parts["GFLOP on Tensor Cores"] = ("tensor_flops", 1e-9)
    rows = [[factor * own[column].sum() for column, factor in parts.values()] for own in steps.values()]
    frame = pd.DataFrame(rows, columns=list(parts))
    frame.insert(0, "step", list(steps))
    return table(frame, "One training step, as counted", dict.fromkeys(parts, "{:,.0f}"), list(parts))


def done_and_needed(kernels: pd.DataFrame) -> Table:
    """Operations of ``main_opt7``'s own kernels (rows of ``in_depth``): needed by the shapes, and done."""
    needed, done = kernels["kernel"].map(roofline.opt7_flops()) / 1e9, kernels["tensor_flops"] / 1e9
    columns = ["kernel", "GFLOP needed", "GFLOP done", "done / needed"]
    frame = pd.concat([kernels["kernel"], needed, done, done / needed], axis=1).set_axis(columns, axis=1)
    return table(frame, "The kernels that convolve", {"GFLOP needed": "{:.1f}", "GFLOP done": "{:.1f}"}, columns[2:])


def distances(distances: pd.DataFrame) -> Table:
    """How far each step is from the floor, in three factors (``labkit.topics.roofline.readings.distances``)."""
    names = {
        "step": "step",
        "us": "step µs",
        "kernels_us": "its kernels µs",
        "roof_us": "at its roof µs",
        "floor_us": "the floor µs",
        "waiting": "waiting ×",
        "slow": "slow kernels ×",
        "detour": "bytes and type ×",
        "all": "in all ×",
    }
    formats = dict.fromkeys(list(names.values())[1:5], "{:,.0f}") | dict.fromkeys(list(names.values())[5:], "{:.1f}")
    caption = "From each step down to the floor: the three factors multiply"
    return table(distances.rename(columns=names), caption, formats, list(formats))


def zeros(records: Sequence[dict]) -> Table:
    """The same product of numbers of which some are zero, as ``bench_roofs.py`` measured it: its rate, clock, power."""
    rows = [row for row in records[0]["rows"] if row["what"] == "product"]
    where = {"left": "one factor", "both": "both factors"}
    words = [f"{100 * row['zeros']:.0f} % of {where[row['factor']]}" if row["zeros"] else "none" for row in rows]
    frame = pd.DataFrame(
        {
            "zeros": words,
            "TFLOP/s": [row["tflops"] for row in rows],
            "MHz": pd.Series([row["mhz"] for row in rows], dtype=float),
            "W": pd.Series([row["watts"] for row in rows], dtype=float),
        }
    )
    side = rows[0]["size"]
    caption = f"{side:,} × {side:,} × {side:,} in 16 bits, for a second, on one {records[0]['gpu']}"
    return table(frame, caption, dict.fromkeys(frame.columns[1:], "{:,.0f}"), list(frame.columns[1:]))


def floors(roofs: Mapping[str, Roofs], steps_us: Mapping[str, float]) -> Table:
    """What a step takes at least, in three ways to reckon, at these roofs; and how many times that steps take.

    ``roofs`` by the words for them; the multiples are those of the last.
    """
    found = pd.DataFrame({f"µs, {words}": measured.floors(own) for words, own in roofs.items()})
    last = found.iloc[:, -1]
    for step, us in steps_us.items():
        found[f"{step} ÷ it"] = us / last
    numbers = list(found.columns)
    formats = dict.fromkeys(numbers[: len(roofs)], "{:.0f}") | dict.fromkeys(numbers[len(roofs) :], "{:.2f}")
    caption = f"The least that a step can take, on one {next(iter(roofs.values())).gpu} (÷: by the last µs)"
    return table(found.rename_axis("the floor").reset_index(), caption, formats, numbers)
