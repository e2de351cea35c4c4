"""What do sizes and memory layouts cost, and which switch makes FP32 mean TF32? Two benchmarks' rows, read.

``bench_shapes.py`` gives a row a matrix product or convolution and type, ``bench_tf32.py`` a row a set of switches.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import pandas as pd

from labkit.errors import LabError
from labkit.subjects.roofline import matmul_flops
from stepbudget import kernel_names
from stepbudget.ask import ops
from stepbudget.kernel_names import NO, UNKNOWN, YES
from stepbudget.report import Report

TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
MEASURED_FIELDS = ("error", "calls", "us", "low_us", "high_us", "kernels", "kernel_us", "refused")
LINEAR_INPUTS = 9216  # of fc1 in the course's network: what tells its layers apart by their sizes


def flops(row: Mapping) -> int:
    """Operations of a row's call; a multiplication and an addition count as two."""
    if row["what"] == "matmul":
        return matmul_flops(row["m"], row["n"], row["k"])
    side = row["size"] + 2 * row["padding"] - 2  # 3 x 3 filters
    once = 2 * row["images"] * side**2 * row["c_in"] * row["c_out"] * 9
    return once if row["direction"] == "forward" or row["layer"] == "first" else 2 * once


def verdict(kernels: Iterable[str]) -> str | None:
    """Did a call that launched these kernels use Tensor Cores, by their names? None where no kernel is known.

    Of kernels that multiply and kernels that serve them, the former decide.
    """
    names = [kernel_names.demangled(name) for name in kernels]
    answers = {kernel_names.by_name(name) for name in [*filter(_multiplies, names)] or names}
    return next((answer for answer in (YES, UNKNOWN, NO) if answer in answers), None)


_multiplies = cache(kernel_names.is_product)


def products(records: Sequence[dict]) -> pd.DataFrame:
    """The matrix products of the records of ``bench_shapes.py``, a row a case and type, all rounds together.

    Columns: what the case is (``part``, ``base``, ``varied``, ``layout`` of both matrices, ``stride``, ``m``, ``n``,
    ``k``, ``dtype``, and ``width`` for a layer of the net); ``us`` of a call (the median of the rounds' medians),
    ``low_us``, ``high_us``; ``tflops``; ``error``, relative, against FP64; ``kernel``, the one that multiplies;
    ``tensor_cores`` (yes, no, unknown); ``refused``, what the library said where it did not multiply, else None.
    """
    return _joined(records, "matmul")


def convolutions(records: Sequence[dict]) -> pd.DataFrame:
    """The convolutions, as ``products``, with ``layer``, ``c_in``, ``c_out``, ``layout``, ``direction``.

    ``layout_share``: of the call's kernel time, what only changes the layout in memory.
    """
    return _joined(records, "conv")


def half_type(found: pd.DataFrame) -> str:
    """``"bf16"``, or ``"fp16"`` where the GPU has no BF16: what stands for the 16-bit types in the labs' sentences."""
    return "bf16" if found.loc[found["dtype"] == "bf16", "us"].notna().any() else "fp16"


def by_channels(found: pd.DataFrame, layer: str, dtype: str) -> pd.DataFrame:
    """Forward and backward of a layer by its channels: ``channels``, and for each layout ``…_us`` and ``…_tflops``.

    ``found``: the table of ``convolutions``.
    """
    own = found[(found["layer"] == layer) & (found["dtype"] == dtype)].copy()
    own["operations"] = own["us"] * own["tflops"]
    sums = own.groupby(["c_in", "layout"])[["us", "operations"]].sum()
    wide = sums.assign(tflops=sums["operations"] / sums["us"]).unstack()
    layouts = own["layout"].unique()
    columns = {f"{layout}_{what}": wide[what, layout] for layout in layouts for what in ("us", "tflops")}
    return pd.DataFrame({"channels": wide.index, **columns}).reset_index(drop=True)


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


def _joined(records: Sequence[dict], what: str) -> pd.DataFrame:
    rounds = [[row for row in record["rows"] if row["what"] == what] for record in records]
    rows = []
    for same in zip(*rounds, strict=True):
        key = _key(same[0])
        if any(_key(other) != key for other in same[1:]):
            raise LabError("these records hold different cases: record bench_shapes.py again.")
        names = [
            [kernel_names.demangled(record["kernels"][place]) for place in row["kernels"]]
            for record, row in zip(records, same, strict=True)
        ]
        rows.append(key | _measured(same) | _by_kernels(names, [row["kernel_us"] for row in same]))
    found = pd.DataFrame(rows)
    for column in ("refused", "kernel", "tensor_cores"):
        found[column] = found[column].astype(object).where(found[column].notna(), None)
    return found


def _key(row: Mapping) -> dict:
    return {name: value for name, value in row.items() if name not in MEASURED_FIELDS}


def _measured(rows: Sequence[dict]) -> dict:
    """A case's rounds together."""
    refused = next((row["refused"] for row in rows if "refused" in row), None)
    if refused:
        return {"refused": refused}
    us = statistics.median(row["us"] for row in rows)
    return {
        "us": us,
        "low_us": min(row["low_us"] for row in rows),
        "high_us": max(row["high_us"] for row in rows),
        "tflops": flops(rows[0]) / us / 1e6,
        "error": statistics.median(row["error"] for row in rows),
        "refused": None,
    }


def _by_kernels(names: Sequence[list[str]], times: Sequence[list[float]]) -> dict:
    """What the kernels of a call tell, of the first round; each round's list begins with the longest kernel."""
    first = names[0]
    shares = [
        sum(us for name, us in zip(own, each, strict=True) if kernel_names.CHANGES_LAYOUT.search(name))
        / (sum(each) or 1.0)
        for own, each in zip(names, times, strict=True)
    ]
    return {
        "kernel": next((name for name in first if _multiplies(name)), first[0] if first else None),
        "tensor_cores": verdict(first),
        "layout_share": statistics.median(shares),
    }
