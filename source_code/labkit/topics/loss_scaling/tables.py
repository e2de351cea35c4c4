"""What do the experiments on loss scaling say? Their records as tables: fits, overflow, gradients lost, losses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pandas as pd

from labkit.display.table import Table, short_kernel, table
from labkit.topics.loss_scaling import readings
from labkit.topics.loss_scaling.charts import WORDS
from stepbudget.report import Report


def fit(record: dict, limit_pct: float = readings.LIMIT_PCT) -> Table:
    """A row a variant: how far its seeds end above least squares, how many within ``limit_pct``, what they cost."""
    rows = []
    within = f"seeds within {limit_pct:g} %"
    for name, own in readings.fit(record).groupby("variant", sort=False):
        finite = own["above_pct"].notna().all()
        rows.append(
            {
                "variant": name,
                "seeds": len(own),
                within: int((own["above_pct"] < limit_pct).sum()),
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
    return table(pd.DataFrame(rows), caption, formats, list(formats))


def tail(record: dict) -> Table:
    """``readings.tail`` as a table."""
    found = readings.tail(record).set_index("variant").add_suffix(" %").reset_index()
    numbers = list(found.columns[1:])
    caption = "Above least squares over the last 100 iterations, as the runs say (medians over seeds; worst seed)"
    return table(found, caption, dict.fromkeys(numbers, "{:,.2f}"), numbers)


def lost(record: dict, iteration: int, what: str) -> Table:
    """``readings.lost`` as a table."""
    found = readings.lost(record, iteration)
    numbers = list(found.columns[1:])
    caption = f"{what}, iteration {iteration}: per cent of the gradients at each layer's output"
    return table(found, caption, dict.fromkeys(numbers, "{:.1f}"), numbers)


def ends(record: dict, losses: dict[str, str], caption: str) -> Table:
    """``readings.ends`` as a table; ``losses``: what each loss is called."""
    found = readings.ends(record)
    found["loss"] = found["loss"].map(losses)
    found["variant"] = found["variant"].map(WORDS)
    heads = {"inside": "within FP32's range", "furthest_pct": "same seed: at most % from FP32", "p": "p (paired)"}
    found = found.rename(columns=heads)
    numbers = ["mean", "lowest", "highest", heads["furthest_pct"], heads["p"]]
    found["within FP32's range"] = found["within FP32's range"].map({True: "yes", False: "NO"})
    formats = dict.fromkeys(numbers[:3], "{:.4f}") | {numbers[3]: "{:.1f}", numbers[4]: "{:.2g}"}
    return table(found, caption, formats, numbers)


def layers(record: dict, every: int = 4) -> Table:
    """The deep network's first step, a layer a row from the loss back: its largest gradient, and the zeros by variant.

    Medians over the seeds; ``every``: each so-manieth layer, counted from the last.
    """
    frame = pd.DataFrame([{"variant": r["variant"], **layer} for r in record["rows"] for layer in r["layers"]])
    middle = frame.groupby(["layer", "variant"])[["largest", "zero_share"]].median().unstack("variant")
    found = pd.DataFrame({"largest in FP32, log2": middle["largest"]["fp32"].map(math.log2)})
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        found[f"zero %: {WORDS[name]}"] = 100 * middle["zero_share"][name]
    found = found.iloc[::-1].iloc[::every].reset_index()
    numbers = list(found.columns[1:])
    caption = "Gradients of the weights in the first step, from the layer next to the loss to the first one"
    return table(found, caption, dict.fromkeys(numbers, "{:.0f}"), numbers)


def products(report: Report, variants: Sequence[str]) -> Table:
    """``readings.products`` as a table."""
    found = readings.products(report, variants)
    frame = pd.DataFrame(
        {
            "variant": found["variant"],
            "kernel": found["kernel"].map(_product_name),
            "count": found["count"],
            "mean µs": 1e3 * found["gpu_ms"] / found["count"],
            "Tensor Cores": found["tensor_core"],
            "told by": found["evidence"],
        }
    )
    caption = f"{report.name}: the kernels of the matrix products"
    return table(frame, caption, {"mean µs": "{:.1f}"}, ["mean µs"])


def _product_name(kernel: str) -> str:
    """A kernel's name in short; one that is just called ``kernel`` keeps its namespaces: ``internal::gemvx``."""
    kernel = re.sub(r"^(void |std::enable_if<[^>]*>::type )+", "", kernel)
    head = re.match(r"[^<(]*", kernel).group()
    return head if head.endswith("::kernel") else short_kernel(kernel)


def work(report: Report, variants: Sequence[str], iterations: int) -> Table:
    """``readings.work`` as a table."""
    found = readings.work(report, variants, iterations)
    found = found.rename(columns={"gpu_us": "their µs", "product_us": "of that, products µs"})
    formats = {"kernels": "{:.0f}", "their µs": "{:.1f}", "of that, products µs": "{:.1f}"}
    return table(found, f"{report.name}: kernels of an iteration", formats, list(formats))


def optimizers(found: pd.DataFrame) -> Table:
    """``readings.optimizers``: a row a network and make, its step without a scaler and with one."""
    wide = found.pivot(index=["network", "optimizer"], columns="scaler", values=["step_ms", "kernels", "waits"])
    wide = wide.reindex(found[["network", "optimizer"]].drop_duplicates().itertuples(index=False, name=None))
    wide.columns = [f"{what.replace('_', ' ')}, {'scaler' if scaler else 'none'}" for what, scaler in wide.columns]
    measured = list(wide)
    formats = {name: "{:.2f}" if name.startswith("step") else "{:.0f}" for name in measured}
    return table(wide.reset_index(), "A step of the optimizer, without a scaler and with one", formats, measured)
