"""Example: lab 10's matrix product once more, in Gluon: the same tile, and everything said that Triton decides itself.

Gluon is Triton's lower floor: the same compiler, no choices of its own. You say which thread holds which numbers
(layouts), what lies in shared memory and how (swizzled), and when to wait for a Tensor Core. Hopper only (wgmma).

    python3 source_code/examples/tile_gluon.py      on such a GPU: is it right, and how fast beside cuBLAS?
"""

import statistics
import sys
from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

TILE = (128, 128, 64)  # rows, columns, inner numbers at a time
WARPS = 8  # two groups of four: wgmma is an instruction of four warps together


@gluon.jit
def tile(a, b, c, columns, inner, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    # Who loads what: neighbouring threads load neighbouring eights of numbers, 16 bytes each.
    a_load: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])  # a thread, a warp, the program; order
    b_load: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
    # Where the sums are: in the registers of two groups of warps, as wgmma leaves them.
    sums: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[8, 1], instr_shape=[16, 128, 16])
    # How both factors lie in shared memory: swizzled over 128 bytes, so that no bank is asked twice.
    swizzled: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    left = gl.allocate_shared_memory(a.dtype.element_ty, [BLOCK_M, BLOCK_K], swizzled)
    right = gl.allocate_shared_memory(b.dtype.element_ty, [BLOCK_K, BLOCK_N], swizzled)

    row, column = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    a_row = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, a_load))
    a_k = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, a_load))
    b_k = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(1, b_load))
    b_column = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, b_load))
    a_at = a + a_row[:, None] * inner + a_k[None, :]
    b_at = b + b_k[:, None] * columns + b_column[None, :]
    total = gl.zeros((BLOCK_M, BLOCK_N), dtype=gl.float32, layout=sums)

    # The next tiles are on their way into registers while the Tensor Cores multiply these.
    next_left, next_right = gl.load(a_at), gl.load(b_at)
    for k in range(0, inner, BLOCK_K):
        left.store(next_left)
        right.store(next_right)
        fence_async_shared()  # Tensor Cores read shared memory by another way than threads write it
        total = warpgroup_mma(left, right, total, is_async=True)
        more = k + BLOCK_K < inner
        a_at += BLOCK_K
        b_at += BLOCK_K * columns
        next_left, next_right = gl.load(a_at, mask=more, other=0.0), gl.load(b_at, mask=more, other=0.0)
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))  # before the tiles are overwritten

    c_row = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, sums))
    c_column = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, sums))
    gl.store(c + c_row[:, None] * columns + c_column[None, :], total.to(c.dtype.element_ty))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``: contiguous BF16 or FP16, ``(M, K)`` times ``(K, N)``, each a multiple of the tile's; ``(M, N)``.

    Raises ValueError for other sizes: the edges, which lab 10's kernel masks, are left out here.
    """
    (m, k), n = a.shape, b.shape[1]
    if m % TILE[0] or n % TILE[1] or k % TILE[2] or b.shape[0] != k or not (a.is_contiguous() and b.is_contiguous()):
        raise ValueError(f"contiguous matrices of whole tiles of {TILE} are wanted, not {a.shape} and {b.shape}")
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    tile[(m // TILE[0], n // TILE[1])](a, b, c, n, k, *TILE, num_warps=WARPS)
    return c


def tflops(multiply: Callable, a: torch.Tensor, b: torch.Tensor) -> float:
    """Of a product, by the GPU's own stopwatch: the median of eleven."""
    for _ in range(3):
        multiply(a, b)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(11)]
    for begins, ends in events:
        begins.record()
        multiply(a, b)
        ends.record()
    torch.cuda.synchronize()
    ms = statistics.median(begins.elapsed_time(ends) for begins, ends in events)
    return 2e-9 * len(a) * a.shape[1] * b.shape[1] / ms


def main() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        sys.exit("error: wgmma is Hopper's (compute capability 9.0), and no such GPU answers here")
    torch.manual_seed(1)
    a, b = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
    exact, magnitudes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (matmul(a, b).double() - exact).abs()
    # One rounding to BF16, and 4,096 sums of which a Tensor Core cuts off digits (lab 10).
    wrong = int((error > 2**-8 * exact.abs() + 4097 * 2**-22 * magnitudes).sum())
    print(f"Gluon: {tflops(matmul, a, b):.0f} TFLOP/s, {wrong} of {a.numel():,} elements wrong")
    print(f"cuBLAS: {tflops(torch.mm, a, b):.0f} TFLOP/s")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
