"""How does CUDA C++ reach the Tensor Cores? The product of ``matmul`` with WMMA, compiled when it is first asked for.

WMMA is what CUDA C++ has for them ("warp matrix functions", CUDA C++ Programming Guide): a warp, 32 threads, holds
pieces of 16 x 16 numbers together, the *fragments*, and multiplies them with one call. Two kernels:

- ``ONE_TILE``: one warp makes one 16 x 16 tile of the result, straight out of the GPU's memory. All that WMMA needs.
- ``TILED``: what makes it fast. A block of warps brings tiles into shared memory and uses each number many times, while
  the next tiles are under way.

``nvrtc`` compiles them, for the GPU that is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.kernels import nvrtc
from labkit.kernels.matmul import MULTIPLIES, TOO_LONG, matmul_reference

WARP = 32  # threads
PIECE = 16  # numbers on each side of what a Tensor Core is given
PAD = 8  # numbers more in each row of a tile in shared memory, so that rows begin in different banks
ALIGNED = 32  # bytes: a fragment begins at a multiple of them
MOST_DOWN = 65_535  # blocks in a grid's second dimension
TYPES = {torch.float16: "half", torch.bfloat16: "__nv_bfloat16"}

HEAD = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;
"""

ONE_TILE = """
// One warp makes one 16 x 16 tile of C. All sizes are multiples of 16.
extern "C" __global__ void one_tile(
    const NUMBER* a, const NUMBER* b, NUMBER* c, int rows, int columns, int inner) {
    const int row = 16 * blockIdx.y, column = 16 * blockIdx.x;

    // Fragments belong to the warp. Which thread holds which element, nobody is told.
    fragment<matrix_a, 16, 16, 16, NUMBER, row_major> left;
    fragment<matrix_b, 16, 16, 16, NUMBER, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    for (int k = 0; k < inner; k += 16) {
        load_matrix_sync(left, a + row * inner + k, inner);  // the last number: how long a row is
        load_matrix_sync(right, b + k * columns + column, columns);
        mma_sync(sum, left, right, sum);  // sum = left * right + sum
    }

    // Out through shared memory, where each element has a place again; then rounded to 16 bits.
    __shared__ float out[16 * 16];
    store_matrix_sync(out, sum, 16, mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 16 * 16; i += 32)
        c[(row + i / 16) * columns + column + i % 16] = NUMBER(out[i]);
}
"""

TILED = """
// All threads bring a tile of a matrix into shared memory, 16 bytes at a time where its rows allow
// it. Such a copy goes on by itself. What lies beyond the matrix's edges becomes zero.
template <int TALL, int WIDE>
__device__ void bring(NUMBER (*tile)[WIDE + PAD], const NUMBER* matrix,
                      int row, int column, int rows, int columns) {
    for (int i = 8 * threadIdx.x; i < TALL * WIDE; i += 8 * blockDim.x) {
        const int r = row + i / WIDE, c = column + i % WIDE;
        const NUMBER* from = matrix + (size_t)r * columns + c;
        NUMBER* to = &tile[i / WIDE][i % WIDE];
        if (columns % 8 == 0 && r < rows && c < columns)
            __pipeline_memcpy_async(to, from, 16);
        else
            for (int j = 0; j < 8; ++j)
                to[j] = r < rows && c + j < columns ? from[j] : NUMBER(0.0f);
    }
}

// A block of DOWN x ACROSS warps makes ROWS x COLUMNS of C, each warp its part of that.
extern "C" __global__ void __launch_bounds__(32 * DOWN * ACROSS) tiled(
    const NUMBER* a, const NUMBER* b, NUMBER* c, int rows, int columns, int inner) {
    constexpr int TALL = ROWS / DOWN, WIDE = COLUMNS / ACROSS;  // a warp's part
    extern __shared__ float4 memory[];
    auto left = reinterpret_cast<NUMBER (*)[ROWS][INNER + PAD]>(memory);  // STAGES tiles of A
    auto right = reinterpret_cast<NUMBER (*)[INNER][COLUMNS + PAD]>(left + STAGES);  // and of B
    const int row = ROWS * blockIdx.y, column = COLUMNS * blockIdx.x;
    const int warp = threadIdx.x / 32, down = warp / ACROSS * TALL, across = warp % ACROSS * WIDE;

    fragment<accumulator, 16, 16, 16, float> sum[TALL / 16][WIDE / 16];  // in registers to the end
    for (auto& line : sum)
        for (auto& one : line) fill_fragment(one, 0.0f);

    const int steps = (inner + INNER - 1) / INNER;
    auto fetch = [&](int step) {
        if (step < steps) {
            bring<ROWS, INNER>(left[step % STAGES], a, row, step * INNER, rows, inner);
            bring<INNER, COLUMNS>(right[step % STAGES], b, step * INNER, column, inner, columns);
        }
        __pipeline_commit();
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        fetch(step + STAGES - 1);
        __pipeline_wait_prior(STAGES - 1);  // my copies of this step have arrived,
        __syncthreads();                    // and everybody's
        for (int k = 0; k < INNER; k += 16) {
            fragment<matrix_a, 16, 16, 16, NUMBER, row_major> x[TALL / 16];
            fragment<matrix_b, 16, 16, 16, NUMBER, row_major> y[WIDE / 16];
            for (int i = 0; i < TALL / 16; ++i)
                load_matrix_sync(x[i], &left[step % STAGES][down + 16 * i][k], INNER + PAD);
            for (int j = 0; j < WIDE / 16; ++j)
                load_matrix_sync(y[j], &right[step % STAGES][k][across + 16 * j], COLUMNS + PAD);
            for (int i = 0; i < TALL / 16; ++i)
                for (int j = 0; j < WIDE / 16; ++j) mma_sync(sum[i][j], x[i], y[j], sum[i][j]);
        }
        __syncthreads();  // nobody reads these tiles any more: the next may come
    }

    // Out through shared memory, which is free by now: a place for each warp; guarded at the edges.
    float* out = reinterpret_cast<float (*)[16 * 16]>(memory)[warp];
    for (int i = 0; i < TALL / 16; ++i)
        for (int j = 0; j < WIDE / 16; ++j) {
            store_matrix_sync(out, sum[i][j], 16, mem_row_major);
            __syncwarp();
            for (int at = threadIdx.x % 32; at < 16 * 16; at += 32) {
                const int r = row + down + 16 * i + at / 16, l = column + across + 16 * j + at % 16;
                if (r < rows && l < columns) c[(size_t)r * columns + l] = NUMBER(out[at]);
            }
            __syncwarp();
        }
}
"""


@dataclass(frozen=True)
class Tile:
    """What a block of ``TILED`` makes, of how much of the inner dimension at a time, by which warps.

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

    Both lie row after row, without gaps. ``tile``: what a block makes; None for ``ONE_TILE``, which takes multiples of
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
        kernel = nvrtc.compiled(*_source(a.dtype, tile), shared_bytes)
        kernel(blocks(rows, columns, tile), (threads, 1), a, b, c, rows, columns, inner)


def compiled(capability: tuple[int, int], dtype: torch.dtype, tile: Tile | None = TILE) -> nvrtc.Code:
    """A kernel for GPUs of this compute capability; needs no GPU. Raises as ``nvrtc.code``, and as ``headers``."""
    source, _, flags = _source(dtype, tile)
    return nvrtc.code(source, capability, flags)


@cache
def _source(dtype: torch.dtype, tile: Tile | None) -> tuple[str, str, tuple[str, ...]]:
    """A kernel's source, its name, and the compiler's flags."""
    constants = {"NUMBER": TYPES[dtype]} | (tile or TILE).constants
    flags = f"--include-path={headers()}", *(f"-D{name}={value}" for name, value in constants.items())
    return HEAD + (TILED if tile else ONE_TILE), "tiled" if tile else "one_tile", flags


def headers() -> Path:
    """Where ``mma.h`` lies with all that it includes: Triton brings CUDA's headers, as a CUDA toolkit does.

    (The packages that pip brings with PyTorch hold ``mma.h`` alone.) LabError where there are none.
    """
    triton = importlib.util.find_spec("triton")
    places = [Path(found) / "backends/nvidia" for found in (triton and triton.submodule_search_locations) or ()]
    places += [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for include in (place / "include" for place in places):
        if (include / "mma.h").is_file() and (include / "crt/mma.h").is_file():
            return include
    raise LabError("CUDA's headers are not here: Triton brings them, or a CUDA toolkit, which CUDA_HOME names.")
