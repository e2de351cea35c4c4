"""How does a figure of this course look? One palette, one typeface, one background, for plots and diagrams.

Every figure carries its own light background, so that it reads the same on a light and on a dark page.
The palette is that of the report reader's pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from stepbudget.show.palette import (  # noqa: F401 – the colours are read from here
    BLUE,
    GREEN,
    GRID,
    IDLE,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PHASES,
    PINK,
    SKY,
    VERMILION,
    YELLOW,
    tint,
)

# What a thing is decides its colour, in every figure.
COLOURS = {
    **PHASES,
    "kernel": BLUE,
    "tensor core kernel": GREEN,
    "copy": ORANGE,
    "api": SKY,
    "idle": IDLE,
}


def phase_colour(name: str) -> str:
    """A phase's colour: the palette's, thinned, since the same colours at full strength are GPU work."""
    return tint(COLOURS.get(name, MUTED), 0.55)


WIDTH_IN = 9.0  # inches
DPI = 110  # pixels an inch while a figure is laid out
CSS_PX = 96  # an inch of a page: a figure shown as PNG is as wide as the same one as SVG
SHARP = 2  # pixels of a PNG for each of the page's, to either side: screens have as many, and readers zoom in
COLOURS_KEPT = 256  # of a PNG; drawings have few, and a picture with a palette is a third as large

RC = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same on every machine
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.fonttype": "path",  # no font needed where the image is shown
    "svg.hashsalt": "gpu-performance-lab",  # the same input gives the same file
}


@contextmanager
def house_style(formulas: bool = True):
    """Draw inside this context to get the course's look; the reader's own matplotlib settings stay untouched.

    ``formulas=False``: a ``$`` is a dollar sign, as a report's names are text, whatever they hold.
    """
    with plt.rc_context({**RC, "text.parse_math": formulas}):
        yield


def suptitle(fig: Figure, words: str) -> None:
    """What all parts of a figure are about, at its upper left."""
    fig.suptitle(words, x=0.01, ha="left", size=11, weight="bold")


def figure(high_in: float, w_pad: float = 0.12) -> Figure:
    """An empty figure as wide as the page whose parts find their places, with a margin around them."""
    return Figure(figsize=(WIDTH_IN, high_in), layout=ConstrainedLayoutEngine(w_pad=w_pad, h_pad=0.06))


@contextmanager
def chart(high_in: float, *grid: int, w_pad: float = 0.12, formulas: bool = True, **shared: Any) -> Iterator[tuple]:
    """In the course's look such a figure and its axes: one, or all of a ``grid`` of rows and columns, row by row.

    ``shared``: what else ``Figure.subplots`` takes.
    """
    with house_style(formulas):
        fig = figure(high_in, w_pad)
        axes = fig.subplots(*grid, squeeze=False, **shared)
        yield fig, axes.ravel() if grid else axes[0, 0]
