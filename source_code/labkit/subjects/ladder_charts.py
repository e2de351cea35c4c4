"""What does the ladder look like, honestly? Each rung's loop and whole process, side by side, and the floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from labkit.display import style
from labkit.display.spread import spread
from labkit.subjects.ladder import epochs_words

SMALL = 8.5  # points
ROW_IN = 0.5
FIELDS = {"training_s": ("training loop", style.BLUE), "process_s": ("whole process", style.INK)}
EACH_RUN = "large: median, small: each run"


def ladder(runs: Mapping[str, Sequence[dict]], floor_s: float | None = None) -> Figure:
    """Each rung's training loop and whole process, seconds on a logarithmic axis; each run a dot; and a floor."""
    spreads = {field: [spread(records, field) for records in runs.values()] for field in FIELDS}
    longest = max(own.high for own in spreads["process_s"])
    shortest = floor_s or min(own.low for own in spreads["training_s"]) / 4  # room for the words at its left
    trained = epochs_words(max(len(records[0]["epochs"]) for records in runs.values()))
    with style.chart(1.6 + ROW_IN * len(runs)) as (fig, ax):
        if floor_s:
            ax.axvspan(floor_s / 10, floor_s, color=style.IDLE, alpha=0.45, lw=0)
            ax.axvline(floor_s, color=style.VERMILION, lw=1.6)
            words = f"the floor: {1e3 * floor_s:.0f} ms"
            look = {"size": SMALL + 0.5, "weight": "bold", "color": style.VERMILION}
            ax.annotate(words, (floor_s, -0.62), (5, 0), textcoords="offset points", va="center", **look)
        for field, (_, colour) in FIELDS.items():
            medians = [own.median for own in spreads[field]]
            ax.plot(medians, range(len(runs)), color=colour, lw=1.2, alpha=0.35, zorder=2)
            for y, (own, records) in enumerate(zip(spreads[field], runs.values(), strict=True)):
                ax.plot([own.low, own.high], [y, y], color=colour, lw=1.6, zorder=3)
                ax.plot([record[field] for record in records], [y] * own.n, "o", ms=3, color=colour, zorder=4)
                ax.plot([own.median], [y], "o", ms=8, color=colour, mec=style.PAPER, mew=1, zorder=5)
                factor = medians[0] / own.median
                words = f"{_seconds(own.median)}" + (f"  {_times(factor)}" if y else "")
                at_left = field == "training_s"
                beside = {"ha": "right", "xytext": (-9, 0)} if at_left else {"ha": "left", "xytext": (9, 0)}
                look = {"textcoords": "offset points", "va": "center", "size": SMALL + 0.5, "zorder": 6}
                look["bbox"] = {"facecolor": style.PAPER, "lw": 0, "pad": 0.5}  # the line to the next rung ends here
                ax.annotate(words, (own.low if at_left else own.high, y), **beside, **look)
        ax.set(
            xscale="log",
            xlim=(shortest / 1.7, longest * 3.5),
            ylim=(len(runs) - 0.55, -0.95),
            xlabel=f"seconds, {trained}",
        )
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_formatter(lambda value, _: "")
        ax.set_yticks(range(len(runs)), list(runs))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x", lw=0.6)
        ax.set_title("The whole ladder, and the floor under it")
        handles = [
            Line2D([], [], color=colour, marker="o", ms=7, lw=1.2, label=label) for label, colour in FIELDS.values()
        ]
        handles.append(Line2D([], [], color=style.MUTED, marker="o", ms=3, lw=1.2, label=EACH_RUN))
        fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=SMALL + 0.5)
    return fig


def _seconds(value: float) -> str:
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def _times(factor: float) -> str:
    return f"{factor:.0f}×" if factor >= 9.95 else f"{factor:.1f}×"
