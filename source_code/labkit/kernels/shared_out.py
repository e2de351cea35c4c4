"""Who makes which part of a matrix product? One kernel whose work is shared out among as many programs as one likes.

``labkit.kernels.matmul`` gives each program a tile. Where there are few tiles, most multiprocessors have none; where
there are a few more than multiprocessors, most wait for a second round. The work can be cut finer: into *iterations*,
one for BLOCK_K inner numbers of one tile. All iterations, tile after tile, make a line, and each program takes an equal
stretch of it:

=======================  ==============================================================================================
programs                 what they do
=======================  ==============================================================================================
one a tile               a tile each: the plain product
``s`` a tile             the inner dimension cut into ``s`` pieces: **split-K**
one a multiprocessor     stretches that begin and end within tiles: **stream-K** (Osama et al. 2023, "Stream-K:
                         Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU")
=======================  ==============================================================================================

Pieces of a tile that no program made alone lie in FP32 in a workspace; a second kernel adds them up, in order, so that
the result is the same each time.
"""

import torch

from labkit.kernels.triton_or_not import INTERPRETED, runs_triton, tl, triton

TILE = (128, 128, 64, 8, 4)  # rows, columns, inner numbers at a time, warps, tiles under way: one program fills an SM
SMALL_TILE = (64, 64, 32, 4, 3)  # for GPUs with less shared memory
UNTUNED = (16, 16, 16)  # for Triton's interpreter
TYPES = (torch.bfloat16, torch.float16, torch.float32)
TOO_LONG = 2**31  # offsets are 32 bits wide
AT_START, WITHIN = tl.constexpr(1), tl.constexpr(0)  # places of a program's pieces in the workspace


@triton.jit
def _stretches(
    a, b, c, pieces, rows, columns, inner,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    across, an_iteration = tl.cdiv(columns, BLOCK_N), tl.cdiv(inner, BLOCK_K)
    iterations = tl.cdiv(rows, BLOCK_M) * across * an_iteration
    program, programs = tl.program_id(0), tl.num_programs(0)
    here = (program.to(tl.int64) * iterations // programs).to(tl.int32)
    end = ((program.to(tl.int64) + 1) * iterations // programs).to(tl.int32)
    while here < end:
        tile, first = here // an_iteration, here % an_iteration
        last = tl.minimum(an_iteration, first + end - here)
        row = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
        column = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(first, last):
            k = step * BLOCK_K + tl.arange(0, BLOCK_K)
            left_mask, right_mask = (row < rows)[:, None] & (k < inner)[None, :], (k < inner)[:, None]
            left = tl.load(a + row[:, None] * inner + k[None, :], mask=left_mask, other=0.0)
            right_mask = right_mask & (column < columns)[None, :]
            right = tl.load(b + k[:, None] * columns + column[None, :], mask=right_mask, other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")

        if last - first == an_iteration:  # a whole tile: nobody else has a part in it
            inside = (row < rows)[:, None] & (column < columns)[None, :]
            tl.store(c + row[:, None] * columns + column[None, :], total.to(c.dtype.element_ty), mask=inside)
        else:
            place = tl.where(first == 0, AT_START, WITHIN)
            at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            tl.store(pieces + (program * 2 + place) * BLOCK_M * BLOCK_N + at, total)
        here += last - first


@triton.jit
def _add_up(
    c, pieces, rows, columns, inner, programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    # A program adds up PART rows of a tile. Iteration i is in the last stretch that begins at i or before.
    tile, part = tl.program_id(0), tl.program_id(1)
    across, an_iteration = tl.cdiv(columns, BLOCK_N), tl.cdiv(inner, BLOCK_K)
    iterations = tl.num_programs(0).to(tl.int64) * an_iteration
    begin = tile.to(tl.int64) * an_iteration
    first = (((begin + 1) * programs - 1) // iterations).to(tl.int32)
    last = (((begin + an_iteration) * programs - 1) // iterations).to(tl.int32)
    if first < last:  # else one program made the whole tile
        within = part * PART + tl.arange(0, PART)
        at = within[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        total = tl.load(pieces + (first * 2 + AT_START) * BLOCK_M * BLOCK_N + at)
        for program in range(first + 1, last + 1):
            total += tl.load(pieces + (program * 2 + WITHIN) * BLOCK_M * BLOCK_N + at)
        row, column = tile // across * BLOCK_M + within, tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        tl.store(c + row[:, None] * columns + column[None, :], total.to(c.dtype.element_ty), mask=inside)


def tiles(rows: int, columns: int, tile: tuple = TILE) -> int:
    """How many tiles a result of this size has."""
    return -(-rows // tile[0]) * -(-columns // tile[1])


def stretches(rows: int, columns: int, inner: int, programs: int, tile: tuple = TILE) -> list[list[tuple]]:
    """Who does what, as the kernel shares it out: of each program its pieces, (tile, first, last iteration, whole)."""
    each = -(-inner // tile[2])
    iterations = tiles(rows, columns, tile) * each
    found = []
    for program in range(programs):
        here, end = program * iterations // programs, (program + 1) * iterations // programs
        found.append([])
        while here < end:
            first = here % each
            last = min(each, first + end - here)
            found[-1].append((here // each, first, last, last - first == each))
            here += last - first
    return found


def shared_out(a: torch.Tensor, b: torch.Tensor, programs: int | None = None, tile: tuple = TILE) -> torch.Tensor:
    """``a @ b`` by so many programs: ``(M, K)`` times ``(K, N)``, contiguous, of one 16-bit type or FP32; ``(M, N)``.

    ``programs``: one a tile if None. On the CPU, and without Triton: ``a @ b``. Raises ValueError for other shapes and
    types, and for no program at all.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not a.shape[1]:
        raise ValueError(f"cannot multiply {tuple(a.shape)} by {tuple(b.shape)}: (M, K) by (K, N) is wanted")
    if a.dtype != b.dtype or a.dtype not in TYPES or not (a.is_contiguous() and b.is_contiguous()):
        raise ValueError("two contiguous BF16, FP16 or FP32 matrices are wanted")
    if programs is not None and programs < 1:
        raise ValueError("at least one program is needed")
    if max(a.numel(), b.numel(), a.shape[0] * b.shape[1]) >= TOO_LONG:
        raise ValueError(f"a matrix of {TOO_LONG:,} numbers or more is too large for this kernel")
    if not runs_triton(a):
        return a @ b
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    if c.numel():
        launch(a, b, c, programs, tile)
    return c


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, programs: int | None, tile: tuple) -> object:
    """Start the programs, and those that add up where a tile was cut; the first kernel, compiled."""
    (rows, inner), columns = a.shape, b.shape[1]
    m, n, k, *more = UNTUNED if INTERPRETED and tile == TILE else tile
    options = {} if INTERPRETED else dict(zip(("num_warps", "num_stages"), more, strict=False))
    count = tiles(rows, columns, (m, n))
    programs = min(programs or count, count * -(-inner // k))  # none without an iteration
    is_cut = count % programs != 0  # else each program makes whole tiles
    sizes = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    pieces = torch.empty(programs * 2 * m * n if is_cut else 1, dtype=torch.float32, device=a.device)
    compiled = _stretches[(programs,)](a, b, c, pieces, rows, columns, inner, **sizes, **options)
    if is_cut:
        part = min(m, 16)
        _add_up[(count, m // part)](c, pieces, rows, columns, inner, programs, **sizes, PART=part)
    return compiled
