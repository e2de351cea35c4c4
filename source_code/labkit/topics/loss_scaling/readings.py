"""What do the experiments on loss scaling say? Fits, overflow, gradients lost, losses: as data frames."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from labkit.display.spread import MEASURED
from stepbudget.ask import tensor_cores
from stepbudget.report import Report

FP16_MAX = 65504.0
FIRST_SCALE = 2.0**16
LIMIT_PCT = 2.0  # above least squares
COMPARED = ("fp32", "O1", "O2", "bf16")
SEARCH = 100  # iterations within which a scaler has found its scale: it is doubled after 2,000 good steps or later


def fit(record: dict) -> pd.DataFrame:
    """The fits, a row each: ``variant``, ``seed``, per cent above least squares twice, ``skipped``, µs an iteration.

    ``above_pct`` is by the final weights, ``said_pct`` by the run's own last loss; NaN where it is not finite.
    """
    best = record["least_squares"]
    frame = pd.DataFrame(record["rows"])
    for column, loss in (("above_pct", "exact_loss"), ("said_pct", "loss")):
        frame[column] = 100 * (frame[loss].astype(float) / best - 1)
    frame["skipped"] = frame["skipped"].map(len)
    return frame


def tail(record: dict) -> pd.DataFrame:
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
    return pd.DataFrame(rows, columns=["variant", "lowest", "median", "highest", "worst median"])


def optimizers(record: dict) -> pd.DataFrame:
    """A row a network, make of the optimizer, and with a loss scaler or without (``bench_optimizers.py``).

    ``call_ms``: until the call is back; ``step_ms``: until the GPU has done it; medians. ``kernels`` and ``gpu_ms`` of
    one step, ``waits``: its calls that wait for the GPU; None without a GPU. ``reads``: numbers that it reads off
    tensors, wherever these lie.
    """
    found = pd.DataFrame(record["rows"])
    for name in ("call", "step"):
        found[f"{name}_ms"] = found.pop(f"{name}_us").map(statistics.median) / 1e3
    return found.assign(gpu_ms=found.pop("gpu_us").astype(float) / 1e3)


def halvings(gradient: float, scale: float = FIRST_SCALE) -> int:
    """How often ``scale`` must be halved until ``gradient`` times it fits into FP16."""
    return max(0, math.ceil(math.log2(gradient * scale / FP16_MAX)))


def overflow(record: dict) -> pd.DataFrame:
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
    return pd.DataFrame(rows)


def lost(record: dict, iteration: int) -> pd.DataFrame:
    """Per layer, from the loss back to the input, on FP32's way: per cent of the gradients, mean over the seeds.

    ``foretold``: so small in FP32 that FP16 rounds them to zero; ``subnormal``: below FP16's normal numbers;
    ``zero × s``: zero in FP16, of a loss times s, though FP32's are not.
    """
    probes = [p for row in record["rows"] if row["variant"] == "fp32" for p in row["probes"]]
    frame = pd.DataFrame([p for p in probes if p["iteration"] == iteration])
    if frame.empty:
        raise ValueError(f"iteration {iteration} was not looked at")
    mean = 100 * frame.groupby(["precision", "scale", "layer"], sort=False)[["zero_share", "subnormal_share"]].mean()
    exact = mean.loc["fp32", 1.0]
    found = pd.DataFrame({"foretold": exact["zero_share"], "subnormal": exact["subnormal_share"]})
    for scale in sorted(frame.loc[frame["precision"] == "fp16", "scale"].unique()):
        found[f"zero × {scale:,.0f}"] = mean.loc["fp16", scale]["zero_share"]
    return found.rename_axis("layer").reset_index()


def ends(record: dict) -> pd.DataFrame:
    """Per loss and variant: the mean loss over the last quarter, mean and range over seeds, against FP32's seeds.

    ``inside``: is the mean within the range of FP32's seeds? ``furthest_pct``: how far, at most, a seed ends from FP32
    with the same seed (the same first weights and batches). ``p``: the paired t test of that, two-sided.
    """
    rows = []
    names = list(dict.fromkeys(row["variant"] for row in record["rows"]))
    for loss in record["rows"][0]["last_quarter"]:
        values = {n: [r["last_quarter"][loss] for r in record["rows"] if r["variant"] == n] for n in names}
        base = values["fp32"]
        for name, own in values.items():
            finite = all(value is not None for value in own)
            mean = statistics.mean(own) if finite else None
            other = finite and name != "fp32" and len(own) == len(base)
            rows.append(
                {
                    "loss": loss,
                    "variant": name,
                    "seeds": len(own),
                    "mean": mean,
                    "lowest": min(own) if finite else None,
                    "highest": max(own) if finite else None,
                    "inside": finite and min(base) <= mean <= max(base),
                    "furthest_pct": 100 * max(abs(one / b - 1) for one, b in zip(own, base, strict=True))
                    if other
                    else None,
                    "p": float(stats.ttest_rel(own, base).pvalue) if other and len(own) > 1 else None,
                }
            )
    return pd.DataFrame(rows)


PRODUCT = r"gemm|gemv|nvjet|cutlass|cublas|dot_kernel|splitK|xmma"  # in the name of a kernel of a matrix product


def products(report: Report, variants: Sequence[str]) -> pd.DataFrame:
    """The kernels of the matrix products, a row a variant and kernel, with the verdict on Tensor Cores.

    Empty where the report holds no kernels (there was no GPU). A variant that was not profiled is left out.
    """
    found = []
    for name in filter(report.windows, variants):
        kernels = tensor_cores.verdicts(report, report.window(name))
        total_ms = kernels["gpu_ms"].sum()
        own = kernels[kernels["kernel"].astype(str).str.contains(PRODUCT)]
        found.append(own.assign(variant=name, share_pct=100 * own["gpu_ms"] / total_ms))
    columns = ["kernel", "count", "gpu_ms", "tensor_core", "evidence", "variant", "share_pct"]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)


def work(report: Report, variants: Sequence[str], iterations: int) -> pd.DataFrame:
    """What an iteration asks of the GPU, a row a variant: ``kernels``, ``gpu_us``; of that ``product_us``.

    ``iterations``: how many of them each variant's range holds.
    """
    rows = []
    for name in filter(report.windows, variants):
        kernels = tensor_cores.verdicts(report, report.window(name))
        product = kernels["kernel"].astype(str).str.contains(PRODUCT)
        us = 1e3 * kernels["gpu_ms"] / iterations
        rows.append((name, kernels["count"].sum() / iterations, us.sum(), us[product].sum()))
    return pd.DataFrame(rows, columns=["variant", "kernels", "gpu_us", "product_us"])


def rounding(record: dict) -> pd.DataFrame:
    """Where BF16 loses: per cent above least squares, median over the seeds, each row with one thing more rounded.

    Only the first two rows where no fit ran in BF16: the GPU has none.
    """
    own = fit(record)
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
    return pd.DataFrame(rows, columns=["loss of", "above least squares %"])


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


CLAIMS = ["the text", "what we measured"]


def cubic_claims(record: dict, products: pd.DataFrame) -> pd.DataFrame:
    """The first text's statements, in our words, beside the recorded fits; ``products``: from ``products``."""
    own = fit(record)
    middle = own.groupby("variant")[["exact_loss", "us_an_iteration"]].median()
    loss, us = middle["exact_loss"], middle["us_an_iteration"]
    apex = f", {MEASURED}{loss['apex O1']:.2f} with Apex's O1" if "apex O1" in loss else ""
    searched = overflow(record)
    skipped = searched["steps O1 skips"]
    foretold = "" if (skipped == searched["halvings needed"]).all() else "NOT "
    slower = us["O1"] / us["fp32"]
    fine = {name: int((found["above_pct"] < LIMIT_PCT).sum()) for name, found in own.groupby("variant")}
    seeds, best = own["seed"].nunique(), record["least_squares"]
    compared = ", ".join(f"{name} {MEASURED}{fine[name]}" for name in COMPARED if name in fine)
    return pd.DataFrame(
        [
            (
                "the loss is a mean squared error, 8.82 at best",
                f"it is a sum over 2,000 points: {best:.2f} at best, or {best / 2000:.4f} a point",
            ),
            (
                "8.92 without AMP, 8.85 with PyTorch's, 8.86 with Apex's",
                f"medians: {MEASURED}{loss['fp32']:.2f} in FP32, {MEASURED}{loss['O1']:.2f} in O1{apex}",
            ),
            (
                "with and without AMP comparable, a little less exact than least squares",
                f"within {LIMIT_PCT:g} %: {compared} of {seeds} seeds; pure half (O3): {MEASURED}{fine['O3']}",
            ),
            (
                "18 skipped steps, the scale falls from 65,536 to 0.25",
                f"{MEASURED}{skipped.min()} to {MEASURED}{skipped.max()} by seed, {foretold}as the first gradient "
                "foretells",
            ),
            (
                "mixed precision is faster",
                f"{MEASURED}{us['fp32']:.0f} µs an iteration in FP32, {MEASURED}{us['O1']:.0f} µs in O1: "
                f"{MEASURED}{slower:.1f} times as long",
            ),
            ("unclear whether Tensor Cores are used", on_tensor_cores(products)),
        ],
        columns=CLAIMS,
    )


def on_tensor_cores(products: pd.DataFrame) -> str:
    """Which variants multiplied on Tensor Cores, in a sentence; ``products``: from ``products``."""
    if products.empty:
        return "no GPU was profiled here"
    found = products.groupby("variant", sort=False)["tensor_core"].agg(set)
    yes = [name for name, said in found.items() if "yes" in said]
    unknown = [name for name, said in found.items() if "unknown" in said and name not in yes]
    if yes:
        rest = f"; not known of {', '.join(unknown)}" if unknown else ""
        return f"{'yes' if len(yes) == len(found) else 'in part'}: in {', '.join(yes)}{rest}"
    if unknown:
        return f"not known of {', '.join(unknown)}"
    return f"no: in none of {', '.join(found.index)}"


def gan_claims(record: dict) -> pd.DataFrame:
    """The second text's statements, in our words, beside the recorded trainings."""
    first = lost(record, 0).set_index("layer")["zero × 1"]
    last = max(probe["iteration"] for probe in record["rows"][0]["probes"])
    late = lost(record, last).set_index("layer")["zero × 1"]
    losses = ends(record)
    plain = losses[losses["variant"] == "fp16"]
    lowest = min(row["lowest"]["g"] for row in record["rows"] if row["variant"] == "fp16")
    inside = f"{plain['inside'].sum()} of {len(plain)} mean losses within the range of FP32's seeds"
    return pd.DataFrame(
        [
            ("loss scaling should not make a big difference in the GAN", f"without it: {inside}"),
            (
                "… since the loss never gets near the range that is cut off",
                f"the generator's loss never falls below {MEASURED}{lowest:.2f}, but of its gradients "
                f"{MEASURED}{first['g.fc']:.0f} % are zero in the first iteration, {MEASURED}{late['g.fc']:.0f} % in "
                "the last",
            ),
            (
                "4 epochs of 14 iterations",
                "too short for a scaler that doubles after 2,000 good steps; ours doubled after 50",
            ),
        ],
        columns=CLAIMS,
    )
