"""Example: lab 10's matrix product once more, in CuTe DSL: the same tile, its layouts computed like numbers.

CuTe's idea is an algebra of *layouts*, functions from places to addresses: a matrix is cut into tiles, and a tile into
what each thread holds, by the same few operations. This is its shortest form: each thread loads what it needs straight
from memory. A fast one puts shared memory and a pipeline between, by the same operations. Ampere or newer.

    pip install nvidia-cutlass-dsl          CUTLASS's Python side, in an environment of its own
    python3 source_code/examples/tile_cute.py       on a GPU: is it right? Without one, it compiles for Hopper
"""

import os
import sys

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor

TILE = (128, 128, 64)  # rows, columns, inner numbers at a time
THREADS = 128  # four warps, two by two


@cute.kernel
def tile(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma):
    thread, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    # From the matrices to this block's tiles; None: all of them, along the inner dimension.
    a_tiles = cute.local_tile(a, (TILE[0], TILE[2]), (row, None))
    b_tiles = cute.local_tile(b, (TILE[1], TILE[2]), (column, None))
    c_tile = cute.local_tile(c, (TILE[0], TILE[1]), (row, column))
    # From the tiles to this thread's numbers, as the Tensor Cores' instruction deals them out.
    own = mma.get_slice(thread)
    a_own, b_own, c_own = own.partition_A(a_tiles), own.partition_B(b_tiles), own.partition_C(c_tile)
    left = mma.make_fragment_A(a_own[None, None, None, 0])
    right = mma.make_fragment_B(b_own[None, None, None, 0])
    total = mma.make_fragment_C(c_own)
    total.fill(0.0)
    for k in range(cute.size(a_tiles, mode=[2])):
        cute.autovec_copy(a_own[None, None, None, k], left)
        cute.autovec_copy(b_own[None, None, None, k], right)
        cute.gemm(mma, total, left, right, total)
    result = cute.make_fragment_like(total, c.element_type)
    result.store(total.load().to(c.element_type))
    cute.autovec_copy(result, c_own)


@cute.jit
def matmul(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """c = a bᵀ: a (M, K), b (N, K), c (M, N) in BF16, each side a multiple of the tile's."""
    instruction = warp.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (16, 8, 16))
    mma = cute.make_tiled_mma(instruction, cute.make_layout((2, 2, 1)))
    grid = (cute.size(c, mode=[0]) // TILE[0], cute.size(c, mode=[1]) // TILE[1], 1)
    tile(a, b, c, mma).launch(grid=grid, block=(THREADS, 1, 1))


def compiled_for_hopper(side: int = 256) -> object:
    """The compiled product of matrices that are not there: no GPU is needed."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    orders = ((1, 0), (0, 1), (1, 0))  # b lies as (K, N) in memory, like lab 10's
    fake = [make_fake_compact_tensor(cutlass.BFloat16, (side, side), stride_order=one, assumed_align=16)
            for one in orders]  # fmt: skip
    return cute.compile(matmul, *fake)


def main() -> None:
    try:
        import torch

        has_gpu = torch.cuda.is_available()
    except ImportError:
        has_gpu = False
    if not has_gpu:
        compiled_for_hopper()
        print("CuTe DSL: compiled for Hopper; there is no GPU to run it on")
        return
    torch.manual_seed(1)
    a, b = torch.randn(2, 1024, 1024, device="cuda").bfloat16()
    c = torch.empty_like(a)
    matmul(*(from_dlpack(one, assumed_align=16) for one in (a, b.t(), c)))
    exact, magnitudes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    wrong = int(((c.double() - exact).abs() > 2**-8 * exact.abs() + 1025 * 2**-22 * magnitudes).sum())
    print(f"CuTe DSL: {wrong} of {c.numel():,} elements wrong")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
