"""How is a matrix's step made of equal length in all directions, in two launches? Muon, by way of small Gram matrices.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024): the momentum U of a weight matrix is
replaced by the nearest matrix whose singular values are all about 1, by a polynomial X ← aX + bXXᵀX + c(XXᵀ)²X, applied
a few times. Every one of these factors is a polynomial of A = XXᵀ, so the iteration runs on that alone: with
P = aI + bA + cA², X becomes PX and A becomes PAP. A is rows × rows, however long the rows are; U itself is read twice.
"""

import torch

from labkit.kernels.triton_or_not import runs_triton, tl, triton
from labkit.kernels.weights import Weights

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c: small singular values grow fast, large ones stay near 1
ITERATIONS = 3
TINY = 1e-20  # a gradient of zeros stays zeros
COLUMNS, PARTS, WARPS = 64, 4, 4  # at a time, how many times a program takes so many, and its warps
PRECISION = "tf32x3"  # of all products: nearly FP32, in three of TF32
ROWS = 64  # of a block that is stepped as one: of 128, the products would need more shared memory than there is


def stretch(rows: int, columns: int) -> float:
    """By how much the step of a tall matrix is longer, so that its outputs move as far as those of a wide one."""
    return max(1.0, rows / columns) ** 0.5


def muon_reference(
    value: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor, rate: float, beta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch for one matrix: the new value and momentum, ``(rows, columns)`` both."""
    momentum = beta * momentum + gradient
    x = gradient + beta * momentum  # Nesterov's
    x = x / (x.norm() + TINY)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return value - rate * stretch(*value.shape) * x, momentum


@triton.jit
def _part(table, part, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of a program's block: where they lie in the flat arrays, and what of them is there."""
    entry = table + tl.program_id(0) * 5  # of each program: block, begin, rows, columns, first column
    rows, columns = tl.load(entry + 2), tl.load(entry + 3)
    row, column = tl.arange(0, ROWS)[:, None], tl.load(entry + 4) + part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return tl.load(entry + 1) + row * columns + column, (row < rows) & (column < columns)


@triton.jit
def _gram(table, ROWS: tl.constexpr):
    """Where the Gram matrix of a program's block lies."""
    row, across = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    return tl.load(table + tl.program_id(0) * 5) * ROWS * ROWS + row * ROWS + across


@triton.jit
def _momentum_and_gram(
    table, gradients, momenta, grams, beta,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    share = tl.zeros((ROWS, ROWS), tl.float32)
    for part in range(PARTS):
        at, inside = _part(table, part, ROWS, COLUMNS)
        fresh = tl.load(gradients + at, mask=inside, other=0.0)
        moving = beta * tl.load(momenta + at, mask=inside, other=0.0) + fresh
        tl.store(momenta + at, moving, mask=inside)
        ahead = fresh + beta * moving
        tl.store(gradients + at, ahead, mask=inside)
        share = tl.dot(ahead, tl.trans(ahead), share, input_precision=PRECISION)
    tl.atomic_add(grams + _gram(table, ROWS), share, sem="relaxed")


@triton.jit
def _orthogonal_step(
    table, stretches, values, copies, gradients, grams, next_grams, rate,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, ITERATIONS: tl.constexpr, TINY: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # Each program iterates on the Gram matrix for itself: it is small, and waiting for another one takes longer.
    gram = _gram(table, ROWS)
    one = tl.where(tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :], 1.0, 0.0)
    square = tl.load(grams + gram)
    length = tl.sqrt(tl.sum(tl.sum(square * one, axis=1), axis=0)) + TINY
    square = square / length / length
    factor = one
    for iteration in tl.static_range(ITERATIONS):
        twice = tl.dot(square, square, input_precision=PRECISION)
        change = A * one + B * square + C * twice
        factor = change if iteration == 0 else tl.dot(change, factor, input_precision=PRECISION)
        if iteration < ITERATIONS - 1:
            square = tl.dot(tl.dot(change, square, input_precision=PRECISION), change, input_precision=PRECISION)
    factor = factor * (rate * tl.load(stretches + tl.load(table + tl.program_id(0) * 5)) / length)
    for part in range(PARTS):
        at, inside = _part(table, part, ROWS, COLUMNS)
        ahead = tl.load(gradients + at, mask=inside, other=0.0)
        step = tl.dot(factor, ahead, input_precision=PRECISION)
        new = tl.load(values + at, mask=inside, other=0.0) - step
        tl.store(values + at, new, mask=inside)
        tl.store(copies + at, new.to(copies.dtype.element_ty), mask=inside)
        tl.store(gradients + at, tl.zeros_like(ahead), mask=inside)
    tl.store(next_grams + gram, tl.zeros_like(one))  # every program of the block writes the same


def _blocks(weights: Weights, name: str, most: int) -> list[tuple[int, int, int]]:
    """A parameter's blocks of ``most`` rows at most: where each begins in the flat arrays, its rows, its columns."""
    view = weights.values[name]
    begin, columns = view.storage_offset() - weights.flat_values.storage_offset(), view.numel() // len(view)
    return [(begin + row * columns, min(most, len(view) - row), columns) for row in range(0, len(view), most)]


class Muon:
    """Muon for the parameters of ``weights`` that are named; the rows of each are its first axis.

    A matrix of more than ``most`` rows (64 at most) is stepped in blocks of so many, as if they were matrices of their
    own. The momentum is kept where Adadelta and Adam keep their second state, in ``weights.delta_average``.
    """

    def __init__(self, weights: Weights, names: tuple[str, ...], most: int = ROWS) -> None:
        self.weights = weights
        flats = (weights.flat_values, weights.flat_copies, weights.flat_gradients, weights.delta_average)
        blocks = [block for name in names for block in _blocks(weights, name, min(most, ROWS))]
        self.matrices = [
            [flat[begin : begin + rows * columns].view(rows, columns) for flat in flats]
            for begin, rows, columns in blocks
        ]
        device = weights.flat_values.device
        self.rows = max(16, *(1 << (rows - 1).bit_length() for _, rows, _ in blocks))
        entries = [
            (number, *block, first)
            for number, block in enumerate(blocks)
            for first in range(0, block[2], COLUMNS * PARTS)
        ]
        self.table = torch.tensor(entries, dtype=torch.int32, device=device)
        self.stretches = torch.tensor([stretch(rows, columns) for _, rows, columns in blocks], device=device)
        # One set is added to while the other is emptied for the next step.
        self.grams = torch.zeros(2, len(blocks), self.rows, self.rows, device=device)

    def begin(self) -> None:
        """Forget what a training before has left."""
        self.grams.zero_()

    def step(self, number: int, rate: float, beta: float) -> None:
        """Step ``number`` (0, 1, 2 …) with learning rate ``rate`` and momentum ``beta``; empties the gradients."""
        weights = self.weights
        if not runs_triton(weights.flat_values):
            for value, copy, gradient, momentum in self.matrices:
                new, moving = muon_reference(value, gradient, momentum, rate, beta)
                value.copy_(new)
                momentum.copy_(moving)
                copy.copy_(new)
                gradient.zero_()
            return
        gram, following = self.grams[number % 2], self.grams[(number + 1) % 2]
        sizes = {"PRECISION": PRECISION, "ROWS": self.rows, "COLUMNS": COLUMNS, "PARTS": PARTS}
        sizes |= {"num_warps": WARPS, "num_stages": 2}
        grid, gradients = (len(self.table),), weights.flat_gradients
        _momentum_and_gram[grid](self.table, gradients, weights.delta_average, gram, beta, **sizes)
        a, b, c = COEFFICIENTS
        _orthogonal_step[grid](
            self.table, self.stretches, weights.flat_values, weights.flat_copies, gradients, gram, following, rate,
            A=a, B=b, C=c, ITERATIONS=ITERATIONS, TINY=TINY, **sizes,
        )  # fmt: skip
