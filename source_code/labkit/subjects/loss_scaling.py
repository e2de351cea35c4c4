"""How does a loss scale move? The one that GradScaler begins with, and scales over the iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from labkit.display import style

FIRST_SCALE = 2.0**16
SEED_COLOURS = [style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PINK]


def scales(lines: Mapping[str, Sequence[dict]], reach: Sequence[int], title: str) -> Figure:
    """The loss scale over the iterations, as powers of two: a line a seed; a tick below where a step was skipped.

    ``lines``: a panel's name → dicts with ``scale_changes``, (iteration, new scale) pairs, and ``skipped``, iterations;
    ``reach``: up to which iteration each panel goes.
    """
    every = [change[1] for seeds in lines.values() for own in seeds for change in own["scale_changes"]]
    low, high = math.log2(min(every)), math.log2(max(every))
    below = 0.04 * (high - low) + 0.3  # between the lowest scale and the first seed's ticks, and from seed to seed
    with style.chart(3.2, 1, len(lines), sharey=True, w_pad=0.1) as (fig, axes):
        for ax, (name, seeds), end in zip(axes, lines.items(), reach, strict=True):
            for number, own in enumerate(seeds):
                at = [change[0] for change in own["scale_changes"]]
                size = [math.log2(change[1]) for change in own["scale_changes"]]
                colour = SEED_COLOURS[number % len(SEED_COLOURS)]
                ax.step([*at, max(end, at[-1])], [*size, size[-1]], where="post", color=colour, lw=1.3)
                ax.plot(own["skipped"], [low - below * (number + 1)] * len(own["skipped"]), "|", color=colour, ms=6)
            ax.set(title=name, xlabel="iteration", xlim=(-0.02 * end, 1.02 * end))
            ax.grid(axis="y")
        axes[0].set_ylim(low - below * (1 + max(map(len, lines.values()))), high + below)
        apart = 4 if high - low > 10 else 1
        ticks = range(apart * math.floor(low / apart), math.ceil(high) + 1, apart)
        axes[0].set_yticks(list(ticks), [f"$2^{{{tick}}}$" for tick in ticks])
        axes[0].set_ylabel("loss scale")
        style.suptitle(fig, title)
        fig.supxlabel("a colour a seed; the ticks below: skipped steps", size=9, color=style.MUTED)
    return fig
