"""How far do the seeds stray from their mean, and what did a search find?"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit.display import style
from labkit.labs.lab28.entries import line
from labkit.labs.lab28.searches import chosen, tried
from labkit.speedrun import ranking, rules

ROW = 0.8  # of the height between two entries that the seeds take
SMALL = 8.5  # points
MARKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)  # per cent of wrong digits


def seeds_chart(records: Sequence[dict]) -> Figure:
    """A row an entry, a dot a seed, in their order from above: its test accuracy; the mean as a line."""
    lines = [line(record) for record in records]
    with style.house_style():
        fig = style.figure(1.2 + 0.9 * len(records))
        ax = fig.subplots()
        for place, (record, own) in enumerate(zip(records, lines, strict=True)):
            rows = record["rows"]
            heights = [place + ROW * ((number + 0.5) / len(rows) - 0.5) for number in range(len(rows))]
            ax.scatter([row["accuracy_pct"] for row in rows], heights, s=14, color=style.BLUE, alpha=0.75, lw=0)
            ax.plot([own.mean_pct] * 2, [place - ROW / 2, place + ROW / 2], color=style.INK, lw=1.6)
        ax.axvline(rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yticks(range(len(lines)), [f"{own.name}\n{own.training_ms:,.1f} ms" for own in lines])
        ax.set(ylim=(len(lines) - 0.5, -0.5), xlabel="correct test digits, %")
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        style.suptitle(
            fig, f"A dot a training, a line at the mean; orange: the {rules.GOAL_PCT} % that the mean must reach"
        )
    return fig


def tries(search: dict) -> Figure:
    """What a search tried: milliseconds across, correct held-out digits upwards; the chosen settings ringed.

    Upwards the wrong digits halve from mark to mark, for near the goal a tenth of a per cent is much.
    """
    first, second, best = tried(search, 1), tried(search, 2), chosen(search)
    with style.house_style():
        fig = style.figure(3.8)
        ax = fig.subplots()
        ax.scatter(*_places(first), s=18, color=style.MUTED, alpha=0.7, lw=0, label=_label("first round", first))
        across, wrong = _places(second)
        ax.scatter(across, wrong, s=26, color=style.BLUE, lw=0, label=_label("second round", second))
        ax.vlines(across, *([100 - row["mean_pct"] + sign * row["error_pct"] for row in second] for sign in (-1, 1)),
                  color=style.BLUE, lw=1)  # fmt: skip
        if best["settings"]:
            word = "chosen" if ranking.reaches(best) else "best, and short of the goal"
            ring = _places([best])
            ax.plot(*ring, "o", ms=13, mfc="none", mec=style.VERMILION, mew=1.5, label=word)
        ax.axhline(100 - rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yscale("log")
        ax.set_yticks(MARKS, [f"{100 - wrong:g}" for wrong in MARKS])
        ax.minorticks_off()
        shown = [100 - row["mean_pct"] for row in (*first, *second)] or [1.0]
        ax.set_ylim(1.15 * max(shown), 0.9 * min(shown))
        ax.grid(axis="y")
        ax.set(
            xlabel="milliseconds of a training, on the digits that are not held out",
            ylabel="correct held-out digits, %\n(logarithmic in the wrong ones)",
        )
        ax.set_xlim(left=0)
        ax.legend(loc="lower right", fontsize=SMALL)
        style.suptitle(fig, f"{search['entry'].removesuffix('.py')}: a dot a recipe; the line is {rules.GOAL_PCT} %")
    return fig


def _places(rows: list[dict]) -> tuple[list[float], list[float]]:
    """Milliseconds, and wrong digits in per cent."""
    return [row["median_ms"] for row in rows], [100 - row["mean_pct"] for row in rows]


def _label(what: str, rows: list[dict]) -> str:
    return f"{what}, {rows[0]['seeds']} seeds a recipe" if rows else f"{what}: none"
