"""What does an idea of labs 9 and 10 look like? Their explanatory diagrams, drawn by code."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from labkit.display import style
from labkit.display.diagrams.drawn import MONO, SMALL, arrow, aside, box, canvas, heading, tint, write

CELL = 2.7  # side of one tile


def _matrix(ax: Axes, x: float, y: float, down: int, across: int, marked: dict[tuple[int, int], float], colour: str):
    """A matrix in tiles, row 0 on top; ``marked``: (row, column) → strength of its colour."""
    for row in range(down):
        for column in range(across):
            fill = tint(colour, marked[(row, column)]) if (row, column) in marked else tint(style.IDLE, 0.35)
            place = (x + column * CELL, y + (down - 1 - row) * CELL)
            ax.add_patch(Rectangle(place, CELL, CELL, fc=fill, ec=style.PAPER, lw=1.5))


def matmul_tiles() -> Figure:
    """One program makes one tile of C: it walks along a row of A's tiles and a column of B's."""
    fig, ax = canvas(47)
    heading(ax, 44.5, "One program, one tile of C")
    row, column, step = 2, 3, 1
    strip, now = 0.3, 0.95
    _matrix(ax, 3, 4, 6, 5, {(row, k): now if k == step else strip for k in range(5)}, style.BLUE)
    _matrix(ax, 22, 23.5, 5, 7, {(k, column): now if k == step else strip for k in range(5)}, style.ORANGE)
    _matrix(ax, 22, 4, 6, 7, {(row, column): now}, style.GREEN)
    write(ax, 3 + 2.5 * CELL, 21.6, "A", weight="bold", ha="center")
    write(ax, 20.4, 23.5 + 2.5 * CELL, "B", weight="bold", ha="center")
    write(ax, 22 + 7 * CELL + 1.4, 4 + 3 * CELL, "C", weight="bold", ha="center")
    middle = 4 + (5 - row + 0.5) * CELL
    arrow(ax, (3.4, middle), (3 + 5 * CELL - 0.4, middle), style.INK, width=1.2, shrink=0)
    across = 22 + (column + 0.5) * CELL
    arrow(ax, (across, 23.5 + 5 * CELL - 0.4), (across, 23.9), style.INK, width=1.2, shrink=0)
    aside(ax, 3, 2.2, "along the inner dimension, a tile at a time")

    steps = [
        (34.5, style.BLUE, "tl.load", "the next tile of A and of B,\nfrom memory or the L2 cache"),
        (25.5, style.GREEN, "tl.dot", "both through the Tensor Cores,\nadded to total"),
        (16.5, style.MUTED, "total", "a tile of sums in FP32;\nit stays in registers"),
        (5.5, style.GREEN, "tl.store", "once, at the end: the tile of C,\nrounded to BF16"),
    ]
    for y, colour, name, words in steps:
        box(ax, 48, y, 11, 5, name, colour, family=MONO)
        write(ax, 61, y + 2.5, words, SMALL)
    for (upper, *_), (lower, *_) in pairwise(steps):
        arrow(ax, (53.5, upper), (53.5, lower + 5), style.INK)
    arrow(ax, (48, 19), (48, 37), style.INK, bend=-0.28)
    aside(ax, 44.7, 41.2, "for each tile of the inner dimension")
    return fig


DIAGRAMS = {
    "matmul_tiles": (
        matmul_tiles,
        "Matrices A, B and C cut into tiles. One tile of C is marked, and with it the row of A's tiles and the column "
        "of B's tiles that it is made of. Steps of its program: tl.load the next tile of A and B, tl.dot multiplies "
        "both on the Tensor Cores and adds to a total in FP32 that stays in registers; repeated along the inner "
        "dimension; then tl.store writes the tile of C once.",
    ),
}
