"""What do sizes and memory layouts cost? The rows of ``bench_shapes.py``, a product or convolution and a type each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import pandas as pd

from labkit.display.runs import epoch_ms
from labkit.display.spread import Spread
from labkit.errors import LabError
from stepbudget import kernel_names
from stepbudget.kernel_names import NO, UNKNOWN, YES
from stepbudget.show.table import Table, table

TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
WORDS = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16", "fp8": "FP8"}
MEASURED_FIELDS = ("error", "calls", "us", "low_us", "high_us", "kernels", "kernel_us", "refused")


def flops(row: Mapping) -> int:
    """Operations of a row's call; a multiplication and an addition count as two."""
    if row["what"] == "matmul":
        return 2 * row["m"] * row["n"] * row["k"]
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


def epochs(runs: Mapping[str, Sequence[dict]], networks: Mapping[str, str]) -> Table:
    """Milliseconds of an epoch of each network (command → label); per cent against the first network, run by run."""
    each = {label: [epoch_ms([run]) for run in runs[command]] for command, label in networks.items()}
    plain = next(iter(each.values()))
    rows = []
    for name, own in each.items():
        ratio = Spread.of([ms / base for ms, base in zip(own, plain, strict=True)])
        span = f"{min(own):.1f}–{max(own):.1f}"
        rows.append((name, Spread.of(own).median, span, 100 * (ratio.median - 1)))
    frame = pd.DataFrame(rows, columns=["network", "epoch ms", "each run ms", "longer by %"])
    formats = {"epoch ms": "{:.1f}", "longer by %": "{:+.1f}"}
    caption = "A training epoch without the profiler, first epochs left out; per cent: in pairs of runs"
    return table(frame, caption, formats)
