"""How does CUDA C++ reach the Tensor Cores? The product of ``matmul`` with WMMA, compiled when it is first asked for.

WMMA is what CUDA C++ has for them ("warp matrix functions", CUDA C++ Programming Guide): a warp, 32 threads, holds
pieces of 16 x 16 numbers together, the *fragments*, and multiplies them with one call. Two kernels, in ``wmma.cu``:

- ``one_tile``: one warp makes one 16 x 16 tile of the result, straight out of the GPU's memory. All that WMMA needs.
- ``tiled``: what makes it fast. A block of warps brings tiles into shared memory and uses each number many times, while
  the next tiles are under way.

``nvrtc`` compiles them, for the GPU that is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from labkit.kernels import nvrtc
from labkit.kernels.matmul import MULTIPLIES, TOO_LONG, matmul_reference

WARP = 32  # threads
PIECE = 16  # numbers on each side of what a Tensor Core is given
PAD = 8  # numbers more in each row of a tile in shared memory, so that rows begin in different banks
ALIGNED = 32  # bytes: a fragment begins at a multiple of them
MOST_DOWN = 65_535  # blocks in a grid's second dimension
FILE = Path(__file__).with_suffix(".cu")
TYPES = {torch.float16: "half", torch.bfloat16: "__nv_bfloat16"}


@dataclass(frozen=True)
class Tile:
    """What a block of ``tiled`` makes, of how much of the inner dimension at a time, by which warps.

    ``rows`` x ``columns`` of the result, ``inner`` numbers at a time, ``down`` x ``across`` warps, ``stages`` tiles of
    each factor in shared memory: one is multiplied, the others are under way. ValueError where a warp's part, or
    ``inner``, is no multiple of 16.
    """

    rows: int = 128
    columns: int = 128
    inner: int = 32
    down: int = 2
    across: int = 4
    stages: int = 2

    def __post_init__(self) -> None:
        even = (self.rows % (PIECE * self.down), self.columns % (PIECE * self.across), self.inner % PIECE)
        if any(even) or min(self.rows, self.columns, self.inner, self.stages) < 1:
            raise ValueError(f"{self}: each warp's part and the inner numbers have to be multiples of {PIECE}")

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.down * self.across

    @property
    def shared_bytes(self) -> int:
        """Of shared memory, a block: the tiles under way, or at the end 16 x 16 FP32 numbers for each warp."""
        tiles = 2 * (self.rows * (self.inner + PAD) + self.inner * (self.columns + PAD)) * self.stages
        return max(tiles, 4 * PIECE * PIECE * self.down * self.across)

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel's source leaves open."""
        names = ("rows", "columns", "inner", "down", "across", "stages")
        return {name.upper(): getattr(self, name) for name in names} | {"PAD": PAD}

    def __str__(self) -> str:
        warps = f"{self.down} x {self.across} warps"
        return f"{self.rows} x {self.columns} x {self.inner}, {warps}, tiles in {self.stages} places"


TILE = Tile()
# As TILES of the Triton kernel: which is best depends on the sizes.
TILES = (
    Tile(128, 256, 32, 2, 4, 3),
    Tile(256, 128, 32, 4, 2, 3),
    TILE,
    Tile(128, 128, 64, 2, 4, 2),
    Tile(128, 64, 64, 2, 2, 3),
    Tile(64, 64, 64, 2, 2, 3),
)


def wmma_matmul(a: torch.Tensor, b: torch.Tensor, tile: Tile | None = TILE) -> torch.Tensor:
    """``a @ b``: ``(M, K)`` times ``(K, N)``, both FP16 or both BF16, summed in FP32; returns ``(M, N)`` in their type.

    Both lie row after row, without gaps. ``tile``: what a block makes; None for ``one_tile``, which takes multiples of
    16 only. The error keeps ``labkit.kernels.matmul.error_bound``. On the CPU: ``matmul_reference``.

    Raises ValueError for other shapes, types and places, nvrtc.TooLarge for a tile that does not fit, LabError where
    cuda-bindings or CUDA's headers are missing, RuntimeError with the words of compiler or driver where they refuse.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"cannot multiply {tuple(a.shape)} by {tuple(b.shape)}: (M, K) by (K, N) is wanted")
    if a.dtype != b.dtype or a.dtype not in TYPES or a.device != b.device:
        raise ValueError(f"two FP16 or two BF16 matrices of one device are wanted, not {a.dtype} and {b.dtype}")
    if not (a.is_contiguous() and b.is_contiguous()):
        raise ValueError("both matrices have to lie row after row, without gaps: call contiguous()")
    if max(a.numel(), b.numel(), a.shape[0] * b.shape[1]) >= TOO_LONG:
        raise ValueError(f"a matrix of {TOO_LONG:,} numbers or more is too large for this kernel")
    sizes = (*a.shape, b.shape[1])
    if tile is None and any(size % PIECE for size in sizes):
        raise ValueError(f"with one tile a warp all sizes have to be multiples of {PIECE}, not {sizes}")
    if blocks(a.shape[0], b.shape[1], tile)[1] > MOST_DOWN:
        raise ValueError(f"{a.shape[0]:,} rows are more than {MOST_DOWN:,} tiles below each other")
    if not a.is_cuda:
        return matmul_reference(a, b)
    if any(matrix.data_ptr() % ALIGNED for matrix in (a, b)):
        raise ValueError(f"a matrix has to begin at a multiple of {ALIGNED} bytes: call clone()")
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    if c.numel():
        _launch(a, b, c, tile)
    return c


def multiplying_instructions(capability: tuple[int, int], dtype: torch.dtype, tile: Tile | None = TILE) -> dict:
    """Which instructions of the kernel's assembly (PTX) multiply, and how often each stands in it; needs no GPU."""
    return dict(Counter(MULTIPLIES.findall(compiled(capability, dtype, tile).ptx)))


def blocks(rows: int, columns: int, tile: Tile | None) -> tuple[int, int]:
    """How many blocks make a result of that size: across, and down."""
    tall, wide = (tile.rows, tile.columns) if tile else (PIECE, PIECE)
    return -(-columns // wide), -(-rows // tall)


def _launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, tile: Tile | None) -> None:
    """Start the kernel on PyTorch's current stream, so that it waits its turn, and can be captured in a graph."""
    (rows, columns), inner = c.shape, a.shape[1]
    threads, shared_bytes = (tile.threads, tile.shared_bytes) if tile else (WARP, 0)
    with torch.cuda.device(a.device):
        name = "tiled" if tile else "one_tile"
        kernel = nvrtc.compiled(nvrtc.source(FILE), name, _flags(a.dtype, tile), shared_bytes)
        kernel(blocks(rows, columns, tile), (threads, 1), a, b, c, rows, columns, inner)


def compiled(capability: tuple[int, int], dtype: torch.dtype, tile: Tile | None = TILE) -> nvrtc.Code:
    """A kernel for GPUs of this compute capability; needs no GPU. Raises as ``nvrtc.code`` and ``nvrtc.headers``."""
    return nvrtc.code(nvrtc.source(FILE), capability, _flags(dtype, tile))


@cache
def _flags(dtype: torch.dtype, tile: Tile | None) -> tuple[str, ...]:
    """The compiler's."""
    constants = {"NUMBER": TYPES[dtype]} | (tile or TILE).constants
    return f"--include-path={nvrtc.headers()}", *(f"-D{name}={value}" for name, value in constants.items())
