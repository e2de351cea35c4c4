"""How does a matrix product in CUDA C++ come up to cuBLAS? Seven kernels, each with one thing more than the last.

They lie beside this file, to be read: ``1_naive.cu`` and on, and ``ptx.cuh`` for the instructions that CUDA C++ has no
words for. NVRTC compiles them for Hopper, with their own names and lines for Nsight Compute's source view.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.kernels import nvrtc

FOLDER = Path(__file__).parent
HOPPER = (9, 0)
SLICE = 64  # inner numbers that lie beside each other in a tile: 128 bytes, as wide as TMA's widest swizzle
ALIGNED = 64  # bytes: where a tensor map has to begin
CONSTANT = re.compile(r"\b([A-Z]\w*) = (\d+)(?=[,;])")
NUMBER_BYTES, BARRIER_BYTES = 2, 8


@dataclass(frozen=True)
class Rung:
    """A kernel ``rung`` in a file, what it is called on the page, and how it takes its matrices.

    ``maps``: how many of A, B and C come as tensor maps, for TMA; the others as addresses. ``persistent``: it has a
    block for each multiprocessor, not for each tile.
    """

    path: Path
    name: str
    maps: int = 0
    persistent: bool = False

    @cached_property
    def constants(self) -> dict[str, int]:
        """The whole numbers that the file names: ROWS and COLUMNS of a tile, its STAGES, its CLUSTER."""
        return {name: int(value) for name, value in CONSTANT.findall(self.path.read_text())}

    @property
    def tile(self) -> tuple[int, int, int]:
        """What the sizes M, N and K have to be multiples of."""
        one = self.constants
        return one["ROWS"] * one.get("CLUSTER", 1), one["COLUMNS"], one.get("INNER", SLICE)

    @property
    def threads(self) -> int:
        """Of a block."""
        one = self.constants
        if "HIGH" in one:  # a warpgroup for so many rows, and one for the producer
            return 128 * (one["ROWS"] // one["HIGH"] + self.persistent)
        return 32 * one["DOWN"] * one["ACROSS"] if "DOWN" in one else 256

    @property
    def shared_bytes(self) -> int:
        """Of shared memory that a block asks for: its stages, two barriers each, and where C goes by TMA, its tile."""
        one = self.constants
        stage = (one["ROWS"] + one["COLUMNS"]) * SLICE * NUMBER_BYTES + 2 * BARRIER_BYTES
        out = one["ROWS"] * one.get("OUT", one["COLUMNS"]) * NUMBER_BYTES if self.maps == 3 else 0
        return one["STAGES"] * stage + out if "STAGES" in one else 0

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """The compiler's. Raises as ``nvrtc.headers``."""
        return "--gpu-architecture=sm_90a", f"--include-path={nvrtc.headers()}", f"--include-path={FOLDER}"

    @property
    def source(self) -> str:
        """For NVRTC."""
        return nvrtc.source(self.path)


RUNGS = (
    Rung(FOLDER / "1_naive.cu", "naive"),
    Rung(FOLDER / "2_shared.cu", "shared memory"),
    Rung(FOLDER / "3_mma.cu", "mma.sync"),
    Rung(FOLDER / "4_wgmma.cu", "wgmma"),
    Rung(FOLDER / "5_tma.cu", "TMA", maps=2),
    Rung(FOLDER / "6_specialised.cu", "warp-specialised", maps=2, persistent=True),
    Rung(FOLDER / "7_cluster.cu", "cluster", maps=3, persistent=True),
)


class TensorMap(ctypes.Structure):
    """What TMA knows of a matrix (``CUtensorMap``): where it lies, its sizes, the box that it copies."""

    _fields_ = [("opaque", ctypes.c_char * 128)]


def rung_matmul(a: torch.Tensor, b: torch.Tensor, rung: Rung) -> torch.Tensor:
    """``a @ b.T``: ``(M, K)`` by ``(N, K)`` transposed, BF16, contiguous, summed in FP32; returns ``(M, N)`` in BF16.

    The error keeps ``labkit.kernels.matmul.error_bound(a, b.T)``. On the CPU: PyTorch's. Raises ValueError for other
    shapes, types and places, and for sizes that are no multiples of ``rung.tile``; LabError on a GPU that is not a
    Hopper; else as ``nvrtc.compiled``.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"cannot multiply {tuple(a.shape)} by {tuple(b.shape)}: (M, K) by (N, K) is wanted")
    if {a.dtype, b.dtype} != {torch.bfloat16} or a.device != b.device or not (a.is_contiguous() and b.is_contiguous()):
        raise ValueError("two contiguous BF16 matrices of one device are wanted")
    sizes = (*a.shape[:1], *b.shape)
    if any(size < 1 or size % part for size, part in zip(sizes, rung.tile, strict=True)):
        raise ValueError(f"{rung.name}: sizes have to be multiples of {rung.tile}, not {sizes}")
    if not a.is_cuda:
        return a @ b.T
    if torch.cuda.get_device_capability(a.device) != HOPPER:
        raise LabError(f"these kernels are for Hopper (H100, H200, GH200), not for {torch.cuda.get_device_name()}.")
    c = torch.empty(sizes[:2], dtype=a.dtype, device=a.device)
    with torch.cuda.device(a.device):
        kernel = nvrtc.compiled(rung.source, "rung", rung.flags, rung.shared_bytes)
        boxes = rung.constants["ROWS"], rung.constants["COLUMNS"] // rung.constants.get("CLUSTER", 1), SLICE
        taken = [tensor_map(one, box) for one, box in zip((a, b, c)[: rung.maps], boxes, strict=False)]
        kernel(blocks(rung, c), (rung.threads, 1), *taken, *(a, b, c)[rung.maps :], *sizes)
    return c


def blocks(rung: Rung, c: torch.Tensor) -> tuple[int, int]:
    """The grid for a result: a block a tile, or a multiprocessor where there are fewer of those."""
    across, down = c.shape[1] // rung.constants["COLUMNS"], c.shape[0] // rung.constants["ROWS"]
    if not rung.persistent:
        return across, down
    cluster = rung.constants.get("CLUSTER", 1)
    there = torch.cuda.get_device_properties(c.device).multi_processor_count
    return min(across * down, there // cluster * cluster), 1


def tensor_map(matrix: torch.Tensor, rows: int) -> TensorMap:
    """For boxes of ``rows`` x SLICE of a row-major BF16 matrix, laid out in shared memory by the 128-byte swizzle.

    C stores boxes of SLICE x SLICE. RuntimeError where the driver refuses.
    """
    from cuda.bindings import driver

    held = (ctypes.c_char * (2 * ctypes.sizeof(TensorMap)))()
    made = TensorMap.from_buffer(held, -ctypes.addressof(held) % ALIGNED)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.byref(made),
        int(driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
        2,  # dimensions, the innermost first
        ctypes.c_void_p(matrix.data_ptr()),
        (u64 * 2)(matrix.shape[1], matrix.shape[0]),
        (u64 * 1)(matrix.shape[1] * NUMBER_BYTES),  # from row to row
        (u32 * 2)(SLICE, rows),
        (u32 * 2)(1, 1),  # every number, not every second
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    if status:
        raise RuntimeError(f"CUDA: {driver.CUresult(status).name}")
    return made
