"""What can a training step not be faster than? Its bytes, counted from shapes, and floors beneath its time.

Operations are counted from the layers' shapes (``labkit.training.sizes``), bytes from the tensors': each kernel reads
and writes each of its tensors once and whole; weights and the layers behind fc1 stay in the cache; nothing else does.

Of an ideally fused step, in which conv1's output is made twice and never leaves a multiprocessor, there are three
floors, each with one more thing that kernels cannot escape:

- *All at once*: all operations at the Tensor Cores' roof, while all bytes go through the memory.
- *One after another*: kernels that need each other's results do not overlap, so each waits at its own roof.
- *Through shared memory*: a Tensor Core takes its factors from there. An instruction ``wgmma.m64nNk16`` multiplies 64 x
  16 by 16 x N numbers and reads both: with N = 64, as many as conv2 has channels, 4,096 bytes, for which shared memory
  needs 32 clocks (128 bytes each), and the Tensor Core as many (4,096 operations each). What else is laid into shared
  memory comes on top. (NVIDIA, PTX ISA, "wgmma"; H100 Tensor Core GPU Architecture.)

That conv1, too, is multiplied on Tensor Cores is assumed, and that a launch takes no time. Roofs are what
``bench_roofs.py`` measured. The Tensor Cores' is one for numbers of which some are zero: these cost less power, so the
clock is higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from labkit.errors import LabError
from labkit.subjects.roofline import BYTES, Peaks, matmul_flops
from labkit.training import sizes

SAMPLES, BATCH, EPOCHS = 60_000, 1024, 10  # the recipe


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
IDEAL: Kernels = [  # as main_opt8 is cut: conv1's output computed twice instead of kept
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
    """Bytes that one training step moves, counted from shapes."""
    counted = kernel_traffic(step, batch, dtype)
    return 1e6 * float(counted["read_mb"].sum() + counted["written_mb"].sum())


def parameters() -> int:
    """How many numbers the network learns."""
    return sum(sizes.parameters().values())


# --- the floor of a training, and of a step -----------------------------------------------------------------


def floor(
    peaks: Peaks, dtype: str | None = None, samples: int = SAMPLES, epochs: int = EPOCHS, batch: int = BATCH
) -> pd.DataFrame:
    """What training takes at these roofs: the arithmetic, and the traffic by how the step is cut.

    ``dtype``: by default the 16-bit type that this GPU is fast in (``Peaks.narrow``).

    Columns: ``what``, ``amount`` with its ``unit``, ``rate`` with its ``rate unit``, ``ms`` for all epochs. Arithmetic
    and traffic can overlap, so the floor of a way to cut the step is the larger of the two, not their sum.
    """
    dtype = dtype or peaks.narrow
    tflop = epochs * samples * sizes.training_flops_per_sample() / 1e12
    rows = [("arithmetic", tflop, "TFLOP", peaks.rate(dtype), "TFLOP/s")]
    whole, last = divmod(samples, batch)
    for step in STEPS:
        moved = whole * step_traffic(step, batch, dtype) + (step_traffic(step, last, dtype) if last else 0)
        rows.append((f"traffic, {step}", epochs * moved / 1e12, "TB", peaks.tb_per_s, "TB/s"))
    result = pd.DataFrame(rows, columns=["what", "amount", "unit", "rate", "rate unit"])
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


# --- three floors of an ideally fused step ------------------------------------------------------------------

# Kernel → its products (layer, how often, columns N of an instruction), and the tensors that are laid into shared
# memory: activations, and gradients of conv2's output.
WORK: dict[str, tuple[list[tuple[str, int, int]], str]] = {
    "conv1 and conv2, to dropout": ([("conv1", 1, 32), ("conv2", 1, 64)], "hidden"),
    "fc1 and all behind it": ([("fc1", 1, 128), ("fc2", 3, 16)], "pooled"),
    "fc1, weight gradient": ([("fc1", 1, 128)], "pooled"),
    "fc1, data gradient": ([("fc1", 1, 128)], ""),
    "conv1 and conv2, backward": ([("conv1", 2, 32), ("conv2", 2, 64)], "hidden wide"),
    "optimizer": ([], ""),
}


@dataclass(frozen=True)
class Roofs:
    """What one GPU can do while its Tensor Cores multiply 16-bit numbers: TFLOP/s, TB/s, and its clock (MHz)."""

    gpu: str
    tflops: float
    tb_per_s: float
    shared_tb_per_s: float
    mhz: float = float("nan")


def roofs(records: Sequence[dict], zeros: float = 0.0, brief: bool = False) -> Roofs:
    """The roofs out of records of ``bench_roofs.py``, with this share of zeros in a product's left factor.

    ``brief``: of products in a short while, before the power limit lowers the clock. Their clock was not read: it is
    higher as their rate is.
    Medians over the records. Shared memory's bytes a second are those at the clock of these products, where the driver
    told it, else at the clock that reading alone had. LabError where the records hold no such products.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    products = rows[rows["what"] == "product"]
    own = products[(products["zeros"] == zeros) & (products["factor"] == "left")]
    if own.empty:
        raise LabError(f"these records hold no products with {zeros:.0%} zeros: bench_roofs.py makes some.")
    shared = rows[rows["what"] == "shared"][["tb_per_s", "per_clock", "multiprocessors"]].median()
    rate = float(own["brief_tflops" if brief else "tflops"].median())
    mhz = float(own["mhz"].astype(float).median()) * rate / float(own["tflops"].median())
    at_clock = shared["per_clock"] * shared["multiprocessors"] * mhz / 1e6
    moved = rows[rows["what"].isin(["copy", "read"])].groupby("what")["tb_per_s"].median()
    return Roofs(
        gpu=records[0]["gpu"],
        tflops=rate,
        tb_per_s=float(moved.max()),
        shared_tb_per_s=float(shared["tb_per_s"] if pd.isna(at_clock) else at_clock),
        mhz=mhz,
    )


def wgmma_bytes(flops: float, columns: int) -> float:
    """Bytes of shared memory that the instructions ``m64nNk16``, N ``columns`` wide, read for so many operations."""
    return flops * 2 * 16 * (64 + columns) / matmul_flops(64, columns, 16)


def kernels(roofs: Roofs, batch: int = BATCH) -> pd.DataFrame:
    """One row a kernel of an ideally fused step: what it does, and µs at each roof.

    Columns: ``kernel``, ``gflop``, ``mb`` (through the memory), ``shared_mb``, ``arithmetic``, ``memory``, ``shared``.
    """
    layers, rows = sizes.flops_per_sample(), []
    for kernel, read_mb, written_mb in kernel_traffic("ideally fused", batch).itertuples(index=False):
        products, held = WORK[kernel]
        flops = [batch * times * layers[layer] for layer, times, _ in products]
        shared = sum(wgmma_bytes(own, columns) for own, (*_, columns) in zip(flops, products, strict=True))
        shared += batch * sum(tensor_bytes(name, "bf16") for name in held.split())
        rows.append((kernel, sum(flops) / 1e9, read_mb + written_mb, shared / 1e6))
    found = pd.DataFrame(rows, columns=["kernel", "gflop", "mb", "shared_mb"])
    found["arithmetic"] = 1e3 * found["gflop"] / roofs.tflops
    found["memory"] = found["mb"] / roofs.tb_per_s
    found["shared"] = found["shared_mb"] / roofs.shared_tb_per_s
    return found


def floors(roofs: Roofs) -> dict[str, float]:
    """µs of one training step that nothing can be faster than, by what is taken into account: the module says how."""
    own = kernels(roofs)
    peaks = Peaks(roofs.gpu, {"bf16": roofs.tflops}, roofs.tb_per_s, {})
    return {
        "all at once": 1e6 * step_floor_s(peaks, "bf16"),
        "one after another": float(own[["arithmetic", "memory"]].max(axis=1).sum()),
        "through shared memory": float(own[["arithmetic", "memory", "shared"]].max(axis=1).sum()),
    }
