"""How close is this to what the hardware can do? Two roofs as measured, and what lies under them as points.

A program that does F floating-point operations and moves B bytes through the GPU's memory needs at least F / (peak
TFLOP/s) and at least B / (bandwidth). The larger of the two is the roof that binds; F / B, the *arithmetic intensity*,
says which: left of the ridge it is memory, right of it arithmetic.
(Williams, Waterman, Patterson 2009, "Roofline: An Insightful Visual Performance Model for Multicore Architectures".)

Bytes come from Nsight Compute's counters where it ran (``stepbudget.ncu.counters``); elsewhere they are counted from
the tensors' shapes (``floors``). Roofs are what ``bench_peaks.py`` measured, not what a data sheet says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from labkit.display.spread import Spread
from labkit.errors import LabError
from labkit.source import recorded
from stepbudget.kernel_names import short as short_kernel
from stepbudget.ncu import counters
from stepbudget.ncu.counters import Counted
from stepbudget.show.table import Table, table

COUNTED = "Nsight Compute"
FROM_SHAPES = "shapes"
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}  # of a number of each type in memory
DTYPE_WORDS = {"fp32": "FP32, CUDA cores", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}

# --- the roofs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peaks:
    """What one GPU can do, as measured: TFLOP/s of matrix products by type, TB/s of its memory, µs of a launch."""

    gpu: str
    tflops: Mapping[str, float]
    tb_per_s: float
    launch_us: Mapping[str, float]  # "graph": one of many kernels in a CUDA graph; "python": called from Python
    runs: int = 1

    @property
    def narrow(self) -> str:
        """The 16-bit type that this GPU multiplies faster than FP32: BF16, else FP16; FP32 where there is none."""
        faster = (dtype for dtype in ("bf16", "fp16") if self.tflops.get(dtype, 0.0) > self.tflops.get("fp32", 0.0))
        return next(faster, "fp32")

    def rate(self, dtype: str) -> float:
        """The most TFLOP/s of ``dtype``; of a type that this GPU was not measured in, those of ``narrow``."""
        return self.tflops.get(dtype, self.tflops[self.narrow])

    def ridge(self, dtype: str) -> float:
        """FLOP/byte at which the memory's roof meets that of ``dtype``: with less, memory binds."""
        return self.rate(dtype) / self.tb_per_s

    def roof(self, intensity: float, dtype: str) -> float:
        """The most TFLOP/s that this intensity (FLOP/byte) allows."""
        return min(self.rate(dtype), intensity * self.tb_per_s)


def peaks(records: Sequence[dict]) -> Peaks:
    """The roofs out of the records of ``bench_peaks.py``: of each type the best size; of memory, a copy or reading.

    A size's rate is the median of its repetitions, and then of the runs; so no roof is one lucky measurement. Writing
    alone is faster than both (9 % on an H200), but no training step only writes.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    products = rows[rows["what"] == "matmul"]
    moves = rows[rows["what"].isin(["copy", "read"])]
    if products.empty or moves.empty:
        raise LabError("these records hold no roofs: bench_peaks.py makes some that do.")
    by_size = products.groupby(["dtype", "size"])["tflops"].median()
    launches = rows[rows["what"] == "launch"]
    return Peaks(
        gpu=records[0]["gpu"],
        tflops={dtype: float(by_size[dtype].max()) for dtype in products["dtype"].unique()},
        tb_per_s=float(moves.groupby("what")["tb_per_s"].median().max()),
        launch_us={} if launches.empty else launches.groupby("how")["us"].median().to_dict(),
        runs=len(records),
    )


# --- points under them --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One training step, or one kernel: its operations, its bytes, its seconds."""

    name: str
    dtype: str  # in which it multiplies, and so the roof it stands under
    flops: float
    moved: float  # bytes read from and written to the GPU's memory
    seconds: float
    source: str = FROM_SHAPES  # of ``moved``: COUNTED or FROM_SHAPES

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return self.flops / self.moved

    @property
    def tflops(self) -> float:
        """TFLOP/s as achieved."""
        return self.flops / self.seconds / 1e12

    def floor_s(self, peaks: Peaks) -> float:
        """Seconds that this takes at the roof: its own operations, its own bytes, whichever is longer."""
        return max(self.flops / peaks.rate(self.dtype), self.moved / peaks.tb_per_s) / 1e12

    def share(self, peaks: Peaks) -> float:
        """Of the roof above it: 1 is as fast as these operations and these bytes can be."""
        return self.floor_s(peaks) / self.seconds

    def bound(self, peaks: Peaks) -> str:
        """Which roof is above it: ``"memory"`` or ``"arithmetic"``."""
        return "memory" if self.intensity < peaks.ridge(self.dtype) else "arithmetic"


def step_seconds(records: Sequence[dict]) -> float:
    """Seconds of one full training step: the median over all epochs but the first, by the samples of an epoch.

    The first epoch holds what happens once, which later steps pay for in their warm-up. The last batch of an epoch is
    short, so this counts samples, not steps.
    """
    each = [
        epoch["training_s"] / record["train_samples"]
        for record in records
        for epoch in record["epochs"][1:]
        if "training_s" in epoch
    ]
    return records[0]["arguments"]["batch_size"] * Spread.of(each).median


def counted_points(counted: pd.DataFrame) -> list[Point]:
    """A point for each kernel by what the hardware did: operations and bytes as counted.

    ``counted``: from ``stepbudget.ncu.counters.by_kernel``, counted in depth. Operations that the kernel did in
    vain, on padding for example, count as well. Kernels without any, such as copies, have no point.
    """
    points = []
    for row in counted.to_dict("records"):
        flops, dtype = row["tensor_flops"] + row["fp32_flops"], row["tensor_type"] or "fp32"
        if flops > 0 and row["bytes"] > 0:
            points.append(Point(row["kernel"], dtype, flops, row["bytes"], row["time_us"] / 1e6, COUNTED))
    return points


def matmul_flops(rows: int, columns: int, inner: int) -> int:
    """Operations of a product ``(rows, inner)`` by ``(inner, columns)``: a multiply and an add count as two."""
    return 2 * rows * columns * inner


# --- whose counters are these? ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """The GPU whose kernels were counted, with its own roofs and its own runs of the ladder."""

    gpu: str
    peaks: Peaks
    runs: Mapping[str, Sequence[dict]]
    here: bool  # is it the GPU that the notebook's own runs are from?


def counted_on(found: Counted, own: Peaks, runs: Mapping[str, Sequence[dict]]) -> Machine:
    """The machine that these counts belong to; ``own``: the roofs that were measured here.

    Counters need a permission. Where the counts are another machine's, its recorded roofs and runs go with them:
    one GPU's bytes under another one's roof would say nothing.
    """
    gpus = {own.gpu, *(records[0]["gpu"] for records in runs.values())}
    if all(gpu and gpu in found.origin for gpu in gpus):
        return Machine(own.gpu, own, runs, here=True)
    theirs = peaks(recorded.records("benchmarks", "bench_peaks.py"))
    return Machine(theirs.gpu, theirs, {step: recorded.records("runs", step) for step in runs}, here=False)


def in_depth(moved: Counted, units: Counted, show: Callable[[str], None] = print) -> pd.DataFrame:
    """Each kind of kernel of a step, from two runs of ncu: bytes of the first, operations and busy units of the second.

    As ``counters.by_kernel``. Where the second run launched other kernels, only the first one counts, and that is said.
    """
    kernels, more = moved.step, units.step
    if kernels["kernel"].tolist() == more["kernel"].tolist():
        return counters.by_kernel(counters.joined(kernels, more))
    show(
        f"the two runs of ncu launched different kernels ({len(kernels)} on {moved.origin}, {len(more)} on "
        f"{units.origin}): what the units did stays unknown"
    )
    return counters.by_kernel(kernels)


# --- what limits a kernel -----------------------------------------------------------------------------------

# From this share of a peak on, it is what limits a kernel; where nothing reaches it, waiting does. Nsight Compute's own
# rule ("Kernel Profiling Guide", Speed Of Light): 60 per cent.
LIMITING = 0.6
UNIT_WORDS = {"issue_pct": "issuing instructions", "l1_pct": "L1, shared memory", "l2_pct": "L2 cache"}
MEMORY, ARITHMETIC, TOO_SMALL, WAITING, UNKNOWN = "memory", "arithmetic", "too small", "waiting", "unknown"


def limits(counted: pd.DataFrame, peaks: Peaks) -> pd.DataFrame:
    """What limits each kernel? One row a kernel, longest first; ``counted`` as for ``counted_points``.

    Columns: ``kernel``, ``count``, ``us``, ``mb``, ``memory`` and ``arithmetic`` (shares of those peaks, 0 to 1),
    ``busiest`` and ``busiest_pct`` (of the units between them; none for a kernel that is TOO_SMALL, whose few cycles
    differ too much from pass to pass), ``warps_pct`` (of those that the GPU could hold), ``floor_us`` (at the roof),
    ``over_us`` (above it), and ``limit``: MEMORY or ARITHMETIC where that peak is reached to LIMITING; TOO_SMALL where
    the kernel's work takes less than its launch; a unit where one is that busy; else WAITING: for memory's answers, for
    other instructions, for other threads. UNKNOWN where it was not counted.
    """
    return pd.DataFrame([_limit(row, peaks) for row in counted.to_dict("records")])


def _limit(row: dict, peaks: Peaks) -> dict:
    dtype = row["tensor_type"] or "fp32"
    memory = row["bytes"] / row["time_us"] / 1e6 / peaks.tb_per_s
    arithmetic = (row["tensor_flops"] + row["fp32_flops"]) / row["time_us"] / 1e6 / peaks.rate(dtype)
    unit = max(UNIT_WORDS, key=lambda name: row[name])
    floor_us = max(memory, arithmetic) * row["time_us"]
    if memory >= LIMITING and not arithmetic > memory:
        limit = MEMORY
    elif pd.isna(arithmetic):
        limit = UNKNOWN
    elif arithmetic >= LIMITING:
        limit = ARITHMETIC
    elif floor_us < row["count"] * peaks.launch_us.get("graph", 1.0):
        limit = TOO_SMALL
    else:
        limit = UNIT_WORDS[unit] if row[unit] >= 100 * LIMITING else WAITING
    told = limit != TOO_SMALL and not pd.isna(row[unit])
    return {
        "kernel": row["kernel"],
        "count": row["count"],
        "us": row["time_us"],
        "mb": row["bytes"] / 1e6,
        MEMORY: memory,
        ARITHMETIC: arithmetic,
        "busiest": UNIT_WORDS[unit] if told else None,
        "busiest_pct": row[unit] if told else float("nan"),
        "warps_pct": row["warps_pct"],
        "floor_us": floor_us,
        "over_us": row["time_us"] - floor_us,
        "limit": limit,
    }


def limits_table(limits: pd.DataFrame) -> Table:
    """The first twelve of ``limits()``, numbered; the rest in one row."""
    head, rest = limits.head(12), limits.iloc[12:]
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
                None if pd.isna(row.busiest) else f"{row.busiest_pct:.0f} % {row.busiest}" for row in head.itertuples()
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
    caption = f"What limits each kernel of a step: {limits['us'].sum():,.0f} µs in all"
    return table(frame, caption, formats)
