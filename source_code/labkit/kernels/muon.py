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
COLUMNS = 64  # a program's


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
def _part(table, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's part of its matrix: where it lies in the flat arrays, what of it is there, and its Gram matrix."""
    entry = table + tl.program_id(0) * 5  # of each program: matrix, begin, rows, columns, first column
    matrix, rows, columns = tl.load(entry), tl.load(entry + 2), tl.load(entry + 3)
    row, column = tl.arange(0, ROWS)[:, None], tl.load(entry + 4) + tl.arange(0, COLUMNS)[None, :]
    at = tl.load(entry + 1) + row * columns + column
    gram = matrix * ROWS * ROWS + row * ROWS + tl.arange(0, ROWS)[None, :]
    return matrix, at, (row < rows) & (column < columns), gram


@triton.jit
def _momentum_and_gram(table, gradients, momenta, grams, beta, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    _, at, inside, gram = _part(table, ROWS, COLUMNS)
    fresh = tl.load(gradients + at, mask=inside, other=0.0)
    moving = beta * tl.load(momenta + at, mask=inside, other=0.0) + fresh
    tl.store(momenta + at, moving, mask=inside)
    ahead = fresh + beta * moving
    tl.store(gradients + at, ahead, mask=inside)
    tl.atomic_add(grams + gram, tl.dot(ahead, tl.trans(ahead), input_precision="tf32x3"), sem="relaxed")


@triton.jit
def _orthogonal_step(
    table, stretches, values, copies, gradients, grams, next_grams, rate,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, ITERATIONS: tl.constexpr, TINY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Each program iterates on the Gram matrix for itself: it is small, and waiting for another one takes longer.
    matrix, at, inside, gram = _part(table, ROWS, COLUMNS)
    one = tl.where(tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :], 1.0, 0.0)
    square = tl.load(grams + gram)
    length = tl.sqrt(tl.sum(tl.sum(square * one, axis=1), axis=0)) + TINY
    square = square / length / length
    factor = one
    for iteration in tl.static_range(ITERATIONS):
        twice = tl.dot(square, square, input_precision="tf32x3")
        change = A * one + B * square + C * twice
        factor = tl.dot(change, factor, input_precision="tf32x3")
        if iteration < ITERATIONS - 1:
            square = tl.dot(tl.dot(change, square, input_precision="tf32x3"), change, input_precision="tf32x3")
    ahead = tl.load(gradients + at, mask=inside, other=0.0) / length
    step = tl.dot(factor, ahead, input_precision="tf32x3") * tl.load(stretches + matrix)
    new = tl.load(values + at, mask=inside, other=0.0) - rate * step
    tl.store(values + at, new, mask=inside)
    tl.store(copies + at, new.to(copies.dtype.element_ty), mask=inside)
    tl.store(gradients + at, tl.zeros_like(ahead), mask=inside)
    tl.store(next_grams + gram, tl.zeros_like(one))  # every program of the matrix writes the same


def _place(weights: Weights, name: str) -> tuple[int, int, int]:
    """Where a parameter begins in the flat arrays, its rows and its columns."""
    view = weights.values[name]
    return view.storage_offset() - weights.flat_values.storage_offset(), len(view), view.numel() // len(view)


class Muon:
    """Muon for the parameters of ``weights`` that are named; their first axes, the rows, are 128 at most.

    It keeps its momentum where Adadelta and Adam keep their second state, ``weights.delta_average``.
    """

    def __init__(self, weights: Weights, names: tuple[str, ...]) -> None:
        """ValueError where a parameter has more rows than a program holds."""
        self.weights = weights
        flats = (weights.flat_values, weights.flat_copies, weights.flat_gradients, weights.delta_average)
        self.places = [_place(weights, name) for name in names]
        self.matrices = [[flat[begin : begin + rows * columns].view(rows, columns) for flat in flats]
                         for begin, rows, columns in self.places]  # fmt: skip
        device = weights.flat_values.device
        self.rows = max(16, *(1 << (rows - 1).bit_length() for _, rows, _ in self.places))
        if self.rows > 128:
            raise ValueError(f"a matrix of {self.rows} rows: Muon's programs hold 128")
        entries = [
            (matrix, *place, first) for matrix, place in enumerate(self.places) for first in range(0, place[2], COLUMNS)
        ]
        self.table = torch.tensor(entries, dtype=torch.int32, device=device)
        self.stretches = torch.tensor([stretch(rows, columns) for _, rows, columns in self.places], device=device)
        # One set is added to while the other is emptied for the next step.
        self.grams = torch.zeros(2, len(names), self.rows, self.rows, device=device)

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
        sizes = {"ROWS": self.rows, "COLUMNS": COLUMNS, "num_warps": 8 if self.rows > 64 else 4}
        grid, gradients = (len(self.table),), weights.flat_gradients
        _momentum_and_gram[grid](self.table, gradients, weights.delta_average, gram, beta, **sizes)
        a, b, c = COEFFICIENTS
        _orthogonal_step[grid](
            self.table, self.stretches, weights.flat_values, weights.flat_copies, gradients, gram, following, rate,
            A=a, B=b, C=c, ITERATIONS=ITERATIONS, TINY=TINY, **sizes,
        )  # fmt: skip
