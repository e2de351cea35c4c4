"""What became of the cubics that were fitted to sin(x)? Fits, overflow, and the kernels that they ran."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from labkit.subjects.loss_scaling import FIRST_SCALE, scales
from stepbudget.ask import tensor_cores
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import Table, table

FP16_MAX = 65504.0
ALPHA = 0.99  # RMSprop's default: its state becomes ALPHA times itself, plus 1 - ALPHA of the gradient's square
LIMIT_PCT = 2.0  # above least squares
VARIANTS = ("fp32", "tf32", "bf16", "O1", "O2", "O3", "O3 mean")  # those that are profiled
COMPARED = ("fp32", "O1", "O2", "bf16")
SEARCH = 100  # iterations within which a scaler has found its scale: it is doubled after 2,000 good steps or later


def fits(record: dict) -> pd.DataFrame:
    """The fits, a row each: ``variant``, ``seed``, ``above_pct``, ``skipped``, µs an iteration.

    ``above_pct``: per cent above least squares by the final weights; NaN where they are not finite.
    """
    frame = pd.DataFrame(record["rows"])
    frame["above_pct"] = 100 * (frame["exact_loss"].astype(float) / record["least_squares"] - 1)
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
                "skipped steps": own["skipped"].median(),
                "µs an iteration": own["us_an_iteration"].median(),
            }
        )
    formats = dict.fromkeys(["above least squares %", "worst %"], "{:,.2f}")
    formats |= {within: "{:.0f}", "skipped steps": "{:.0f}", "µs an iteration": "{:.0f}"}
    caption = f"A cubic fitted to sin(x), the last iteration (medians); least squares: {record['least_squares']:.3f}"
    return table(pd.DataFrame(rows), caption, formats)


def tails(record: dict) -> pd.DataFrame:
    """A row a variant, finite ones: ``worst_pct``, the worst seed's median loss over its last 100 iterations.

    In per cent above least squares, as the runs say.
    """
    best, rows = record["least_squares"], []
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        own = [row["tail"] for row in record["rows"] if row["variant"] == name]
        if all(value is not None for tail in own for value in tail):
            rows.append((name, 100 * (max(median for _, median, _ in own) / best - 1)))
    return pd.DataFrame(rows, columns=["variant", "worst_pct"])


def losses(record: dict) -> dict[tuple[str, int], list[float]]:
    """The recorded losses of each fit, by variant and seed."""
    return {(row["variant"], row["seed"]): row["losses"] for row in record["rows"]}


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
                "RMSprop stores": (1 - ALPHA) * start["gradient_squared"],
                "halvings needed": halvings(start["gradient"]),
                "steps O1 skips": sum(iteration < SEARCH for iteration in own["O1"]["skipped"]),
                "O3's loss at the end": own["O3"]["exact_loss"],
            }
        )
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(["first loss", "largest gradient", "O3's loss at the end"], "{:,.0f}")
    return table(frame, "The first step, by seed", formats | {"RMSprop stores": "{:.1e}"})


def scales_chart(record: dict) -> Figure:
    """O1's loss scale: how the scaler finds it, and the whole fit."""
    own = [row for row in record["rows"] if row["variant"] == "O1"]
    panels = {"the first 30 iterations": own, "all of them": own}
    return scales(panels, [30, 5000], "O1: how GradScaler finds its scale")


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


def iteration(record: dict, report: Report, iterations: int = 100) -> Table:
    """An iteration of each variant: how long it takes, unprofiled, and what it asks of the GPU.

    ``iterations``: how many of them each variant's range in the report holds.
    """
    us = fits(record).groupby("variant", sort=False)["us_an_iteration"].median()
    rows = []
    for name in filter(report.windows, VARIANTS):
        kernels = tensor_cores.verdicts(report, report.window(name))
        product = kernels["kernel"].astype(str).str.contains(PRODUCT)
        gpu_us = 1e3 * kernels["gpu_ms"] / iterations
        rows.append((name, us.get(name), kernels["count"].sum() / iterations, gpu_us.sum(), gpu_us[product].sum()))
    heads = {"µs an iteration": "{:.0f}", "kernels": "{:.0f}", "their µs": "{:.1f}", "of that, products µs": "{:.1f}"}
    return table(pd.DataFrame(rows, columns=["variant", *heads]), "What an iteration asks of the GPU", heads)


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
            ("a V100's Tensor Cores work on integers, too", "no run needed: these came with Turing"),
        ],
        columns=["the text", "what we measured"],
    )
    return table(frame, "The text on the cubic")
