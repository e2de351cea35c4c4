"""How close is this to what the hardware can do? Two roofs as measured, and every training step as a point under them.

A program that does F floating-point operations and moves B bytes through the GPU's memory needs at least F / (peak
TFLOP/s) and at least B / (bandwidth). The larger of the two is the roof that binds; F / B, the *arithmetic intensity*,
says which: left of the ridge it is memory, right of it arithmetic.
(Williams, Waterman, Patterson 2009, "Roofline: An Insightful Visual Performance Model for Multicore Architectures".)

Operations are counted from the layers' shapes (``labkit.training.sizes``). Bytes come from Nsight Compute's counters
where it ran (``stepbudget.ncu.counters``); elsewhere they are counted from the tensors' shapes, under assumptions that
the result names. Roofs are what ``bench_peaks.py`` measured, not what a data sheet says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from labkit import course
from labkit.display.spread import Spread
from labkit.errors import LabError
from labkit.source import recorded
from labkit.training import sizes
from stepbudget.ncu import counters
from stepbudget.ncu.counters import Counted

COUNTED = "Nsight Compute"
FROM_SHAPES = "shapes"
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}  # of a number of each type in memory
DTYPE_WORDS = {"fp32": "FP32, CUDA cores", "tf32": "TF32", "fp16": "FP16", "bf16": "BF16"}

SAMPLES, BATCH, EPOCHS = 60_000, 1024, 10  # the recipe


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


def table(points: Sequence[Point], peaks: Peaks) -> pd.DataFrame:
    """One row a point: ``name``, ``dtype``, ``gflop``, ``mb``, ``us``, ``intensity``, ``tflops``, ``bound``, ``share``
    of the roof (0 to 1), ``floor_us`` at it, and where the bytes come from."""
    return pd.DataFrame(
        [
            {
                "name": point.name,
                "dtype": point.dtype,
                "gflop": point.flops / 1e9,
                "mb": point.moved / 1e6,
                "us": 1e6 * point.seconds,
                "intensity": point.intensity,
                "tflops": point.tflops,
                "bound": point.bound(peaks),
                "share": point.share(peaks),
                "floor_us": 1e6 * point.floor_s(peaks),
                "bytes from": point.source,
            }
            for point in points
        ]
    )


def step_seconds(records: Sequence[dict], batch: int | None = None) -> float:
    """Seconds of one full training step: the median over all epochs but the first, by the samples of an epoch.

    The first epoch holds what happens once, which later steps pay for in their warm-up. The last batch of an epoch is
    short, so this counts samples, not steps.
    """
    batch = batch or records[0]["arguments"]["batch_size"]
    each = [
        epoch["training_s"] / record["train_samples"]
        for record in records
        for epoch in record["epochs"][1:]
        if "training_s" in epoch
    ]
    return batch * Spread.of(each).median


NUMBER_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # as PyTorch calls them


def number_type(name: str, records: Sequence[dict]) -> str:
    """In which type a rung's runs multiplied: as their records say, else the rung's own. A GPU may lack BF16."""
    record = records[0]
    said = record["extras"].get("amp_dtype", record["arguments"].get("amp_dtype"))
    if said == "float32" and record["arguments"].get("tf32"):
        return "tf32"
    return NUMBER_TYPES.get(said, RUNGS[name][1])


def step_point(
    name: str, seconds: float, counted: pd.DataFrame | None = None, batch: int = BATCH, dtype: str | None = None
) -> Point:
    """A training step of a rung (``main_opt7`` …) as a point; ``seconds`` as timed, without a profiler.

    ``counted``: the kernels of one step as ``stepbudget.ncu.counters`` has them; without it the bytes are those of
    ``step_traffic``.
    """
    step, own_dtype = RUNGS[name]
    dtype = dtype or own_dtype
    moved = step_traffic(step, batch, dtype) if counted is None else float(counted["bytes"].sum())
    return Point(
        name,
        dtype,
        batch * sizes.training_flops_per_sample(),
        moved,
        seconds,
        FROM_SHAPES if counted is None else COUNTED,
    )


def ladder_points(runs: Mapping[str, Sequence[dict]], counted: Mapping[str, pd.DataFrame]) -> list[Point]:
    """A step of every rung as a point: seconds from its ``runs``, bytes as ``counted``, of the others from shapes.

    ``runs``: a script's name (``main_opt7.py``) → its records; ``counted``: a rung (``main_opt7``) → its kernels.
    """
    return [
        step_point(rung, step_seconds(records), counted.get(rung), dtype=number_type(rung, records))
        for rung, records in ((step.removesuffix(".py"), records) for step, records in runs.items())
    ]


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


# conv2's three products, by the words in cuDNN's names for their kernels; and in kernel_traffic.
CONV2 = {"fprop": "conv2", "dgrad": "conv2, data gradient", "wgrad": "conv2, weight gradient"}


def conv2_products(kernels: pd.DataFrame, batch: int = BATCH) -> pd.DataFrame:
    """conv2's three products: what they had to do, and what they did; none of those whose kernel is not found by name.

    ``kernels``: from ``in_depth``. Columns: ``word``, ``kernel``, ``product``, ``us``, ``shapes_mb``, ``counted_mb``,
    ``needed_gflop``, ``done_gflop``, ``blocks``, ``waves`` (how often its blocks fill the GPU).
    """
    shapes_mb = kernel_traffic("as a compiler fuses", batch).set_index("kernel").sum(axis=1)
    needed = batch * sizes.flops_per_sample()["conv2"] / 1e9
    rows = []
    for word, product in CONV2.items():
        for own in kernels[kernels["kernel"].str.contains(word)].head(1).itertuples():
            moved, done = own.bytes / 1e6, own.tensor_flops / 1e9
            about = (word, own.kernel, product, own.time_us, shapes_mb[product], moved, needed, done)
            rows.append((*about, own.blocks, own.waves))
    columns = ["word", "kernel", "product", "us", "shapes_mb", "counted_mb", "needed_gflop", "done_gflop"]
    return pd.DataFrame(rows, columns=[*columns, "blocks", "waves"])


def matmul_flops(rows: int, columns: int, inner: int) -> int:
    """Operations of a product ``(rows, inner)`` by ``(inner, columns)``: a multiply and an add count as two."""
    return 2 * rows * columns * inner


def matmul_point(rows: int, columns: int, inner: int, seconds: float, dtype: str = "bf16", name: str = "") -> Point:
    """A matrix product as a point; its bytes: each factor read once, the result written once."""
    moved = BYTES[dtype] * (rows * inner + inner * columns + rows * columns)
    return Point(name or f"{rows} × {columns} × {inner}", dtype, matmul_flops(rows, columns, inner), moved, seconds)


def opt7_flops(batch: int = BATCH) -> dict[str, int]:
    """Operations of each kernel of ``main_opt7`` in a step, by the name of the kernel.

    The gradient of conv1 needs that of its output, which is conv2's data gradient, in the same kernel.
    """
    layers = sizes.flops_per_sample()
    each = {
        "_conv1_relu": layers["conv1"],
        "_conv2_pool": layers["conv2"],
        "_conv2_weight_gradient": layers["conv2"],
        "_conv1_gradient": layers["conv2"] + layers["conv1"],
        "_head": 3 * layers["fc2"],
    }
    return {name: batch * count for name, count in each.items()}


# --- bytes from shapes --------------------------------------------------------------------------------------

# What a step reads and writes, kernel by kernel: (what it does, tensors read, tensors written). Each tensor counts
# whole, once a kernel; weights and the small end of the network (128 units, ten classes) are left out: they stay in
# the L2 cache. So does, of neighbouring kernels, part of what one writes and the next reads: a GPU moves less.
TENSORS = {  # numbers a sample, and bytes of each (None: as wide as the step's type)
    "image": (28 * 28, 1),
    "pixels": (28 * 28, None),
    "hidden": (26 * 26 * 32, None),  # conv1's output
    "wide": (24 * 24 * 64, None),  # conv2's
    "pooled": (12 * 12 * 64, None),
    "index": (12 * 12 * 64, 8),  # where in its window the largest was, as PyTorch remembers it
    "winner": (12 * 12 * 64, 1),  # the same in a byte
    "mask": (12 * 12 * 64, 1),  # dropout's choice
    "patches": (26 * 26 * 16, None),  # main_opt6: conv1's input once more, laid out for a matrix product
}
Kernels = Sequence[tuple[str, str, str]]

UNFUSED: Kernels = [  # one kernel an operator, as PyTorch launches them
    ("gather", "image", "image"),
    ("normalise", "image", "pixels"),
    ("conv1", "pixels", "hidden"),
    ("relu", "hidden", "hidden"),
    ("conv2", "hidden", "wide"),
    ("relu", "wide", "wide"),
    ("pool", "wide", "pooled index"),
    ("dropout", "pooled", "pooled mask"),
    ("fc1", "pooled", ""),
    ("fc1, weight gradient", "pooled", ""),
    ("fc1, data gradient", "", "pooled"),
    ("dropout, backward", "pooled mask", "pooled"),
    ("pool, backward", "pooled index", "wide"),
    ("relu, backward", "wide wide", "wide"),
    ("conv2, bias gradient", "wide", ""),
    ("conv2, weight gradient", "hidden wide", ""),
    ("conv2, data gradient", "wide", "hidden"),
    ("relu, backward", "hidden hidden", "hidden"),
    ("conv1, bias gradient", "hidden", ""),
    ("conv1, weight gradient", "pixels hidden", ""),
]
COMPILED: Kernels = [  # main_opt6: the compiler joins what lies between the libraries' kernels
    ("gather, normalise, conv1, relu", "image", "pixels hidden"),
    ("conv2", "hidden", "wide"),
    ("pool, bias, relu, dropout", "wide", "pooled winner mask"),
    ("fc1", "pooled", ""),
    ("fc1, weight gradient", "pooled", ""),
    ("fc1, data gradient", "", "pooled"),
    ("dropout, relu, pool, backward", "pooled pooled winner mask", "wide"),
    ("conv2, weight gradient", "hidden wide", ""),
    ("conv2, data gradient", "wide", "hidden"),
    ("relu, backward", "hidden hidden", "hidden"),
    ("patches", "pixels", "patches"),
    ("conv1, gradients", "patches hidden", ""),
]
BY_HAND: Kernels = [  # main_opt7: conv2's output and its gradient are never written
    ("conv1_relu", "image", "hidden"),
    ("conv2_pool", "hidden", "pooled winner"),
    ("fc1", "pooled", ""),
    ("fc1, weight gradient", "pooled", ""),
    ("fc1, data gradient", "", "pooled"),
    ("conv2_weight_gradient", "hidden pooled winner", ""),
    ("conv1_gradient", "image hidden pooled winner", ""),
]
IDEAL: Kernels = [  # nobody has written this: conv1's output computed twice instead of kept
    ("conv1 and conv2, to dropout", "image", "pooled winner"),
    ("fc1 and all behind it", "pooled", ""),
    ("fc1, weight gradient", "pooled", ""),
    ("fc1, data gradient", "", "pooled"),
    ("conv1 and conv2, backward", "image pooled winner", ""),
]
# Numbers of 4 bytes that an Adadelta step reads and writes for each parameter.
# Unfused: torch.optim.Adadelta's eleven foreach passes. Fused: value, two averages, gradient, each read and written.
OPTIMIZER_NUMBERS = {"unfused": 27, "fused": 8}

# How a step is cut into kernels: the kernels, and the optimizer's way.
STEPS: Mapping[str, tuple[Kernels, str]] = {
    "unfused": (UNFUSED, "unfused"),
    "as a compiler fuses": (COMPILED, "fused"),
    "by hand (main_opt7)": (BY_HAND, "fused"),
    "ideally fused": (IDEAL, "fused"),
}
# Each rung: how its step is cut, and the type in which it multiplies.
RUNGS = {step.name: (step.traffic, step.arithmetic) for step in course.STEPS}
ASSUMPTIONS = (
    "each kernel reads and writes each of its tensors once and whole; weights and the layers behind fc1 stay in the "
    "cache; nothing else does"
)


def tensor_bytes(name: str, dtype: str) -> int:
    """Bytes a sample of one of TENSORS in a step of this type."""
    numbers, width = TENSORS[name]
    return numbers * (width or BYTES[dtype])


def kernel_traffic(step: str, batch: int = BATCH, dtype: str = "bf16") -> pd.DataFrame:
    """What each kernel of a step (a key of STEPS) moves: ``kernel``, ``read_mb``, ``written_mb``; optimizer last."""
    kernels, optimizer = STEPS[step]

    def mb(tensors: str) -> float:
        return batch * sum(tensor_bytes(name, dtype) for name in tensors.split()) / 1e6

    rows = [{"kernel": what, "read_mb": mb(read), "written_mb": mb(written)} for what, read, written in kernels]
    numbers = 4 * OPTIMIZER_NUMBERS[optimizer] * parameters() / 1e6
    written = numbers * (11 / 27 if optimizer == "unfused" else 1 / 2)  # a pass writes one number
    rows.append({"kernel": "optimizer", "read_mb": numbers - written, "written_mb": written})
    return pd.DataFrame(rows)


def step_traffic(step: str, batch: int = BATCH, dtype: str = "bf16") -> float:
    """Bytes that one training step moves, counted from shapes; ASSUMPTIONS says how."""
    counted = kernel_traffic(step, batch, dtype)
    return 1e6 * float(counted["read_mb"].sum() + counted["written_mb"].sum())


def parameters() -> int:
    """How many numbers the network learns."""
    return sum(sizes.parameters().values())


def floor(
    peaks: Peaks, dtype: str | None = None, samples: int = SAMPLES, epochs: int = EPOCHS, batch: int = BATCH
) -> pd.DataFrame:
    """What training takes at these roofs: the arithmetic, and the traffic by how the step is cut.

    ``dtype``: by default the 16-bit type that this GPU is fast in (``Peaks.narrow``).

    Columns: ``what``, ``amount`` with its ``unit``, ``rate`` with its ``rate_unit``, ``ms`` for all epochs. Arithmetic
    and traffic can overlap, so the floor of a way to cut the step is the larger of the two, not their sum.
    """
    dtype = dtype or peaks.narrow
    tflop = epochs * samples * sizes.training_flops_per_sample() / 1e12
    rows = [("arithmetic", tflop, "TFLOP", peaks.rate(dtype), "TFLOP/s")]
    whole, last = divmod(samples, batch)
    for step in STEPS:
        moved = whole * step_traffic(step, batch, dtype) + (step_traffic(step, last, dtype) if last else 0)
        rows.append((f"traffic, {step}", epochs * moved / 1e12, "TB", peaks.tb_per_s, "TB/s"))
    result = pd.DataFrame(rows, columns=["what", "amount", "unit", "rate", "rate_unit"])
    result["ms"] = 1e3 * result["amount"] / result["rate"]
    return result


def training_floor_s(peaks: Peaks, runs: Mapping[str, Sequence[dict]] | None = None) -> float:
    """Seconds of the whole training at these roofs: its arithmetic or its ideally fused traffic, whichever is longer.

    Of the recipe's epochs, or of as many (and as many samples) as the ``runs`` had that it is compared with.
    """
    first = next(iter(runs.values()))[0] if runs else {"epochs": range(EPOCHS), "train_samples": SAMPLES}
    found = floor(peaks, samples=first["train_samples"], epochs=len(first["epochs"])).set_index("what")["ms"]
    return max(found["arithmetic"], found["traffic, ideally fused"]) / 1e3


def step_floor_s(peaks: Peaks, dtype: str | None = None, batch: int = BATCH) -> float:
    """Seconds of one step at the roofs: its arithmetic or the traffic of an ideally fused step, whichever is longer."""
    dtype = dtype or peaks.narrow
    arithmetic = batch * sizes.training_flops_per_sample() / peaks.rate(dtype)
    return max(arithmetic, step_traffic("ideally fused", batch, dtype) / peaks.tb_per_s) / 1e12


def distances(points: Sequence[Point], counted: Mapping[str, pd.DataFrame], peaks: Peaks) -> pd.DataFrame:
    """Why does a step take so many times as long as it must? Three factors; their product is the whole distance.

    ``points``: whole steps, as timed; ``counted``: their kernels, by the points' names. Columns: ``step``, ``us`` as
    timed, ``kernels_us`` of all its kernels one after another, ``roof_us`` at the roof of its own bytes and type,
    ``floor_us`` at the least; ``waiting`` = us / kernels_us, ``slow`` = kernels_us / roof_us, ``detour`` = roof_us /
    floor_us (more bytes, or a slower type, than needed), and ``all`` = us / floor_us.
    """
    rows = []
    for point in points:
        us, kernels_us = 1e6 * point.seconds, float(counted[point.name]["time_us"].sum())
        roof_us, floor_us = 1e6 * point.floor_s(peaks), 1e6 * step_floor_s(peaks)
        times = (us, kernels_us, roof_us, floor_us)
        rows.append((point.name, *times, us / kernels_us, kernels_us / roof_us, roof_us / floor_us, us / floor_us))
    columns = ["step", "us", "kernels_us", "roof_us", "floor_us", "waiting", "slow", "detour", "all"]
    return pd.DataFrame(rows, columns=columns)
