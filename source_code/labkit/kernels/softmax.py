"""How is a softmax made in one trip to memory? A kernel that waits for memory and for nothing else, in two forms.

Softmax of a row is ``exp(x - max) / sum(exp(x - max))``. Operator by operator the row goes to memory and back several
times. ``_whole_row`` reads a row once, keeps it in registers and writes the result once: that is the least there is.

``_in_pieces`` is for rows that fit into no program's registers. It reads the row in pieces and knows, after each, the
largest number so far and the sum of powers *relative to it*; a larger number corrects the sum by one factor. This is
the online softmax (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), on which FlashAttention
stands. The result needs the row a second time: three trips instead of two.
"""

import torch

from labkit.kernels.triton_or_not import runs_triton, tl, triton

WIDEST = 32768  # columns of a row that one program holds in its registers: 32 in each of 1,024 threads
PIECE = 4096  # columns at a time, where a row comes in pieces
COLUMNS_A_WARP = 1024  # as many as 32 threads hold in 32 registers each; more warps than that have too little to do
MOST_WARPS = 32
TOO_LONG = 2**31  # offsets are 32 bits wide
LOWEST = tl.constexpr(-3.4e38) if hasattr(triton, "autotune") else -3.4e38  # no -inf: -inf less itself is no number


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    return torch.softmax(x, dim=-1)


@triton.jit
def _whole_row(x, y, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    at = tl.program_id(0) * columns + column
    inside = column < columns
    row = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(row - tl.max(row, axis=0))  # beyond the edge: exp(-inf) = 0, which adds nothing
    tl.store(y + at, (power / tl.sum(power, axis=0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _in_pieces(x, y, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0) * columns
    largest, total = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        piece = tl.load(x + start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(piece, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(piece - larger), axis=0)
        largest = larger
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        piece = tl.load(x + start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        result = tl.exp(piece - largest) / total
        tl.store(y + start + column, result.to(y.dtype.element_ty), mask=column < columns)


def softmax(x: torch.Tensor, in_pieces: bool = False) -> torch.Tensor:
    """Softmax of each row of ``x`` ``(rows, columns)``, summed in FP32; returns the same shape and type.

    Rows of more than WIDEST columns, or where ``in_pieces`` says so, are read twice. On the CPU, and without Triton:
    ``softmax_reference``. Raises ValueError for other shapes, for rows that do not follow one another, for no columns.
    """
    if x.dim() != 2 or not x.is_contiguous() or not x.is_floating_point() or not x.shape[1]:
        raise ValueError(f"a contiguous (rows, columns) of floating-point numbers is wanted, not {tuple(x.shape)}")
    if x.numel() >= TOO_LONG:
        raise ValueError(f"{TOO_LONG:,} numbers or more are too many for this kernel")
    if not runs_triton(x):
        return softmax_reference(x)
    y = torch.empty_like(x)
    if len(x):
        launch(x, y, in_pieces)
    return y


def launch(x: torch.Tensor, y: torch.Tensor, in_pieces: bool = False) -> object:
    """Start one program a row; the compiled kernel, which knows its registers."""
    rows, columns = x.shape
    if in_pieces or columns > WIDEST:
        block = min(PIECE, triton.next_power_of_2(columns))
        return _in_pieces[(rows,)](x, y, columns, BLOCK=block, num_warps=warps(block))
    block = triton.next_power_of_2(columns)
    return _whole_row[(rows,)](x, y, columns, BLOCK=block, num_warps=warps(block))


def warps(block: int) -> int:
    """Warps of a program that holds so many columns, a power of two."""
    return max(1, min(MOST_WARPS, block // COLUMNS_A_WARP))


def error_bound(x: torch.Tensor) -> torch.Tensor:
    """How far each element of ``softmax(x)`` may lie from the exact one: float64, shaped as ``x``.

    The subtraction is off by ``u |x - max|`` (u = 2^-24), and so, relatively, is the power; ``exp`` itself and the
    division by two units each (CUDA C++ Programming Guide, "Mathematical Functions Appendix"), on a GPU by 2 more for
    each unit of the exponent, since it goes by way of ``exp2``. The sum of n positive numbers is off by at most n u,
    and by the largest error of a power (Higham, "Accuracy and Stability of Numerical Algorithms", chapter 3). In pieces
    each piece corrects the sum by one more power. Then the result is rounded once to its own type.
    """
    u = 2.0**-24
    wide = x.double()
    depth = wide.max(dim=-1, keepdim=True).values - wide
    power = u * (4 + 3 * depth)
    pieces = -(-x.shape[1] // PIECE)
    summing = u * (x.shape[1] + 4 * pieces) + power.amax(dim=-1, keepdim=True)
    exact = torch.softmax(wide, dim=-1)
    info = torch.finfo(x.dtype)
    return exact * (power + summing + info.eps / 2) + info.tiny
