"""How does a figure get into a notebook? As a PNG, with a line of text that can be compared when the PNG cannot.

It has twice the pixels that it is shown with, and says how wide it is to be shown, and in words what it shows.
"""

from __future__ import annotations

import base64
import io

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from labkit.display import style
from labkit.display.fingerprint import FINGERPRINT_MARK, drawn_data
from stepbudget.errors import visible


def show(fig: Figure, text: str | None = None) -> None:
    """Display the figure in the notebook, then close it.

    ``text`` says in one line what it shows (default: its title); the fingerprint of what is drawn stands behind it.
    """
    bundle = {"image/png": _png(fig), "text/plain": described(fig, text)}
    about = {"width": round(style.CSS_PX * fig.get_figwidth()), "alt": alternative(fig, text)}
    plt.close(fig)
    display(bundle, raw=True, metadata={"image/png": about})


def described(fig: Figure, text: str | None = None) -> str:
    """``<what it shows> [drawn data: <fingerprint>]``, on one line."""
    words = visible(" ".join((text or title(fig)).split()))
    return f"{words} {FINGERPRINT_MARK}{drawn_data(fig)}]"


def title(fig: Figure) -> str:
    """The figure's own title, else that of its first axes that has one."""
    return next(iter(_titles(fig)), "figure")


def alternative(fig: Figure, text: str | None = None) -> str:
    """What the figure shows, for who cannot see it: its titles, its axes, what its colours stand for."""
    axes = [ax for ax in fig.axes if ax.get_visible() and ax.axison]
    labels = [label for ax in axes for label in (ax.get_xlabel(), ax.get_ylabel())]
    keys = [*fig.legends, *(legend for ax in axes if (legend := ax.get_legend()))]
    parts = {
        "": [*([text] if text else []), *_titles(fig)],
        "axes: ": labels,
        "key: ": [word.get_text() for key in keys for word in key.get_texts()],
    }
    said = [f"{what}{', '.join(words)}" for what, found in parts.items() if (words := _once(found))]
    return "; ".join(said) or "figure"


def _titles(fig: Figure) -> list[str]:
    titles = [fig.get_suptitle(), *(ax.get_title(loc=place) for ax in fig.axes for place in ("left", "center"))]
    return _once(titles)


def _once(words: list[str]) -> list[str]:
    """Each on one line, the first time that it comes."""
    return [*dict.fromkeys(line for word in words if (line := " ".join(word.split())))]


def without_steering(fig: Figure) -> None:
    """No font has a sign for a character that steers a terminal: a name that holds one gets a mark in its place."""
    for text in fig.findobj(Text):
        if (plain := visible(text.get_text())) != text.get_text():
            text.set_text(plain)


def _png(fig: Figure) -> str:
    """The figure as PNG in base64, which is how a notebook keeps it; with a palette, which no eye sees."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    without_steering(fig)
    with style.house_style():
        fig.savefig(drawn, format="png", dpi=style.SHARP * style.CSS_PX)
    image = Image.open(drawn).convert("RGB").quantize(style.COLOURS_KEPT, dither=Image.Dither.NONE)
    image.save(packed, "png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode("ascii")
