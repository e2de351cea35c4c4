"""Lab 12: a size doesn't decide whether Tensor Cores multiply, but how fast; the rule is 16 bytes, at the least.

Its predictions: an epoch with an odd width, a product with an odd size, the size that may be odd. Its exercises: a
size that is padded, what padding gains, and the product that loses most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.checks import Claim
from labkit.display import style
from labkit.display.runs import difference
from labkit.display.spread import paired
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.lazily import torch
from labkit.numbers import Quantity, shown
from labkit.predictions import Guess
from labkit.subjects import shapes
from labkit.subjects.ladder import epoch_times
from labkit.subjects.roofline_charts import ROOFS
from labkit.subjects.shapes import TYPES, WORDS, half_type
from stepbudget.ask import ops
from stepbudget.ask.budget import Budget
from stepbudget.kernel_names import NO, YES
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import Table, table

NETWORKS = {
    "main_shapes.py": "128 units",
    "main_shapes.py --hidden 127": "127 units",
    "main_shapes.py --classes 16": "16 classes",
}
SHORT = ("tf32", "fp16", "bf16")  # shorter than FP32, and on Tensor Cores in every size that was tried

# --- what it asks its reader to predict --------------------------------------------------------------------------


def _odd_times(products: pd.DataFrame) -> dict[str, float]:
    """How many times as long the product takes with M, N or K one less, in 16 bits."""
    us, half = _us(products), half_type(products)
    return {name.upper(): us(half, **{name: 4095}) / us(half) for name in "mnk"}


def _more_ms(linear: pd.DataFrame) -> pd.Series:
    """Milliseconds that the linear layers' kernels add to an epoch, against 128 units, by network."""
    us = linear[list(NETWORKS.values())].sum()
    return (us - us["128 units"]) * linear["whole batches"].max() / 1e3


def _longer_linear_pct(linear: pd.DataFrame) -> float:
    us = linear[list(NETWORKS.values())].sum()
    return 100 * (us["127 units"] / us["128 units"] - 1)


def _own_us(dtype: str = "", **sizes: int) -> Quantity:
    """Microseconds of a product in a type (in 16 bits), with M, N and K of 4096 but for these."""
    return Quantity(lambda products: _us(products)(dtype or half_type(products), **sizes))


PREDICTIONS = {
    "epoch_pct": Guess(
        "an epoch with 127 units", " %",
        lambda runs, linear: float(epochs(runs).frame.set_index("network")["longer by %"]["127 units"]),
        wrong={
            "That's how much longer the linear layers take. The rest of the step stays as it is.": (
                lambda runs, linear: _longer_linear_pct(linear)
            ),
            "Those are milliseconds. Divide them by the epoch's.": lambda _, own: float(_more_ms(own)["127 units"]),
            "That's by how much the number of units changes. The time doesn't follow the work here.": (
                lambda runs, linear: 100 / 127
            ),
        },
    ),
    "times": Guess(
        "the product with K = 4095", " times", lambda products: _odd_times(products)["K"],
        wrong={
            "That follows the work. But another kernel has to do it.": lambda products: 4095 / 4096,
            "That's K = 4098, which is even but no multiple of 8. Odd is worse.": _own_us(k=4098) / _own_us(),
            "That would be FP32 without Tensor Cores. The product stays on them.": _own_us("fp32") / _own_us(),
        },
    ),
    "free": Guess(
        "the dimension that may be odd", "",
        lambda products: min(_odd_times(products), key=_odd_times(products).__getitem__),
    ),
}  # fmt: skip

# --- claims --------------------------------------------------------------------------------------------------


def still_on_tensor_cores(reports: Mapping[str, Report]) -> Iterator[Claim | str]:
    """A bad size takes nothing off the Tensor Cores; ``reports``: with 127 units, with 128, with padded classes."""
    bad, good, padded = (ops.summary(report) for report in reports.values())
    same = bad.instances == good.instances == padded.instances and good.instances["using"] > 0
    yield Claim(
        "no operation stops using Tensor Cores because of its size", same and bad.at_stake_ms <= 1.1 * good.at_stake_ms,
        f"{bad.at_stake_ms:.1f} ms without",
        because="another GPU or library has other kernels, or none were profiled (no GPU)",
        so="compare the first table's rows with 127 by their times, and by their reasons",
    )  # fmt: skip
    if bad.efficiency and good.efficiency:
        said = f"{100 * bad.efficiency:.1f} % with 127 units, {100 * good.efficiency:.1f} % with 128"
        looks = "better" if bad.efficiency > good.efficiency else "no better"
        yield f"efficiency: {said}: the odd size looks {looks}"


def slower_layers(linear: pd.DataFrame) -> Iterator[Claim | str]:
    """The linear layers take longer with 127 units; ``linear``: of ``linear_layers``."""
    us = linear[list(NETWORKS.values())].sum().astype(float)
    worse = us / us["128 units"]  # no numbers where no GPU was profiled
    said = f"{worse['127 units']:.1f} times as long with 127 units, {worse['16 classes']:.2f} times with 16 classes"
    yield f"The linear layers together take {said if len(linear) else 'no time that was measured here'}."
    yield Claim(
        "with 127 units the linear layers take at least 1.5 times as long", worse["127 units"] > 1.5,
        said if len(linear) else "nothing",
        because="the library here has a fast kernel for odd sizes, or no GPU was profiled",
        so="the single products below show which sizes cost something here, if any",
    )  # fmt: skip


def whole_network(runs: Mapping[str, Sequence[dict]], linear: pd.DataFrame) -> Iterator[Claim | str]:
    """What 127 units and 16 classes do to an epoch; ``runs``: of each network, by its command."""
    plain, *others = NETWORKS
    for command in others:
        yield f"{NETWORKS[command]}, an epoch: {difference(epoch_times(runs[command], runs[plain]))}"
    yield f"127 units, the whole process: {difference(paired(runs[others[0]], runs[plain]))}"
    if len(linear):
        more = _more_ms(linear)
        said = f"{more['127 units']:+.1f} ms with 127 units, {more['16 classes']:+.2f} ms with 16 classes"
        yield f"By the linear layers' kernels, an epoch takes {said}."


def longer_kernels(budgets: Mapping[str, Budget]) -> Iterator[Claim | str]:
    """The loss stands in the Tensor Core kernels."""
    green = {name: own.ms["tensor_core_kernels"] for name, own in budgets.items()}
    yield "Tensor Core kernels: " + ", ".join(f"{ms:.1f} ms with {name}" for name, ms in green.items()) + "."
    yield Claim(
        "127 units lengthen the Tensor Core kernels", green["127 units"] > 1.05 * green["128 units"],
        {name: f"{ms:.1f} ms" for name, ms in green.items()},
        because="the kernels for odd sizes are others, or as fast, or there is no GPU",
        so="what 127 units cost here, if anything, stands in the epochs' table",
    )  # fmt: skip


def one_odd_size(products: pd.DataFrame) -> Iterator[Claim | str]:
    """One of three dimensions may be odd, and no size of ``products`` is off the Tensor Cores in a short type."""
    us, times = _us(products), _odd_times(products)
    yield Claim(
        "M = 4095 costs less than 10 %, and less than N or K = 4095", times["M"] < min(1.1, times["N"], times["K"]),
        {name: f"{ratio:.2f}" for name, ratio in times.items()},
        because="another GPU or cuBLAS has other kernels",
        so="of M, N and K, take the cheapest for what cannot be a multiple",
    )  # fmt: skip
    short = _short(products)
    without = short[short["tensor_cores"] == "no"]
    sizes = sorted({f"{row.m} × {row.n} × {row.k}" for row in without.itertuples()})
    yield Claim(
        "in TF32, FP16 and BF16 none of these sizes ran on the ordinary cores", without.empty,
        f"{len(without)} of {len(short)}",
        because="the GPU has no Tensor Cores, or its cuBLAS has none of their kernels for odd sizes",
        so=f"off the Tensor Cores (M × N × K): {', '.join(sizes[:6])}",
    )  # fmt: skip
    odd_ones = []
    for dtype in SHORT:
        slower = [us(dtype, **{name: size}) / us(dtype) for name in "nk" for size in (4095, 4097)]
        if us(dtype) > 0:
            odd_ones.append(f"{WORDS[dtype]} {min(slower):.1f} to {max(slower):.1f}")
    yield f"with N or K odd, times as long: {', '.join(odd_ones)}"


def _short(products: pd.DataFrame) -> pd.DataFrame:
    """The products in a short type that were not refused."""
    return products[products["dtype"].isin(SHORT) & products["refused"].isna()]


def _us(products: pd.DataFrame) -> Callable[..., float]:
    """Microseconds by type, and by M, N and K where they are not 4096; no number where that was not measured."""
    one = products[products["part"] == "one"].set_index(["dtype", "m", "n", "k"])["us"]
    return lambda dtype, m=4096, n=4096, k=4096: one.get((dtype, m, n, k), float("nan"))


def sixteen_bytes(products: pd.DataFrame) -> Iterator[Claim | str]:
    """Four numbers of TF32 are 16 bytes, sixteen of FP8; and what the kernels' names tell of blocks."""
    us = _us(products)
    ratio = us("tf32", n=4092) / us("tf32")
    yield Claim(
        "4092 is no bad size in TF32", ratio < 1.15, ratio if ratio > 0 else "no TF32",
        because="the GPU has no TF32 (it came with Ampere), or another cuBLAS took another kernel",
        so="read the rule for your GPU off the figure of M, N and K",
    )  # fmt: skip
    near = _n_varied(products, "tf32").set_index("n")["kernel"]
    blocks = near.str.extract(r"tilesize(\d+x\d+)")[0].dropna()
    for n in blocks.index.intersection([4096, 4104]):
        yield f"TF32, N = {n}: the kernel's name states blocks of {blocks[n]}."
    fp8 = products[products["dtype"] == "fp8"]
    odd = fp8[(fp8["n"] % 16 != 0) | (fp8["k"] % 16 != 0)]
    yield Claim(
        "FP8 takes no N or K that is not a multiple of 16",
        fp8["us"].notna().any() and odd["refused"].notna().all(),
        f"{odd['refused'].isna().sum()} of {len(odd)} taken",
        because="the GPU has no FP8 (it came with Ada and Hopper), or a newer PyTorch takes more sizes",
        so="what is taken stands in the figure of M, N and K, with its speed",
    )
    near = _n_varied(products, "fp8")
    said = near.loc[near["n"] == 4104, "refused"].dropna()
    yield f"FP8 of N = 4104 says: {' '.join(said) or 'nothing'}."


def _n_varied(products: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """The products of a type that have 4096 for M and K."""
    own = products[(products["part"] == "one") & products["varied"].isin(["", "n"])]
    return own[own["dtype"] == dtype]


def size_and_place(apart: pd.DataFrame) -> Iterator[Claim | str]:
    """Neither longer lines nor a good size alone help; ``apart``: of ``lines_apart``."""
    tight = apart["lines in memory"] == "tight"
    usual = apart.loc[tight & (apart["N"] == 4096) & (apart["K"] == 4096), "µs"]
    moved = apart[~tight]
    fast = moved[moved["µs"] <= 1.1 * (usual.iloc[0] if len(usual) else float("nan"))]
    names = [f"{n} × {k} {lines}" for n, k, lines in fast[["N", "K", "lines in memory"]].itertuples(index=False)]
    yield Claim(
        "slow: an odd size in even lines, and a good size in odd lines", fast.empty and len(usual) == 1,
        f"fast: {', '.join(names)}",
        because="another cuBLAS has kernels that fetch such lines fast",
        so="where the padded ones are fast here, longer lines are a remedy on your machine",
    )  # fmt: skip


def the_minimum(products: pd.DataFrame) -> Iterator[Claim | str]:
    """Sixteen bytes are not the best that one can do: square products around 1,024, all three sizes together."""
    own = products[
        (products["part"] == "all") & (products["base"] == 1024) & (products["dtype"] == half_type(products))
    ]
    rate = own.set_index("n")["tflops"]
    left = 100 * rate / rate.get(1024, float("nan"))
    said = [f"{left.get(n, float('nan')):.0f} % with {n:,}" for n in (960, 1008, 1016, 1032, 1040, 1088)]
    yield f"in {WORDS[half_type(products)]}, of the rate at 1,024: {', '.join(said)}"
    few, many = left.get(1032, float("nan")), left.get(1088, float("nan"))
    yield Claim(
        "1,032, a multiple of 8, is at least a tenth slower than 1,088, a multiple of 64", few < 0.9 * many,
        f"{few:.0f} % and {many:.0f} %",
        because="another GPU or cuBLAS cuts the result into other blocks",
        so="16 bytes are enough here; try 128 all the same",
    )  # fmt: skip


def thin_ones(products: pd.DataFrame, dearer: pd.DataFrame) -> Iterator[Claim | str]:
    """Which thin products are off the Tensor Cores, and what an odd batch costs; ``dearer``: as below."""
    off = products[(products["part"] == "thin") & (products["dtype"] != "fp32") & (products["tensor_cores"] == "no")]
    yield Claim(
        "in 16 bits only the product of two vectors stays off the Tensor Cores",
        bool((off.loc[off["dtype"] != "tf32", ["m", "n"]].max(axis=1) == 1).all()),
        sorted({f"{row.m} × {row.n} in {row.dtype}" for row in off.itertuples()}),
        because="the GPU has none, or its cuBLAS has other kernels for so few rows",
        so="a product this thin is as fast as its matrix can be read: look at its bytes",
    )
    thinner = off.assign(size=off[["m", "n"]].min(axis=1))[off[["m", "n"]].max(axis=1) > 1]
    most = thinner.groupby("dtype")["size"].max()
    said = [f"in {WORDS[dtype]} M or N {'=' if size == 1 else 'up to'} {size}" for dtype, size in most.items()]
    yield f"of the others, off the Tensor Cores: {', '.join(said) or 'none'}"
    yield Claim(
        "no batch timed from 1,000 to 1,032 makes a sample of the network's step 3 % dearer than 1,024 does",
        dearer["step"].max() < 3, dearer["step"].max(),
        because="the GPU is small: one more row of blocks is a larger part of its work",
        so=f"batch {dearer['step'].idxmax()} is the dearest here",
    )  # fmt: skip
    part, batch = dearer.drop(columns="step").stack().idxmax()[::-1]
    yield f"of a layer's products, the dearest: {part}, batch {batch:,}, {dearer.loc[batch, part]:+.0f} % a sample"


# --- tables --------------------------------------------------------------------------------------------------

LINEAR_INPUTS = 9216  # of fc1 in the course's network: what tells its layers apart by their sizes


def linear_ops(report: Report) -> pd.DataFrame:
    """What the products of the network's linear layers took: a row each of fc1's and fc2's three, in a report with
    operator ranges; whole batches only, told by their sizes.

    Columns: ``product``, ``ops``, ``us`` (kernel time of one, its bias and the conversions to BF16 included),
    ``tensor_cores`` (``"using"``, …).
    """
    found = ops.eligible(report)
    sizes = [json.loads(text) if text else [] for text in found["sizes"]]
    batch = max((size[0][0] for size, op in zip(sizes, found["op"], strict=True) if op == "aten::linear"), default=0)
    rows = []
    for row, size in zip(found.itertuples(), sizes, strict=True):
        product = _linear_product(row.op, size, batch)
        if product:
            us = 1e3 * row.gpu_ms / row.ops
            rows.append({"product": product, "ops": row.ops, "us": us, "tensor_cores": row.group})
    frame = pd.DataFrame(rows, columns=["product", "ops", "us", "tensor_cores"])
    return frame.sort_values("product", ignore_index=True)


def _linear_product(op: str, sizes: list, batch: int) -> str | None:
    """``"fc1 forward"`` and so on for an operator of the network's linear layers on a whole batch, else None."""
    if op not in ("aten::linear", "aten::mm") or batch not in (sizes[0][0], sizes[0][1]):
        return None
    layer = "fc1" if LINEAR_INPUTS in (sizes[0][1], sizes[1][1]) else "fc2"
    if op == "aten::linear":
        return f"{layer} forward"
    return f"{layer} {'input' if sizes[0][0] == batch else 'weight'} gradient"


def linear_layers(reports: Mapping[str, Report]) -> Table:
    """Microseconds of the linear layers' products, a column a network; the last: how often in the epoch.

    ``reports``: with operator ranges, by the network's name in ``NETWORKS``.
    """
    each = {name: linear_ops(report).set_index("product") for name, report in reports.items()}
    frame = pd.DataFrame({name: own["us"] for name, own in each.items()}).rename_axis("product").reset_index()
    frame["whole batches"] = frame["product"].map(each["128 units"]["ops"])
    formats = dict.fromkeys(each, "{:.1f}") | {"whole batches": "{:.0f}"}
    return table(frame, "The linear layers: kernel time of one operation, µs", formats)


def epochs(runs: Mapping[str, Sequence[dict]]) -> Table:
    """Milliseconds of an epoch of each network; ``runs``: their records, by the command."""
    return shapes.epochs(runs, NETWORKS)


def by_kernel(products: pd.DataFrame) -> Table:
    """Which kernel multiplies when N is varied, in 16 bits and in TF32."""
    half, near = half_type(products), products[(products["part"] == "one") & products["varied"].isin(["", "n"])]
    of_half = (near["dtype"] == half) & near["n"].isin([4096, 4097, 4098, 4100, 4104])
    of_tf32 = (near["dtype"] == "tf32") & near["n"].isin([4092, 4094, 4095, 4096])
    both = near[of_half | of_tf32].sort_values(["dtype", "n"])
    return _rate(both, "N varied: which kernel multiplies", ["dtype", "n"])


def lines_apart(products: pd.DataFrame) -> Table:
    """The same sizes in lines of other lengths, in 16 bits."""
    half = half_type(products)
    moved = products[(products["part"] == "stride") & (products["dtype"] == half)]
    same_type = products[(products["part"] == "one") & (products["dtype"] == half)]
    both = pd.concat([same_type.merge(moved[["m", "n", "k"]]), moved])
    both = both.sort_values(["n", "k", "stride"], ascending=[True, True, False])
    return _rate(both, f"{WORDS[half]}: sizes and lines apart", ["n", "k", "stride"])


def _rate(products: pd.DataFrame, caption: str, columns: Sequence[str]) -> Table:
    """Products as rows: the given columns, µs, TFLOP/s, and which kernel multiplied."""
    names = {"dtype": "type", "stride": "lines in memory"}
    frame = products[[*columns, "us", "tflops", "tensor_cores", "kernel"]].copy()
    if "dtype" in frame:
        frame["dtype"] = frame["dtype"].map(WORDS)
    heads = {"us": "µs", "tflops": "TFLOP/s", "tensor_cores": "Tensor Cores"}
    frame = frame.rename(columns={name: name.upper() for name in "mnk"} | names | heads)
    formats = {"µs": "{:,.1f}", "TFLOP/s": "{:,.1f}", "kernel": _kernel}
    formats |= {name.upper(): "{}" for name in columns if name in ("m", "n", "k")}  # 4096, no thousands' separator
    return table(frame, caption, formats)


def _kernel(name: object) -> str:
    return short_kernel(name) if isinstance(name, str) else "–"


def by_layout(products: pd.DataFrame) -> Table:
    """Microseconds of a product, a column for each way to store both matrices (``n``: by rows, ``t``: by columns)."""
    own = products[products["part"] == "layout"]
    wide = own.pivot_table(index=["dtype", "m"], columns="layout", values="us").reindex(TYPES, level="dtype")
    wide = wide.add_suffix(" µs").rename(index=WORDS).reset_index(names=["type", "m = n = k"])
    measured = list(wide)[2:]
    return table(wide, "A product by the layout of A and B", dict.fromkeys(measured, "{:,.1f}"))


def by_batch(record: dict, dtype: str) -> pd.DataFrame:
    """Microseconds in one type: of a linear layer's three products, and of the network's ``step``, by the batch."""
    products = shapes.products([record])
    own = products[products["part"].str.startswith("batch") & (products["dtype"] == dtype)]
    own = own.assign(batch=own["k"].where(own["varied"] == "k", own["m"]), part=own["part"].str.removeprefix("batch "))
    steps = [row for row in record["rows"] if row["what"] == "step" and row["dtype"] == dtype]
    steps = pd.DataFrame(steps).set_index("batch")["us"].rename("step")
    return own.pivot(index="batch", columns="part", values="us").join(steps)


def dearer(record: dict, dtype: str) -> pd.DataFrame:
    """The same a sample, in per cent more than at batch 1,024."""
    us = by_batch(record, dtype)
    return 100 * (us.div(us.index, axis=0) / (us.loc[1024] / 1024) - 1)


# --- charts --------------------------------------------------------------------------------------------------

SMALL = 8.5  # points
COLOURS = ROOFS | {"fp8": style.ORANGE}
FP16_WIDTH = 3.6  # points: its line and its dots show beside BF16's, which mostly lie upon them
MULTIPLE = 8


def by_dimension(products: pd.DataFrame) -> Figure:
    """The rate of a product in per cent of that at its base size, a panel for each of M, N and K varied alone.

    ``products``: ``shapes.products``. A hollow point ran without Tensor Cores, a
    cross was refused.
    """
    own = products[products["part"] == "one"]
    aligned = own[own["varied"] == ""]
    panels = {
        f"{name} varied": pd.concat([own[own["varied"] == name.lower()], aligned]).assign(
            at=lambda f, n=name: f[n.lower()]
        )
        for name in "MNK"
    }
    return _sizes(panels, "One dimension of a 4096 × 4096 × 4096 product varied (medians)")


def together(products: pd.DataFrame) -> Figure:
    """The same with all three dimensions varied together, a panel for each base size."""
    own = products[products["part"] == "all"]
    panels = {f"around {base:,}": own[own["base"] == base].assign(at=own["n"]) for base in sorted(own["base"].unique())}
    return _sizes(panels, "Square products: M = N = K (medians)")


def _sizes(panels: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Panels side by side: title → products with the size in ``at``; each type in per cent of itself at ``base``."""
    with style.house_style():
        fig = style.figure(3.9, w_pad=0.1)
        axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        top = 100.0
        for ax, (name, frame) in zip(axes, panels.items(), strict=True):
            top = max(top, _size_panel(ax, frame))
            ax.set_title(name)
        axes[0].set_ylabel("TFLOP/s, % of the base size's")
        axes[0].set_ylim(-6, 1.06 * top)
        style.suptitle(fig, title)
        _types_key(fig, panels)
    return fig


def _size_panel(ax: Axes, frame: pd.DataFrame) -> float:
    """A line a type over equally spaced sizes; the highest per cent in it."""
    sizes = sorted(frame["at"].unique())
    place = {size: i for i, size in enumerate(sizes)}
    base = frame["base"].iloc[0]
    for size, i in place.items():
        if size % MULTIPLE == 0:
            ax.axvspan(i - 0.5, i + 0.5, color=style.GRID, lw=0, zorder=0)
    top = 0.0
    for dtype in TYPES:
        own = frame[frame["dtype"] == dtype].sort_values("at")
        done = own[own["refused"].isna()]
        if base not in set(done["at"]):
            continue
        line, dot = (FP16_WIDTH, 7) if dtype == "fp16" else (1.3, 4)
        whole = done.loc[done["at"] == base, "tflops"].iloc[0]
        x, y = done["at"].map(place), 100 * done["tflops"] / whole
        ax.plot(own["at"].map(place), 100 * own["tflops"] / whole, color=COLOURS[dtype], lw=line)  # a gap: refused
        for answer, face in ((YES, COLOURS[dtype]), (NO, style.PAPER), (None, style.MUTED)):
            # no kernel is known on a CPU
            shown = done["tensor_cores"] == answer if answer else ~done["tensor_cores"].isin([YES, NO])
            ax.plot(x[shown], y[shown], "o", ms=dot, mfc=face, mec=COLOURS[dtype], mew=1.1)
        refused = own.loc[own["refused"].notna(), "at"].map(place)
        ax.plot(refused, [0] * len(refused), "x", color=COLOURS[dtype], ms=5, mew=1.4)
        top = max(top, y.max())
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=90, fontsize=SMALL - 1)
    ax.set_xlim(-0.6, len(sizes) - 0.4)
    ax.grid(axis="y")
    return top


def _types_key(fig: Figure, panels: Mapping[str, pd.DataFrame]) -> None:
    frame = pd.concat(panels.values())
    found = [dtype for dtype in TYPES if frame.loc[frame["dtype"] == dtype, "us"].notna().any()]
    widths = {dtype: FP16_WIDTH if dtype == "fp16" else 1.3 for dtype in found}
    handles = [
        Line2D([], [], color=COLOURS[t], marker="o", ms=3 + lw, lw=lw, label=WORDS[t]) for t, lw in widths.items()
    ]
    handles.append(Patch(facecolor=style.GRID, label=f"multiple of {MULTIPLE}"))
    plain = {"color": style.INK, "ls": "none"}
    handles.append(Line2D([], [], marker="o", mfc=style.PAPER, ms=4, label="without Tensor Cores", **plain))
    handles.append(Line2D([], [], marker="x", ms=5, label="refused", **plain))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=SMALL, columnspacing=1.3)


# --- exercises -----------------------------------------------------------------------------------------------

BYTES = 16  # where a row of a matrix should begin: at a multiple of so many


def _try_padded(padded: Callable) -> str | None:
    for size, dtype in (
        (127, torch.bfloat16),
        (128, torch.bfloat16),
        (50_257, torch.float16),
        (10, torch.float32),
        (10, torch.float8_e4m3fn),
        (1, torch.float16),
        (20, torch.float8_e4m3fn),
        (3, torch.float64),
    ):
        found, name = padded(size, dtype), str(dtype).removeprefix("torch.")
        numbers = BYTES // dtype.itemsize  # in so many bytes
        if isinstance(found, bool) or not isinstance(found, Integral):
            return f"padded({size}, {name}) is {shown(found)}, not a whole number"
        if found < size:
            return f"padded({size}, {name}) is {found}: smaller than what has to fit"
        if found % numbers:
            return f"padded({size}, {name}) is {found}: {found * dtype.itemsize} bytes are no multiple of {BYTES}"
        if found - size == numbers:
            return f"padded({size}, {name}) is {found}: {size} fits already, and needs no padding"
        if found - size > numbers:
            what = f"padded({size}, {name}) is {shown(int(found))}"
            return f"{what}: a smaller one would do, {numbers} numbers are {BYTES} bytes"
    return None


def _up_to(multiple: Callable) -> Callable:
    return lambda size, dtype: -(-size // multiple(dtype)) * multiple(dtype)


PADDED = Code(
    "16 // dtype.itemsize numbers are 16 bytes; -(-a // b) rounds a / b up.",
    _try_padded,
    wrong={
        "bytes are no multiple of 16": _up_to(lambda dtype: 4),
        "is 50272: a smaller one would do": _up_to(lambda dtype: 16),
        "is 50304: a smaller one would do": _up_to(lambda dtype: 64),
        "smaller than what has to fit": lambda size, dtype: size // 8 * 8,
        "fits already": lambda size, dtype: size + 16 // dtype.itemsize - size % (16 // dtype.itemsize),
        "not a whole number": lambda size, dtype: float(_up_to(lambda one: 16 // one.itemsize)(size, dtype)),
        "is something of type NoneType": lambda size, dtype: None,
    },
)


WORTH_PADDING = Number(
    BOUND,
    "Microseconds of the row with n = 4097, over those of the row with n = 4104.",
    right=_own_us(n=4097) / _own_us(n=4104),
    wrong={
        "that is turned over: how many times as fast is the padded one?": _own_us(n=4104) / _own_us(n=4097),
        "that is in TF32: BF16 or FP16 is asked for": _own_us("tf32", n=4097) / _own_us("tf32", n=4104),
        "that is the share that is saved: how many times as fast?": 1 - _own_us(n=4104) / _own_us(n=4097),
        "that is N = 4095 in the place of 4097": _own_us(n=4095) / _own_us(n=4104),
    },
)


def _slowed_most(linear: pd.DataFrame) -> str:
    """The product whose time grows by most microseconds; its columns are ``product``, then 127 and 128 units."""
    grown = (linear.iloc[:, 1] - linear.iloc[:, 2]).astype(float)
    return "none" if linear.empty else str(linear.loc[grown.idxmax(), "product"])


SLOWED_MOST = Choice(
    READ,
    "Take the column of 128 units from that of 127, row by row; 'none' where the table has no rows.",
    right=_slowed_most,
    wrong={
        "fc2 weight gradient": "that one grows by the largest factor, of a short time: microseconds are asked for",
        "fc1 input gradient": "that is the second: take the difference of each row, not the time alone",
        "fc1 weight gradient": "it is near the others as a factor: take the difference in microseconds",
        "fc1": "that is the layer: it has three products, copy the words of the column",
    },
)
EXERCISES = {"12.1": PADDED, "12.2": WORTH_PADDING, "12.3": SLOWED_MOST}
