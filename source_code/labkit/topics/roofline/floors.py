"""What can a training step not be faster than? Three floors, each with one more thing that kernels cannot escape.

- *All at once*: all operations at the Tensor Cores' roof, while all bytes go through the memory.
- *One after another*: kernels that need each other's results do not overlap, so each waits at its own roof.
- *Through shared memory*: a Tensor Core takes its factors from there. An instruction ``wgmma.m64nNk16`` multiplies 64 x
  16 by 16 x N numbers and reads both: with N = 64, as many as conv2 has channels, 4,096 bytes, for which shared memory
  needs 32 clocks (128 bytes each), and the Tensor Core as many (4,096 operations each). What else is laid into shared
  memory comes on top. (NVIDIA, PTX ISA, "wgmma"; H100 Tensor Core GPU Architecture.)

The step is the ideally fused one of ``readings``: conv1's output is made twice and never leaves a multiprocessor. That
conv1, too, is multiplied on Tensor Cores is assumed, and that a launch takes no time. Roofs are what ``bench_roofs.py``
measured. The Tensor Cores' is one for numbers of which some are zero: these cost less power, so the clock is higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from labkit.errors import LabError
from labkit.topics.roofline import readings as roofline
from labkit.training import sizes

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
    l2_tb_per_s: float
    shared_tb_per_s: float
    mhz: float = float("nan")


def roofs(records: Sequence[dict], zeros: float = 0.0) -> Roofs:
    """The roofs out of records of ``bench_roofs.py``, with this share of zeros in a product's left factor.

    Medians over the records. Shared memory's bytes a second are those at the clock of these products, where the driver
    told it, else at the clock that reading alone had. LabError where the records hold no such products.
    """
    rows = pd.DataFrame([row for record in records for row in record["rows"]])
    products = rows[rows["what"] == "product"]
    own = products[(products["zeros"] == zeros) & (products["factor"] == "left")]
    if own.empty:
        raise LabError(f"these records hold no products with {zeros:.0%} zeros: bench_roofs.py makes some.")
    shared = rows[rows["what"] == "shared"][["tb_per_s", "per_clock", "multiprocessors"]].median()
    mhz = float(own["mhz"].astype(float).median())
    at_clock = shared["per_clock"] * shared["multiprocessors"] * mhz / 1e6
    moved = rows[rows["what"].isin(["copy", "read"])].groupby("what")["tb_per_s"].median()
    return Roofs(
        gpu=records[0]["gpu"],
        tflops=float(own["tflops"].median()),
        tb_per_s=float(moved.max()),
        l2_tb_per_s=float(rows[rows["what"] == "l2"]["tb_per_s"].median()),
        shared_tb_per_s=float(shared["tb_per_s"] if pd.isna(at_clock) else at_clock),
        mhz=mhz,
    )


def wgmma_bytes(flops: float, columns: int) -> float:
    """Bytes of shared memory that the instructions ``m64nNk16``, N ``columns`` wide, read for so many operations."""
    return flops * 2 * 16 * (64 + columns) / roofline.matmul_flops(64, columns, 16)


def kernels(roofs: Roofs, batch: int = roofline.BATCH) -> pd.DataFrame:
    """One row a kernel of an ideally fused step: what it does, and µs at each roof.

    Columns: ``kernel``, ``gflop``, ``mb`` (through the memory), ``shared_mb``, ``arithmetic``, ``memory``, ``shared``.
    """
    layers, rows = sizes.flops_per_sample(), []
    for kernel, read_mb, written_mb in roofline.kernel_traffic("ideally fused", batch).itertuples(index=False):
        products, held = WORK[kernel]
        flops = [batch * times * layers[layer] for layer, times, _ in products]
        shared = sum(wgmma_bytes(own, columns) for own, (*_, columns) in zip(flops, products, strict=True))
        shared += batch * sum(roofline.tensor_bytes(name, "bf16") for name in held.split())
        rows.append((kernel, sum(flops) / 1e9, read_mb + written_mb, shared / 1e6))
    found = pd.DataFrame(rows, columns=["kernel", "gflop", "mb", "shared_mb"])
    found["arithmetic"] = 1e3 * found["gflop"] / roofs.tflops
    found["memory"] = found["mb"] / roofs.tb_per_s
    found["shared"] = found["shared_mb"] / roofs.shared_tb_per_s
    return found


def floors(roofs: Roofs, batch: int = roofline.BATCH) -> dict[str, float]:
    """µs of one training step that nothing can be faster than, by what is taken into account: the module says how."""
    own = kernels(roofs, batch)
    peaks = roofline.Peaks(roofs.gpu, {"bf16": roofs.tflops}, roofs.tb_per_s, {})
    return {
        "all at once": 1e6 * roofline.step_floor_s(peaks, "bf16", batch),
        "one after another": float(own[["arithmetic", "memory"]].max(axis=1).sum()),
        "through shared memory": float(own[["arithmetic", "memory", "shared"]].max(axis=1).sum()),
    }
