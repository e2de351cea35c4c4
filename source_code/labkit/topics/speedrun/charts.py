"""How far do the seeds stray from their mean?"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit.display import style
from labkit.speedrun import rules
from labkit.topics.speedrun import readings

ROW = 0.8  # of the height between two entries that the seeds take


def seeds(records: Sequence[dict]) -> Figure:
    """A row an entry, a dot a seed, in their order from above: its test accuracy; the mean as a line."""
    lines = [readings.line(record) for record in records]
    with style.house_style():
        fig = style.figure(1.2 + 0.9 * len(records))
        ax = fig.subplots()
        for place, (record, line) in enumerate(zip(records, lines, strict=True)):
            rows = record["rows"]
            heights = [place + ROW * ((number + 0.5) / len(rows) - 0.5) for number in range(len(rows))]
            ax.scatter([row["accuracy_pct"] for row in rows], heights, s=12, color=style.BLUE, alpha=0.7, lw=0)
            ax.plot([line.mean_pct] * 2, [place - ROW / 2, place + ROW / 2], color=style.INK, lw=1.6)
        ax.axvline(rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yticks(range(len(lines)), [f"{line.name}\n{line.training_ms:,.1f} ms" for line in lines])
        ax.set(ylim=(len(lines) - 0.5, -0.5), xlabel="correct test digits, %")
        ax.tick_params(axis="y", length=0)
        ax.set_title(f"Each dot is one training: how many reach {rules.GOAL_PCT} % themselves?")
    return fig
