"""What does a rank hold, as a picture? States that are shared out, and activations that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import bar, bar_axes, beside, key, reach
from labkit.topics.sharding.memory import Network, Way

COLOURS = dict(
    zip(
        ("weights", "gradients", "Adam's moments", "BF16 copies", "activations"),
        (style.BLUE, style.VERMILION, style.ORANGE, style.SKY, style.GREEN),
        strict=True,
    )
)


def held(network: Network, ways: Sequence[Way], activations: Mapping[str, float], title: str) -> Figure:
    """A bar a way: GB on a rank by kind. ``activations``: bytes of those, by share."""
    parts = {way.label: way.held(network) | {"activations": activations[way.share]} for way in ways}
    longest = max(sum(own.values()) for own in parts.values()) / 1e9
    with style.house_style():
        fig, ax = bar_axes(list(parts), title, "GB on each rank")
        reach(ax, longest, words_in=0.9)
        for y, own in enumerate(parts.values()):
            left = 0.0
            for kind, size in own.items():
                bar(ax, y, left, size / 1e9, COLOURS[kind])
                left += size / 1e9
            beside(ax, left, y, f"{left:.1f} GB")
        key(fig, COLOURS, len(COLOURS))
    return fig
