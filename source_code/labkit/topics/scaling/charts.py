"""What do more GPUs bring, as a picture? Measured efficiency, and the model's line to a thousand GPUs."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from labkit.display import style
from labkit.topics.scaling import model, readings
from labkit.topics.scaling.readings import PROGRAMS

COLOURS = dict(zip(PROGRAMS, (style.BLUE, style.SKY, style.VERMILION, style.GREEN), strict=True))
ASIDE = dict(zip(PROGRAMS, (0.92, 0.97, 1.03, 1.08), strict=True))  # points beside one another
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def efficiency(kind: str, where: Path | None = None) -> Figure:
    """Percent of what as many single GPUs do, by number of GPUs: the model's lines, and points with their ranges.

    Both are held against the program's own run on one GPU. A line ends where the batch does.
    """
    runs = readings.frame(readings.records(where))
    runs = runs[runs["scaling"] == kind]
    found = [one for one in model.ahead(where, SIZES) if one.scaling == kind and one.is_possible]
    with style.house_style():
        fig = style.figure(3.6)
        ax = fig.subplots()
        for program in dict.fromkeys(one.job.program for one in found):
            line = [one for one in found if one.job.program == program]
            shares = [100 * model.efficiency(one, line[0]) for one in line]
            colour = COLOURS[program]
            dashes = "--" if PROGRAMS[program].network == "digits" else "-"  # lines that lie on one another are seen
            ax.plot([one.n for one in line], shares, dashes, color=colour, lw=1.6, label=PROGRAMS[program].label)
            own = runs[runs["program"] == program]
            for size in sorted({*own["ranks"]} - {1}):
                gain = readings.gained(own, program, kind, size)
                if gain:
                    low, middle, high = (100 * part / size for part in (gain.low, gain.median, gain.high))
                    reach = [[middle - low], [high - middle]]
                    ax.errorbar(
                        [size * ASIDE[program]], [middle], yerr=reach, fmt="o", color=colour, ms=5, capsize=3, lw=1
                    )
        ax.set_xscale("log", base=2)
        ax.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
        ax.set(xlabel="GPUs, 8 a host", ylabel="% of its own run on one GPU", ylim=(0, 125))
        ax.set_title(f"{kind.capitalize()} scaling: lines are the model's, points are measured")
        ax.legend(loc="best", fontsize=8.5)
    return fig
