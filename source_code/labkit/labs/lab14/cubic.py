"""What became of the cubics that were fitted to sin(x)? Fits, overflow, rounding, and the kernels that they ran."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from labkit.subjects.loss_scaling import FIRST_SCALE
from stepbudget.ask import tensor_cores
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import Table, table

FP16_MAX = 65504.0
LIMIT_PCT = 2.0  # above least squares
COMPARED = ("fp32", "O1", "O2", "bf16")
SEARCH = 100  # iterations within which a scaler has found its scale: it is doubled after 2,000 good steps or later


def fits(record: dict) -> pd.DataFrame:
    """The fits, a row each: ``variant``, ``seed``, per cent above least squares twice, ``skipped``, µs an iteration.

    ``above_pct`` is by the final weights, ``said_pct`` by the run's own last loss; NaN where it is not finite.
    """
    best = record["least_squares"]
    frame = pd.DataFrame(record["rows"])
    for column, loss in (("above_pct", "exact_loss"), ("said_pct", "loss")):
        frame[column] = 100 * (frame[loss].astype(float) / best - 1)
    frame["skipped"] = frame["skipped"].map(len)
    return frame


def by_variant(record: dict) -> Table:
    """A row a variant: how far its seeds end above least squares, how many within the limit, what they cost."""
    rows = []
    within = f"seeds within {LIMIT_PCT:g} %"
    for name, own in fits(record).groupby("variant", sort=False):
        finite = own["above_pct"].notna().all()
        rows.append(
            {
                "variant": name,
                "seeds": len(own),
                within: int((own["above_pct"] < LIMIT_PCT).sum()),
                "above least squares %": own["above_pct"].median() if finite else None,
                "worst %": own["above_pct"].max() if finite else None,
                "as the run says %": own["said_pct"].median() if finite else None,
                "skipped steps": own["skipped"].median(),
                "µs an iteration": own["us_an_iteration"].median(),
            }
        )
    formats = dict.fromkeys(["above least squares %", "worst %", "as the run says %"], "{:,.2f}")
    formats |= {within: "{:.0f}", "skipped steps": "{:.0f}", "µs an iteration": "{:.0f}"}
    caption = f"A cubic fitted to sin(x), the last iteration (medians); least squares: {record['least_squares']:.3f}"
    return table(pd.DataFrame(rows), caption, formats)


SMALL = 8.5  # points
FAIL = 1e3  # per cent above least squares from which on a fit has failed, and is drawn at the edge
BESIDE = {"textcoords": "offset points", "va": "center", "size": SMALL}


def fits_chart(record: dict) -> Figure:
    """Per cent above the least-squares loss: a row a variant, a dot a seed; hollow: as the run itself reports it.

    What is not finite, or beyond 1,000 %, is a cross at the right edge.
    """
    rows, least_squares = record["rows"], record["least_squares"]
    names = list(dict.fromkeys(row["variant"] for row in rows))
    with style.house_style():
        fig = style.figure(1.3 + 0.3 * len(names), w_pad=0.1)
        ax = fig.subplots()
        for y, name in enumerate(names):
            own = [row for row in rows if row["variant"] == name]
            for kind, look in (("loss", {"mfc": style.PAPER, "ms": 7}), ("exact_loss", {"mfc": style.BLUE, "ms": 4.5})):
                values = [_above(row[kind], least_squares) for row in own]
                fine = [value for value in values if value is not None]
                ax.plot(fine, [y] * len(fine), "o", mec=style.BLUE, mew=1, **look)
            failed = sum(_above(row["exact_loss"], least_squares) is None for row in own)
            if failed:
                ax.plot([FAIL], [y], "x", color=style.VERMILION, ms=8, mew=2)
                ax.annotate(f"{failed} of {len(own)} fail", (FAIL, y), (-10, 0), **BESIDE | {"ha": "right"})
        ax.axvline(LIMIT_PCT, color=style.MUTED, ls=":", lw=1.4)
        ax.annotate(f"{LIMIT_PCT:g} %", (LIMIT_PCT, -0.6), (4, 0), **BESIDE)
        ax.set(xscale="log", xlim=(0.02, 1.4 * FAIL), ylim=(len(names) - 0.5, -0.9))
        ax.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("per cent above the least-squares loss; full: by the final weights, hollow: as the run says")
        ax.set_title(f"A cubic fitted to sin(x): a dot a seed ({len({row['seed'] for row in rows})} seeds a variant)")
    return fig


def _above(loss: float | None, least_squares: float) -> float | None:
    """Per cent above the least-squares loss; None where the fit failed."""
    if loss is None or not math.isfinite(loss):
        return None
    above = 100 * (loss / least_squares - 1)
    return max(above, 0.02) if above < FAIL else None


def tail(record: dict) -> Table:
    """A row a variant, finite ones: the loss over the last 100 iterations, per cent above least squares.

    ``lowest``, ``median``, ``highest``: medians over the seeds; ``worst median``: of the worst seed.
    """
    best, rows = record["least_squares"], []
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        tails = [row["tail"] for row in record["rows"] if row["variant"] == name]
        if all(value is not None for tail in tails for value in tail):
            three = [statistics.median(values) for values in zip(*tails, strict=True)]
            above = [100 * (value / best - 1) for value in (*three, max(tail[1] for tail in tails))]
            rows.append((name, *above))
    numbers = ["lowest %", "median %", "highest %", "worst median %"]
    caption = "Above least squares over the last 100 iterations, as the runs say (medians over seeds; worst seed)"
    return table(pd.DataFrame(rows, columns=["variant", *numbers]), caption, dict.fromkeys(numbers, "{:,.2f}"))


def halvings(gradient: float, scale: float = FIRST_SCALE) -> int:
    """How often ``scale`` must be halved until ``gradient`` times it fits into FP16."""
    return max(0, math.ceil(math.log2(gradient * scale / FP16_MAX)))


def overflow(record: dict) -> Table:
    """A row a seed: the first step's largest numbers, the halvings they ask for, and what became of O1 and of O3.

    The steps that O1 skips are those of its search: of the first iterations, before the scale is ever doubled.
    """
    rows = []
    for seed in sorted({row["seed"] for row in record["rows"]}):
        own = {row["variant"]: row for row in record["rows"] if row["seed"] == seed}
        start = own["fp32"]["start"]
        rows.append(
            {
                "seed": seed,
                "first loss": start["loss"],
                "largest gradient": start["gradient"],
                "its square": start["gradient_squared"],
                "halvings needed": halvings(start["gradient"]),
                "steps O1 skips": sum(iteration < SEARCH for iteration in own["O1"]["skipped"]),
                "O3's loss at the end": own["O3"]["exact_loss"],
            }
        )
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(["first loss", "largest gradient", "O3's loss at the end"], "{:,.0f}")
    return table(frame, "The first step, by seed", formats | {"its square": "{:.1e}"})


def rounding(record: dict) -> Table:
    """Where BF16 loses: per cent above least squares, median over the seeds, each row with one thing more rounded.

    Only the first two rows where no fit ran in BF16: the GPU has none.
    """
    own = fits(record)
    bf16 = own[own["variant"] == "bf16"]
    best = record["least_squares"]
    rounded = 100 * (record["rounded_best"]["bfloat16"] / best - 1)
    rows = [
        ("the best cubic, rounded to BF16 with its powers and results", rounded),
        ("FP32's final weights, in FP64", own.loc[own["variant"] == "fp32", "above_pct"].median()),
    ]
    if len(bf16):
        seen = statistics.median(_loss(in_bf16(weights)) for weights in bf16["weights"])
        rows += [
            ("BF16's final weights, in FP64", bf16["above_pct"].median()),
            ("the same weights rounded to BF16, in FP64", 100 * (seen / best - 1)),
            ("the same, powers and results rounded too: as the run says", bf16["said_pct"].median()),
        ]
    above = "above least squares %"
    frame = pd.DataFrame(rows, columns=["loss of", above])
    return table(frame, "Where BF16 loses (medians over the seeds)", {above: "{:.2f}"})


def in_bf16(values: Sequence[float]) -> np.ndarray:
    """The nearest BF16 numbers, ties to even: the upper half of an FP32 number's bits. In FP64."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _loss(weights: np.ndarray) -> float:
    """The sum of squared errors of (x, x², x³, constant) coefficients, in FP64."""
    x = np.linspace(-np.pi, np.pi, 2000)
    *powers, constant = weights
    found = constant + sum(weight * x**exponent for exponent, weight in enumerate(powers, 1))
    return float(np.square(found - np.sin(x)).sum())


PRODUCT = r"gemm|gemv|nvjet|cutlass|cublas|dot_kernel|splitK|xmma"  # in the name of a kernel of a matrix product


def products(report: Report, variants: Sequence[str]) -> Table:
    """The kernels of the matrix products, a row a variant and kernel, with the verdict on Tensor Cores.

    Empty where the report holds no kernels (there was no GPU). A variant that was not profiled is left out.
    """
    rows = []
    for name in filter(report.windows, variants):
        for own in tensor_cores.verdicts(report, report.window(name)).itertuples():
            if re.search(PRODUCT, own.kernel):
                us = 1e3 * own.gpu_ms / own.count
                rows.append((name, _product_name(own.kernel), own.count, us, own.tensor_core, own.evidence))
    frame = pd.DataFrame(rows, columns=["variant", "kernel", "count", "mean µs", "Tensor Cores", "told by"])
    caption = f"{report.name}: the kernels of the matrix products"
    return table(frame, caption, {"mean µs": "{:.1f}"})


def _product_name(kernel: str) -> str:
    """A kernel's name in short; one that is just called ``kernel`` keeps its namespaces: ``internal::gemvx``."""
    kernel = re.sub(r"^(void |std::enable_if<[^>]*>::type )+", "", kernel)
    head = re.match(r"[^<(]*", kernel).group()
    return head if head.endswith("::kernel") else short_kernel(kernel)


def on_tensor_cores(products: pd.DataFrame) -> str:
    """Which variants multiplied on Tensor Cores, in a sentence; ``products``: the table's rows."""
    if products.empty:
        return "no GPU was profiled here"
    found = products.groupby("variant", sort=False)["Tensor Cores"].agg(set)
    yes = [name for name, said in found.items() if "yes" in said]
    unknown = [name for name, said in found.items() if "unknown" in said and name not in yes]
    if yes:
        rest = f"; not known of {', '.join(unknown)}" if unknown else ""
        return f"{'yes' if len(yes) == len(found) else 'in part'}: in {', '.join(yes)}{rest}"
    if unknown:
        return f"not known of {', '.join(unknown)}"
    return f"no: in none of {', '.join(found.index)}"


def work(report: Report, variants: Sequence[str], iterations: int) -> Table:
    """What an iteration asks of the GPU, a row a variant: kernels and their µs, and those of the products alone.

    ``iterations``: how many of them each variant's range holds.
    """
    rows = []
    for name in filter(report.windows, variants):
        kernels = tensor_cores.verdicts(report, report.window(name))
        product = kernels["kernel"].astype(str).str.contains(PRODUCT)
        us = 1e3 * kernels["gpu_ms"] / iterations
        rows.append((name, kernels["count"].sum() / iterations, us.sum(), us[product].sum()))
    formats = {"kernels": "{:.0f}", "their µs": "{:.1f}", "of that, products µs": "{:.1f}"}
    frame = pd.DataFrame(rows, columns=["variant", *formats])
    return table(frame, f"{report.name}: kernels of an iteration", formats)


def text(record: dict, products: pd.DataFrame) -> Table:
    """The first text's statements, in our words, beside the recorded fits; ``products``: the table's rows."""
    own = fits(record)
    middle = own.groupby("variant")[["exact_loss", "us_an_iteration"]].median()
    loss, us = middle["exact_loss"], middle["us_an_iteration"]
    apex = f", {loss['apex O1']:.2f} with Apex's O1" if "apex O1" in loss else ""
    searched = overflow(record).frame
    skipped = searched["steps O1 skips"]
    foretold = "" if (skipped == searched["halvings needed"]).all() else "NOT "
    slower = us["O1"] / us["fp32"]
    fine = {name: int((found["above_pct"] < LIMIT_PCT).sum()) for name, found in own.groupby("variant")}
    seeds, best = own["seed"].nunique(), record["least_squares"]
    compared = ", ".join(f"{name} {fine[name]}" for name in COMPARED if name in fine)
    frame = pd.DataFrame(
        [
            (
                "the loss is a mean squared error, 8.82 at best",
                f"it is a sum over 2,000 points: {best:.2f} at best, or {best / 2000:.4f} a point",
            ),
            (
                "8.92 without AMP, 8.85 with PyTorch's, 8.86 with Apex's",
                f"medians: {loss['fp32']:.2f} in FP32, {loss['O1']:.2f} in O1{apex}",
            ),
            (
                "with and without AMP comparable, a little less exact than least squares",
                f"within {LIMIT_PCT:g} %: {compared} of {seeds} seeds; pure half (O3): {fine['O3']}",
            ),
            (
                "18 skipped steps, the scale falls from 65,536 to 0.25",
                f"{skipped.min()} to {skipped.max()} by seed, {foretold}as the first gradient foretells",
            ),
            (
                "mixed precision is faster",
                f"{us['fp32']:.0f} µs an iteration in FP32, {us['O1']:.0f} µs in O1: {slower:.1f} times as long",
            ),
            ("unclear whether Tensor Cores are used", on_tensor_cores(products)),
        ],
        columns=["the text", "what we measured"],
    )
    return table(frame, "The text on the cubic")
