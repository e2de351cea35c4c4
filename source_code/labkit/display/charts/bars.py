"""What are this course's bar charts made of? Axes, bars, the words beside them, and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style

SMALL = 8.5  # points
LETTER_IN = 0.6 * SMALL / 72  # an upper estimate of a letter's width
PLOT_IN = 7.2  # about how wide the bars' part of a chart is
BAR_IN, THICK = 0.46, 0.62  # height of a bar's place in inches, and the bar's share of it


def bar_axes(names: Sequence[str], title: str, unit: str) -> tuple[Figure, Axes]:
    """An empty chart with room for one horizontal bar a name, the first one on top."""
    fig = style.figure(1.25 + BAR_IN * len(names))
    ax = fig.subplots()
    ax.set(ylim=(len(names) - 0.4, -0.6), title=title, xlabel=unit)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return fig, ax


def bar(ax: Axes, y: float, left: float, width: float, colour: str) -> None:
    """A horizontal bar, or a part of one; nothing where it has no width."""
    if width > 0:
        ax.barh(y, width, THICK, left=left, color=colour, edgecolor=style.PAPER, linewidth=0)


def beside(ax: Axes, end: float, y: float, words: str) -> None:
    """What a bar amounts to, right of its end."""
    ax.annotate(words, (end, y), (7, 0), textcoords="offset points", va="center", size=SMALL + 0.5)


def reach(ax: Axes, longest: float, words_in: float) -> None:
    """Let the time axis reach so far that so many inches are left for words beside the longest bar."""
    ax.set_xlim(0, longest * PLOT_IN / (PLOT_IN - words_in))


def seconds(value: float) -> str:
    """Three significant digits, no exponent: 0.031, 4.34, 13.4, 134."""
    decimals = next((d for d, limit in enumerate((100, 10, 1)) if value >= limit), 3)
    return f"{value:.{decimals}f}"


def key(fig: Figure, kinds: Mapping[str, str], columns: int) -> None:
    """What the colours mean, under the chart: label → colour."""
    look = {"edgecolor": style.PAPER, "linewidth": 0}
    handles = [Patch(facecolor=colour, label=label, **look) for label, colour in kinds.items()]
    look = {"fontsize": SMALL + 0.5, "handlelength": 1.2, "handletextpad": 0.5, "columnspacing": 1.5}
    fig.set_figheight(fig.get_figheight() + 0.2 * -(-len(handles) // columns))
    fig.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
