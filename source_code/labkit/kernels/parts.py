"""How does a product of few outputs use the whole GPU? Its sums are split, and the kernel behind it adds the parts.

fc1's output for 1,024 samples is eight tiles of 128 x 128, for 132 multiprocessors, and each number is a sum over
9,216. cuBLAS splits such sums, too, and adds them in a kernel of its own, which rounds to BF16. Here ``head`` adds them
as it reads them, in FP32: one launch less, and one rounding. It is launched while the product still runs, and waits for
it in the middle (CUDA C++ Programming Guide, "Programmatic Dependent Launch").
"""

import torch

from labkit.kernels.triton_or_not import runs_triton, starts_early, tl, triton

PARTS = 16  # with eight tiles 128 programs; 9,216 / 16 is nine slices of 64


@triton.jit
def _parts(
    a, b, sums, rows, INNER: tl.constexpr, SHARE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    SLICE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # the next kernel may start, if it waits for the sums by itself
    row, part = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None], tl.program_id(1)
    column, inner = tl.arange(0, COLUMNS)[None, :], part * SHARE + tl.arange(0, SLICE)
    left, right = a + row * INNER + inner[None, :], b + column * INNER + inner[:, None]
    total = tl.zeros((BLOCK, COLUMNS), dtype=tl.float32)
    for k in range(0, SHARE, SLICE):
        total = tl.dot(tl.load(left + k, mask=row < rows, other=0.0), tl.load(right + k), total)
    tl.store(sums + (part * rows + row) * COLUMNS + column, total, mask=row < rows)


def product_in_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b.t()`` as a sum that is still to be taken, over the first axis: float32 ``(parts, M, N)``.

    ``a`` ``(M, K)``, ``b`` ``(N, K)`` both BF16; N a power of two up to 128, K a multiple of 1,024. On the CPU it is
    one part, of the type of ``a`` and ``b``.
    """
    if not runs_triton(a):
        return (a @ b.t())[None]
    (rows, inner), columns, block = a.shape, len(b), 128
    sums = torch.empty(PARTS, rows, columns, device=a.device)
    _parts[(triton.cdiv(rows, block), PARTS)](
        a, b, sums, rows, INNER=inner, SHARE=inner // PARTS, COLUMNS=columns, BLOCK=block, SLICE=64,
        EARLY=starts_early(a), num_warps=8, num_stages=4,
    )  # fmt: skip
    return sums
