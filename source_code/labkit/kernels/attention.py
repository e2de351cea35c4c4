"""How does attention do without its table of scores? FlashAttention's forward pass: an online softmax between products.

Attention is ``softmax(q kᵀ · scale) v``. Written as three operators, its scores ``(length, length)`` go to memory and
back twice, and nothing else counts beside them. Here one program makes BLOCK_M rows of the result: it walks along the
keys and values, BLOCK_N places at a time, and its scores never leave the multiprocessor. The softmax of a row is
not known until its last piece, so the sum of values is kept *relative to the largest score so far*, and corrected by
one factor when a larger one comes (``labkit.kernels.softmax``; Dao et al. 2022, "FlashAttention: Fast and
Memory-Efficient Exact Attention with IO-Awareness").

Powers of two instead of e: the hardware has ``exp2`` only, so log2(e) goes into the scale, once.
"""

import math
from itertools import product

import torch

from labkit.kernels.triton_or_not import INTERPRETED, runs_triton, tl, triton

# What is tried, and no more (rows, places of a piece, warps, pieces under way): 12 of the 72 that one could write down.
# 128 rows with 4 warps, as FlashAttention-2 takes them at 64 numbers a head, are not among them; nor are 4 pieces.
SPACE = [
    (rows, places, warps, stages)
    for rows, places, stages in product((64, 128), (32, 64, 128), (2, 3))
    for warps in (8 if rows == 128 else 4,)
]
UNTUNED = (32, 16)  # rows, places, for Triton's interpreter, where no size is faster
SMALL = (64, 32, 4, 2)  # fits on any GPU with Tensor Cores
WIDTHS = (16, 32, 64, 128)  # numbers a head
TYPES = (torch.bfloat16, torch.float16, torch.float32)
LOWEST = tl.constexpr(-3.4e38) if hasattr(triton, "autotune") else -3.4e38  # no -inf: -inf less itself is no number


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """The same in plain PyTorch, as one writes it down: a kernel an operator, and all scores in memory."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, -float("inf"))
    return torch.softmax(scores, dim=-1) @ v


@triton.jit
def _one_piece(
    query, k, v, first, row, length, scale, largest, total, gathered,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Take in BLOCK_N places from ``first`` on: the largest score so far, the sum of powers, the sum of values."""
    place, number = first + tl.arange(0, BLOCK_N), tl.arange(0, WIDTH)
    inside = place < length
    key_at, value_at = place[None, :] * WIDTH + number[:, None], place[:, None] * WIDTH + number[None, :]
    if MASKED:
        key = tl.load(k + key_at, mask=inside[None, :], other=0.0)
        value = tl.load(v + value_at, mask=inside[:, None], other=0.0)
    else:
        key, value = tl.load(k + key_at), tl.load(v + value_at)
    score = tl.dot(query, key, input_precision="ieee") * scale
    if MASKED:
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (place[None, :] <= row[:, None])
        score = tl.where(seen, score, LOWEST)
    larger = tl.maximum(largest, tl.max(score, axis=1))
    power = tl.exp2(score - larger[:, None])
    corrects = tl.exp2(largest - larger)  # 1 where no larger score came
    total = total * corrects + tl.sum(power, axis=1)
    gathered = tl.dot(power.to(value.dtype), value, gathered * corrects[:, None], input_precision="ieee")
    return larger, total, gathered


@triton.jit
def _attention(
    q, k, v, out, length, scale,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(1).to(tl.int64) * length * WIDTH  # of this head of this sequence
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.num_programs(0) - 1 - block  # the longest first: no long one is left over at the end
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    at = start + row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    query = tl.load(q + at, mask=(row < length)[:, None], other=0.0)
    largest, total = tl.full((BLOCK_M,), LOWEST, tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    gathered = tl.zeros((BLOCK_M, WIDTH), tl.float32)

    # Whole pieces, which every row sees, need no mask; the last ones do: at the edge, and on the diagonal.
    whole, end = length // BLOCK_N * BLOCK_N, length
    if CAUSAL:
        whole = tl.minimum(whole, block * BLOCK_M // BLOCK_N * BLOCK_N)
        end = tl.minimum(length, (block + 1) * BLOCK_M)
    for first in range(0, whole, BLOCK_N):
        largest, total, gathered = _one_piece(
            query, k + start, v + start, first, row, length, scale, largest, total, gathered,
            MASKED=False, CAUSAL=CAUSAL, BLOCK_N=BLOCK_N, WIDTH=WIDTH,
        )  # fmt: skip
    for first in range(whole, end, BLOCK_N):
        largest, total, gathered = _one_piece(
            query, k + start, v + start, first, row, length, scale, largest, total, gathered,
            MASKED=True, CAUSAL=CAUSAL, BLOCK_N=BLOCK_N, WIDTH=WIDTH,
        )  # fmt: skip
    result = gathered / total[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=(row < length)[:, None])


_tuned_attention = None  # without Triton, and in its interpreter
OutOfResources = RuntimeError  # what Triton raises where a choice needs more shared memory or registers than there are
if hasattr(triton, "autotune") and not INTERPRETED:
    OutOfResources = triton.runtime.errors.OutOfResources
    # The first call of a length tries the whole space and keeps the fastest for that length.
    _tuned_attention = triton.autotune(
        [
            triton.Config({"BLOCK_M": rows, "BLOCK_N": places}, num_warps=warps, num_stages=stages)
            for rows, places, warps, stages in SPACE
        ],
        key=["length", "CAUSAL", "WIDTH"],
    )(_attention)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, choice: tuple | None = None
) -> torch.Tensor:
    """Attention of every place to every place (``causal``: to itself and those before): all ``(batch, heads, length,
    width)``, contiguous, BF16 or FP16, sums in FP32; returns the same shape and type.

    FP32 is multiplied without Tensor Cores. ``choice``: one of SPACE; without it, the first call of a length finds the
    fastest. On the CPU, and without Triton: ``attention_reference``. Raises ValueError for other shapes and types.
    """
    if q.dim() != 4 or not q.shape == k.shape == v.shape or q.shape[-1] not in WIDTHS:
        raise ValueError(f"three tensors (batch, heads, length, width) are wanted, width one of {WIDTHS}")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in TYPES or not all(x.is_contiguous() for x in (q, k, v)):
        raise ValueError("contiguous BF16, FP16 or FP32 tensors of one type are wanted")
    if not runs_triton(q) or (_tuned_attention is None and not INTERPRETED):
        return attention_reference(q, k, v, causal)
    out = torch.empty_like(q)
    if q.numel():
        launch(q, k, v, out, causal, choice)
    return out


def launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool, choice: tuple | None
) -> object:
    """Start one program for BLOCK_M rows of each head; the compiled kernel, which knows its registers."""
    batch, heads, length, width = q.shape
    arguments = (q, k, v, out, length, math.log2(math.e) / math.sqrt(width))

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(length, chosen["BLOCK_M"]), batch * heads

    if choice is None and not INTERPRETED:
        return _tuned_attention[grid](*arguments, CAUSAL=causal, WIDTH=width)
    rows, places, *more = choice or UNTUNED
    options = dict(zip(("num_warps", "num_stages"), more, strict=False))
    return _attention[grid](*arguments, CAUSAL=causal, BLOCK_M=rows, BLOCK_N=places, WIDTH=width, **options)


def chosen() -> tuple[int, int, int, int]:
    """What the last tuning took of SPACE: rows, places, warps, stages. LookupError where nothing was tuned."""
    if _tuned_attention is None or not hasattr(_tuned_attention, "best_config"):
        raise LookupError("nothing was tuned: attention without a choice, on a GPU, does")
    best = _tuned_attention.best_config
    return best.kwargs["BLOCK_M"], best.kwargs["BLOCK_N"], best.num_warps, best.num_stages


def error_bound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """How far each element of ``attention(q, k, v)`` may lie from the exact one: float64, shaped as ``q``.

    A score is off by ``(width + 3) u`` times the sum of its products' magnitudes, u = 2^-22 as in
    ``labkit.kernels.matmul.error_bound``; its power relatively by as much, and by the subtraction's rounding and
    exp2's (2 units, CUDA C++ Programming Guide). Each power is then rounded to the values' type. Sums of ``length``
    positive numbers are off by at most ``length u`` (Higham, chapter 3), and once more by what their terms are: in the
    result and in the total that divides it. Then the result is rounded once.
    """
    u, (length, width), info = 2.0**-22, q.shape[-2:], torch.finfo(q.dtype)
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(width)
    magnitudes = q.abs() @ k.abs().transpose(-2, -1) / math.sqrt(width)
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores, magnitudes = scores.masked_fill(hidden, -torch.inf), magnitudes.masked_fill(hidden, 0.0)
    depth = scores.amax(-1, keepdim=True) - scores.masked_fill(~scores.isfinite(), 0.0)
    weights = torch.softmax(scores, dim=-1)
    # Both scores of a difference are off, whichever is the largest; and so is each correction on the way.
    power = u * (4 + depth.abs() + 2 * (width + 3) * magnitudes.amax(-1, keepdim=True))
    relative = 2 * (power.amax(-1, keepdim=True) + length * u) + info.eps / 2
    exact = weights @ v
    summing = relative * (weights @ v.abs())
    return summing + info.eps / 2 * (exact.abs() + summing) + info.tiny
