"""How does a figure get into a notebook? As a PNG, with a line of text that can be compared when the PNG cannot."""

from __future__ import annotations

import base64
import io

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.text import Text

from labkit.display import style
from labkit.display.fingerprint import FINGERPRINT_MARK, drawn_data
from labkit.display.spread import MEASURED
from stepbudget.errors import visible


def show(fig: Figure, text: str | None = None, measured: bool = True) -> None:
    """Display the figure in the notebook, then close it.

    ``text`` says in one line what it shows (default: its title); the fingerprint of what is drawn stands behind it,
    marked with ``~`` unless ``measured=False`` says that it is the same on every machine.
    """
    bundle = {"image/png": _png(fig), "text/plain": described(fig, text, measured)}
    plt.close(fig)
    display(bundle, raw=True)


def described(fig: Figure, text: str | None = None, measured: bool = True) -> str:
    """``<what it shows> [drawn data: ~<fingerprint>]``, on one line."""
    words = visible(" ".join((text or title(fig)).split()))
    mark = MEASURED if measured else ""
    return f"{words} {FINGERPRINT_MARK}{mark}{drawn_data(fig)}]"


def title(fig: Figure) -> str:
    """The figure's own title, else that of its first axes that has one."""
    titles = [fig.get_suptitle(), *(ax.get_title(loc=place) for ax in fig.axes for place in ("left", "center"))]
    return next(filter(None, titles), "figure")


def without_steering(fig: Figure) -> None:
    """No font has a sign for a character that steers a terminal: a name that holds one gets a mark in its place."""
    for text in fig.findobj(Text):
        if (plain := visible(text.get_text())) != text.get_text():
            text.set_text(plain)


def _png(fig: Figure) -> str:
    """The figure as PNG in base64, which is how a notebook keeps it."""
    file = io.BytesIO()
    without_steering(fig)
    with style.house_style():
        fig.savefig(file, format="png", dpi=style.DPI)
    return base64.b64encode(file.getvalue()).decode("ascii")
