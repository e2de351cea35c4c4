"""What did each mend promise, and what did it bring? A bar a mend, with the mark of its bound."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.display import style
from labkit.display.charts.bars import SMALL, THICK, bar, bar_axes, beside, reach
from labkit.topics.own_model.mends import AS_IT_WAS
from labkit.topics.own_model.readings import Scored
from stepbudget.say.palette import tint

BOUND = "at best, by the report before"


def steps(scored: Sequence[Scored], title: str) -> Figure:
    """Milliseconds of a step, as it was and after each mend: median, each round a dot, and where the bound lay."""
    names = [AS_IT_WAS, *(one.mend.label for one in scored)]
    taken = [scored[0].before, *(one.after for one in scored)]
    longest = max(own.high for own in taken)
    with style.house_style():
        fig, ax = bar_axes(names, title, "milliseconds a step: median, each round a dot (×: against the first row)")
        reach(ax, longest, words_in=1.3)
        marks = [0.0, *(one.best_ms for one in scored)]
        for y, (own, mark) in enumerate(zip(taken, marks, strict=True)):
            bar(ax, y, 0, own.median, tint(style.COLOURS["kernel"], 0.7))
            ax.plot(own.values, [y] * own.n, "o", ms=4, mfc=style.PAPER, mec=style.INK, mew=0.9)
            factor = f"   {taken[0].median / own.median:.2f}×" if y else ""
            beside(ax, max(own.high, mark), y, f"{own.median:.1f} ms{factor}")
            if y:
                ax.plot([mark, mark], [y - THICK / 2, y + THICK / 2], color=style.VERMILION, lw=2.4)
        look = {"color": style.VERMILION, "marker": "|", "ms": 12, "mew": 2.4, "lw": 0}
        fig.legend(handles=[Line2D([], [], label=BOUND, **look)], loc="outside lower center", fontsize=SMALL + 0.5)
    return fig
