"""How far do the seeds stray from their mean, and what did a search find?"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit.display import style
from labkit.speedrun import ranking, rules
from labkit.topics.speedrun import readings

ROW = 0.8  # of the height between two entries that the seeds take
SMALL = 8.5  # points


def seeds(records: Sequence[dict]) -> Figure:
    """A row an entry, a dot a seed, in their order from above: its test accuracy; the mean as a line."""
    lines = [readings.line(record) for record in records]
    with style.house_style():
        fig = style.figure(1.2 + 0.9 * len(records))
        ax = fig.subplots()
        for place, (record, line) in enumerate(zip(records, lines, strict=True)):
            rows = record["rows"]
            heights = [place + ROW * ((number + 0.5) / len(rows) - 0.5) for number in range(len(rows))]
            ax.scatter([row["accuracy_pct"] for row in rows], heights, s=14, color=style.BLUE, alpha=0.75, lw=0)
            ax.plot([line.mean_pct] * 2, [place - ROW / 2, place + ROW / 2], color=style.INK, lw=1.6)
        ax.axvline(rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yticks(range(len(lines)), [f"{line.name}\n{line.training_ms:,.1f} ms" for line in lines])
        ax.set(ylim=(len(lines) - 0.5, -0.5), xlabel="correct test digits, %")
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        style.suptitle(
            fig, f"A dot a training, a line at the mean; red: the {rules.GOAL_PCT} % that the mean must reach"
        )
    return fig


def tries(search: dict) -> Figure:
    """What a search tried: milliseconds across, correct held-out digits upwards; the chosen settings ringed."""
    first, second, chosen = readings.tried(search, 1), readings.tried(search, 2), readings.chosen(search)
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        ax.scatter(*_places(first), s=16, color=style.MUTED, alpha=0.6, lw=0, label=_label("first round", first))
        across, up = _places(second)
        errors = [row["error_pct"] for row in second]
        ax.errorbar(across, up, errors, fmt="o", ms=4.5, color=style.BLUE, lw=1, label=_label("second round", second))
        if chosen:
            ring = (chosen["median_ms"], chosen["mean_pct"])
            word = "chosen" if ranking.reaches(chosen) else "best, and short of the goal"
            ax.plot(*ring, "o", ms=13, mfc="none", mec=style.VERMILION, mew=1.5, label=word)
        ax.axhline(rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.grid(axis="y")
        ax.set(xlabel="milliseconds of a training (on 50,000 digits)", ylabel="correct held-out digits, %")
        ax.set_xlim(left=0)
        ax.legend(loc="lower right", fontsize=SMALL)
        style.suptitle(
            fig, f"{search['entry'].removesuffix('.py')}: each dot is one recipe; the line is {rules.GOAL_PCT} %"
        )
    return fig


def _places(rows: list[dict]) -> tuple[list[float], list[float]]:
    return [row["median_ms"] for row in rows], [row["mean_pct"] for row in rows]


def _label(what: str, rows: list[dict]) -> str:
    return f"{what}, {rows[0]['seeds']} seeds a recipe" if rows else f"{what}: none"
