"""The exercises of lab 10: a fused kernel, what padding gains, and a product with too few tiles."""

from __future__ import annotations

from collections.abc import Callable

from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.labs.lab10.products import by_size
from labkit.lazily import torch
from labkit.numbers import Quantity


def _try_bias_relu(bias_relu: Callable) -> str | None:
    from labkit.pretend.triton import PretendError, launch

    generator = torch.Generator().manual_seed(0)
    for rows, columns, block in ((8, 8, 16), (7, 10, 16), (1, 100, 32), (33, 3, 8)):
        x, bias = torch.randn(rows, columns, generator=generator), torch.randn(columns, generator=generator)
        y, count = torch.full_like(x, torch.nan), x.numel()
        right, given = torch.relu(x + bias), (x.clone(), bias.clone())
        try:
            work = launch(bias_relu, (-(-count // block),), x, bias, y, count, columns, BLOCK=block)
        except PretendError as error:
            return str(error)
        if not (torch.equal(x, given[0]) and torch.equal(bias, given[1])):
            return "it writes into x or bias: only y is written"
        if y.isnan().any():
            return f"of {count} numbers of y, {int(y.isnan().sum())} were never written, or are not a number"
        late = torch.relu(x) + bias
        if any(torch.allclose(y, one) for one in (late, late.relu(), torch.relu(x) + bias.clamp(min=0))):
            return "the bias is added after the maximum: add it before"
        if (y < 0).any():
            return "some results are negative: max(…, 0) is missing"
        if torch.allclose(y, torch.relu(x)):
            return "it never adds the bias"
        if not torch.allclose(y, right):
            of_any = torch.relu(x.unsqueeze(-1) + bias).isclose(y.unsqueeze(-1)).any(dim=-1).all()
            why = ": number i of x belongs to column i % columns" if of_any else ""
            return f"with {columns} columns some results are wrong{why}"
        if work.loaded > count + block * -(-count // block):  # of whole blocks: the bias needs no mask
            return f"it reads {work.loaded} numbers where {2 * count} are enough: each of x once, and its bias"
        if work.stored > count:
            return f"it writes {work.stored} numbers where {count} are enough: each of y once"
        if work.most_stored > block:
            return f"a program writes {work.most_stored} numbers: each does BLOCK, here {block}"
    return None


def _kernel(
    value: Callable = lambda tl, x, bias: tl.maximum(x() + bias(), 0.0),
    column: Callable = lambda at, columns: at % columns,
    masked: bool = True,
    one_program: bool = False,
) -> Callable:
    """A kernel that is right but for what is said; ``value``: of ``tl``, and of what loads numbers of x and of bias."""

    def kernel(x, bias, y, count, columns, BLOCK):
        from labkit.pretend.triton import tl

        at = tl.arange(0, BLOCK) + (0 if one_program else tl.program_id(0) * BLOCK)
        mask = at < count if masked else None
        loads = [lambda place=place: tl.load(place, mask=mask) for place in (x + at, bias + column(at, columns))]
        tl.store(y + at, value(tl, *loads), mask=mask)

    return kernel


BIAS_RELU = Code(
    "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), a mask for at < count, and bias + at % columns.",
    _try_bias_relu,
    wrong={
        "a mask is missing": _kernel(masked=False),
        "never adds the bias": _kernel(lambda tl, x, _: tl.maximum(x(), 0.0)),
        "belongs to column i % columns": _kernel(column=lambda at, columns: at // columns % columns),
        "some results are negative": _kernel(lambda tl, x, bias: x() + bias()),
        "were never written": _kernel(one_program=True),
        "are enough: each of x once": _kernel(lambda tl, x, bias: tl.maximum((x() + x()) / 2 + bias(), 0.0)),
        "the bias is added after the maximum": _kernel(
            lambda tl, x, bias: tl.maximum(tl.maximum(x(), 0.0) + bias(), 0.0)
        ),
        "the bias is added after the maximum: add it before": _kernel(
            lambda tl, x, bias: tl.maximum(x(), 0.0) + bias()
        ),
        "with 8 columns some results are wrong": _kernel(lambda tl, x, bias: tl.maximum(x() - bias(), 0.0)),
    },
)


def _cublas_us(side: int) -> Quantity:
    return Quantity(lambda records: float(by_size(records)["cublas_us"][(side, side, side)]))


def _padded(side: int) -> Quantity:
    """How many times as fast cuBLAS is at 4,096, padding and all, as at ``side``."""
    return _cublas_us(side) / _cublas_us(4096)


PADDED = Number(
    READ,
    "Two green bars, side by side: TFLOP/s of 4,096 over those of 4,095.",
    right=_padded(4095),
    wrong={
        "that is turned over: the share of the time that is left": 1 / _padded(4095),
        "that is 4,097 against 4,096": _padded(4097),
        "that is by how many per cent it is faster: how many times as fast?": 100 * (_padded(4095) - 1),
        "that is the share of the time that it saves, in per cent": 100 * (1 - 1 / _padded(4095)),
        "those are the TFLOP/s of 4,096: over those of 4,095?": 2 * 4096**3 / _cublas_us(4096) / 1e6,
    },
    within=0.05,  # read off a picture
)


def _busy_pct(tile: tuple[int, int], tiles: int = 0) -> float:
    """Per cent of an H200's 132 multiprocessors that fc1's forward pass gives a tile of this size, or so many tiles."""
    return 100 * (tiles or -(-1024 // tile[0]) * -(-128 // tile[1])) / 132


FEW_TILES = Number(
    BOUND,
    "How many tiles of 128 × 128 has a result of 1,024 × 128? Each keeps one of the multiprocessors busy.",
    right=lambda: _busy_pct((128, 128)),
    wrong={
        "there are more multiprocessors than tiles: most of them have nothing to do": lambda: 100.0,
        "that is with tiles of 64 × 32: there are fewer of 128 × 128": lambda: _busy_pct((64, 32)),
        "that is with tiles of 64 × 64: there are fewer of 128 × 128": lambda: _busy_pct((64, 64)),
        "that is one tile's share: how many are there?": lambda: _busy_pct((128, 128), tiles=1),
        "those are the tiles: which share of the multiprocessors has one?": lambda: 8.0,
        "that is the share that has nothing to do": lambda: 100 - _busy_pct((128, 128)),
        "that is turned over: multiprocessors for each tile": lambda: 132 / 8,
    },
)

EXERCISES = {"10.1": BIAS_RELU, "10.2": PADDED, "10.3": FEW_TILES}
