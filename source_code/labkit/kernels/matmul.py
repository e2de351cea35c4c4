"""How does a matrix product reach the Tensor Cores? Tiles, masks, a sum in registers: all of it, in one kernel.

One program makes one tile of the result. It walks along the inner dimension, loads a tile of each factor, and hands
both to ``tl.dot``, which becomes Tensor Core instructions where the inputs have 16 bits. What makes it fast is reuse:
a tile of 128 x 256 results reads 384 numbers for each 32,768 multiplications, where a plain loop would read 65,536.

The order of the tiles is that of Triton's tutorial "Matrix Multiplication" (triton-lang.org): down a few rows of
tiles before the next column, so that programs that run together read the same tiles, and find them in the L2 cache.
"""

import re
from collections import Counter

import torch

from labkit.kernels.triton_or_not import INTERPRETED, runs_triton, tl, triton

# (rows, columns of a tile, inner numbers at a time, warps, tiles under way): which is best depends on the sizes.
TILES = [
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 32, 128, 4, 3),
]
UNTUNED = (32, 32, 32)  # for Triton's interpreter, where no size is faster
GROUP = 8  # rows of tiles that are gone down together
TYPES = (torch.bfloat16, torch.float16, torch.float32)
# What multiplies, in the assembly (PTX): a group of warps at a Tensor Core (Hopper), one warp at one, a CUDA core.
MULTIPLIES = re.compile(r"wgmma\.mma_async\.\S+|(?:wmma\.)?\bmma\.sync\.\S+|\bfma\.rn\.f32\S*")
TOO_LONG = 2**31  # offsets are 32 bits wide


def matmul_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch: cuBLAS on a GPU."""
    return a @ b


@triton.jit
def _matmul(
    a, b, c, rows, columns, inner, a_down, a_across, b_down, b_across,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Which tile? Programs 0, 1, 2 … go down GROUP rows of tiles, then one column to the right, and so on.
    program = tl.program_id(0)
    tiles_down, tiles_across = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    first = program // (GROUP * tiles_across) * GROUP
    height = tl.minimum(tiles_down - first, GROUP)  # the last group may be shorter
    within = program % (GROUP * tiles_across)
    row = (first + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = within // height * BLOCK_N + tl.arange(0, BLOCK_N)

    # The sum stays in registers, in FP32, until it is whole. A mask keeps what lies beyond the edges at zero.
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left_at, left_mask = row[:, None] * a_down + k[None, :] * a_across, (row < rows)[:, None] & (k < inner)[None, :]
        right_at = k[:, None] * b_down + column[None, :] * b_across
        right_mask = (k < inner)[:, None] & (column < columns)[None, :]
        left = tl.load(a + left_at, mask=left_mask, other=0.0)
        right = tl.load(b + right_at, mask=right_mask, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")

    at = row[:, None] * columns + column[None, :]
    tl.store(c + at, total.to(c.dtype.element_ty), mask=(row < rows)[:, None] & (column < columns)[None, :])


_tuned_matmul = None  # without Triton, and in its interpreter
OutOfResources = RuntimeError  # what Triton raises where a tile needs more shared memory than there is
if hasattr(triton, "autotune") and not INTERPRETED:
    OutOfResources = triton.runtime.errors.OutOfResources
    # The first product of a size tries every tile and keeps the fastest for that size.
    _tuned_matmul = triton.autotune(
        [
            triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
            for m, n, k, warps, stages in TILES
        ],
        key=["rows", "columns", "inner"],
    )(_matmul)


def matmul(
    a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int, int, int] | None = None, group: int = GROUP
) -> torch.Tensor:
    """``a @ b``: ``(M, K)`` times ``(K, N)``, both BF16 or both FP16, summed in FP32; returns ``(M, N)`` in their type.

    Either factor may be transposed (any strides). FP32 factors are multiplied in plain FP32, without Tensor Cores.
    ``tile``: one of TILES; without it, the first product of a size finds the fastest. On the CPU, and without Triton:
    ``matmul_reference``. Raises ValueError for other shapes and types.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"cannot multiply {tuple(a.shape)} by {tuple(b.shape)}: (M, K) by (K, N) is wanted")
    if a.dtype != b.dtype or a.dtype not in TYPES or a.device != b.device:
        raise ValueError(f"two BF16, FP16 or FP32 matrices of one device are wanted, not {a.dtype} and {b.dtype}")
    if max(a.numel(), b.numel(), a.shape[0] * b.shape[1]) >= TOO_LONG:
        raise ValueError(f"a matrix of {TOO_LONG:,} numbers or more is too large for this kernel")
    if not runs_triton(a) or (_tuned_matmul is None and not INTERPRETED):
        return matmul_reference(a, b)
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    if c.numel():
        _launch(a, b, c, tile, group)
    return c


def _launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, tile: tuple | None, group: int) -> object:
    """Start one program for each tile of ``c``; the compiled kernel."""
    (rows, inner), columns = a.shape, b.shape[1]
    arguments = (a, b, c, rows, columns, inner, *a.stride(), *b.stride())

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(rows, tile["BLOCK_M"]) * triton.cdiv(columns, tile["BLOCK_N"]),)

    if tile is None and not INTERPRETED:
        return _tuned_matmul[grid](*arguments, GROUP=group)
    m, n, k, *more = tile or UNTUNED
    options = dict(zip(("num_warps", "num_stages"), more, strict=False))
    return _matmul[grid](*arguments, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP=group, **options)


def multiplying_instructions(a: torch.Tensor, b: torch.Tensor, tile: tuple[int, int, int, int, int]) -> dict[str, int]:
    """Which instructions of the compiled kernel multiply, and how often each stands in it; on a GPU only.

    ``wgmma`` and ``mma`` are the Tensor Cores'; with ``fma`` alone, the CUDA cores do it.
    """
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    return dict(Counter(MULTIPLIES.findall(_launch(a, b, c, tile, GROUP).asm["ptx"])))


def chosen_tile(rows: int, columns: int, inner: int) -> str:
    """The tile that won for these sizes, ``128 x 256 x 64``; a dash where none was tried."""
    tried = _tuned_matmul.cache if _tuned_matmul else {}
    found = {key[:3]: config.kwargs for key, config in tried.items()}
    tile = found.get((rows, columns, inner))
    return f"{tile['BLOCK_M']} x {tile['BLOCK_N']} x {tile['BLOCK_K']}" if tile else "–"


def error_bound(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far each element of ``matmul(a, b)`` may lie from the exact product: float64 ``(M, N)``.

    Products of 16-bit numbers are exact in FP32. The sum of K of them is off by at most ``K u`` times the sum of their
    magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", chapter 3); u is 2^-22 here, not 2^-24, since
    Tensor Cores cut off digits instead of rounding (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores").
    Then the result is rounded once to its own type.
    """
    a64, b64 = a.double(), b.double()
    summing = (a.shape[1] + 1) * 2.0**-22 * (a64.abs() @ b64.abs())
    return summing + torch.finfo(a.dtype).eps / 2 * ((a64 @ b64).abs() + summing) + torch.finfo(a.dtype).tiny
