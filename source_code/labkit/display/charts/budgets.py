"""Where did each step's time go? Budgets side by side as stacked bars: in milliseconds, or in per cent.

GPU work is drawn in greens and blues, what the GPU waited for in warm and neutral colours, and what nobody could
explain in hatched grey. Neighbours in a bar differ in lightness or hatch too, so that no reader needs the hues.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.display import style
from stepbudget.ask.budget import CAUSES, Budget
from stepbudget.show import palette
from stepbudget.show.palette import ink_on
from stepbudget.show.words import three

HATCHES = {"": None, "/": "////", "\\": "\\\\\\", "x": "xxx", ".": "..."}  # for matplotlib: the more, the denser
LOOKS: dict[str, tuple[str, str | None]] = {  # colour and hatch
    cause: (look.light, HATCHES[look.hatch]) for cause, look in palette.CAUSES.items()
}
REST = "rest"  # causes that are too small for a place in the key
DRAWN = LOOKS | {REST: (style.IDLE, None)}
WORDS = CAUSES | {REST: "the rest"}
HATCH_ON = {"unexplained": style.MUTED}  # the hatch's colour where paper would not show

SMALL = 8.5  # points
LETTER_IN = 0.6 * SMALL / 72  # an upper estimate of a letter's width: labels must not depend on the font's metrics
BAR_IN, THICK = 0.5, 0.64  # height of a bar's place in inches, and the bar's share of it
TOP_IN, AXIS_IN, KEY_LINE_IN, KEY_COLUMNS = 0.5, 0.62, 0.21, 4
LEFT_IN, BESIDE_IN, MARGIN_IN = 0.3, 1.0, 0.15  # left of the names; for words beside the longest bar; at the right


def budget_bars(budgets: Mapping[str, Budget]) -> Figure:
    """One bar a budget, as long as its window in ms; a segment a cause, as long as the time it took.

    ``budgets``: name of the bar → ``stepbudget.ask.budget.Budget``, the first on top. A segment carries its
    milliseconds where they fit, and its cause too where there is room; the key names all causes that
    occur, in the budgets' order.
    """
    longest = max(budget.window.duration_ms for budget in budgets.values())
    ends = {name: f"{three(budget.window.duration_ms)} ms" for name, budget in budgets.items()}
    ms = {name: budget.ms for name, budget in budgets.items()}
    return _bars(ms, longest, ends, "milliseconds", "", "Where the training epoch's time goes")


def budget_share_bars(
    budgets: Mapping[str, Budget], least: float = 0, title: str = "What the training epoch's time goes to"
) -> Figure:
    """The same, each bar scaled to 100 % of its window: how the causes' shares move from step to step.

    Causes that reach ``least`` per cent in none of the bars are drawn as one, the rest.
    """
    shares = {name: {cause: 100 * part for cause, part in own.fractions.items()} for name, own in budgets.items()}
    small = [cause for cause in CAUSES if all(own.get(cause, 0) < least for own in shares.values())]
    for own in shares.values():
        own[REST] = sum(own.pop(cause, 0) for cause in small)
    ends = {name: f"of {three(budget.window.duration_ms)} ms" for name, budget in budgets.items()}
    return _bars(shares, 100, ends, "per cent of the window", " %", title)


def _bars(
    parts: Mapping[str, Mapping[str, float]],
    longest: float,
    ends: Mapping[str, str],
    axis: str,
    unit: str,
    title: str,
) -> Figure:
    causes = [cause for cause in WORDS if any(own.get(cause, 0) > 0 for own in parts.values())]
    lines = -(-len(causes) // KEY_COLUMNS)
    high = TOP_IN + BAR_IN * len(parts) + AXIS_IN + KEY_LINE_IN * lines
    left = LEFT_IN + LETTER_IN * 1.15 * max(map(len, parts), default=0)
    wide = style.WIDTH_IN - left - MARGIN_IN
    with style.house_style(formulas=False):
        fig = Figure(figsize=(style.WIDTH_IN, high))
        bottom = AXIS_IN + KEY_LINE_IN * lines
        place = (left / style.WIDTH_IN, bottom / high, wide / style.WIDTH_IN, BAR_IN * len(parts) / high)
        ax = fig.add_axes(place)
        reach = longest * wide / (wide - BESIDE_IN) or 1
        ax.set(xlim=(0, reach), ylim=(len(parts) - 0.5, -0.5), xlabel=axis)
        ax.set_yticks(range(len(parts)), list(parts))
        ax.tick_params(axis="y", length=0)
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.spines["left"].set_visible(False)
        ax.set_title(title, pad=10)
        for y, (name, own) in enumerate(parts.items()):
            start = 0.0
            for cause in causes:
                length = own.get(cause, 0.0)
                if length > 0:
                    _segment(ax, y, start, length, cause)
                    number = f"{length:.1f}{unit}" if unit else three(length)
                    _label(ax, start + length / 2, y, length / reach * wide, cause, number)
                start += length
            ax.annotate(ends[name], (start, y), (7, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
        _key(fig, causes)
    return fig


def _segment(ax: Axes, y: float, start: float, length: float, cause: str) -> None:
    colour, hatch = DRAWN[cause]
    line = HATCH_ON.get(cause, style.PAPER)
    ax.barh(y, length, THICK, left=start, color=colour, hatch=hatch, edgecolor=line, linewidth=0)


def _label(ax: Axes, x: float, y: float, room_in: float, cause: str, number: str) -> None:
    """The number and, where there is room, the cause above it; nothing where neither fits."""
    colour, hatch = DRAWN[cause]
    look = {"ha": "center", "va": "center", "size": SMALL, "linespacing": 1.15, "color": ink_on(colour)}
    if hatch:  # words on a hatch need a ground of their own
        look |= {"bbox": {"facecolor": colour, "edgecolor": "none", "pad": 1.2}}
    for words in (f"{WORDS[cause]}\n{number}", number):
        if LETTER_IN * (max(map(len, words.split("\n"))) + 1) < room_in:
            ax.text(x, y, words, **look)
            return


def _key(fig: Figure, causes: list[str]) -> None:
    """All causes that occur, in their order, row by row."""
    handles = [
        Patch(
            facecolor=DRAWN[cause][0],
            hatch=DRAWN[cause][1],
            edgecolor=HATCH_ON.get(cause, style.PAPER),
            linewidth=0,
            label=WORDS[cause],
        )
        for cause in causes
    ]
    # matplotlib fills a key column by column
    by_row = [handle for column in range(KEY_COLUMNS) for handle in handles[column::KEY_COLUMNS]]
    high = fig.get_figheight()
    fig.legend(
        handles=by_row,
        loc="lower left",
        bbox_to_anchor=(MARGIN_IN / style.WIDTH_IN, 0.06 / high),
        ncols=min(KEY_COLUMNS, max(1, len(handles))),
        fontsize=SMALL,
        handlelength=1.3,
        handletextpad=0.5,
        columnspacing=1.6,
        borderpad=0,
        borderaxespad=0,
    )
