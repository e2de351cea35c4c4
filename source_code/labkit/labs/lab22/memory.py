"""What does a rank hold of a network, and how large may it be? On paper, from the number of its weights.

Trained in FP32 with Adam, a weight takes four numbers: itself, its gradient, and two moments, sixteen bytes. (So many
counts Rajbhandari et al., "ZeRO", SC 2020, section 3.1, but of another make: weights and gradients in FP16, and the
weights once more in FP32, beside the moments.) These *states* are what FSDP shares out among n ranks, an n-th each
(Zhao et al., "PyTorch FSDP", VLDB 2023). *Activations*, which go with the samples a rank has, it leaves alone.

Two moments can be the fullest. As the backward pass begins, all activations are there, and numbers in BF16 to compute
with: under DDP and autocast a copy of every weight, under FSDP those of the blocks that are gathered just then. DDP's
gradients stay in their buckets from step to step; FSDP's are freed with ``zero_grad()`` and made block by block in the
backward pass. As it ends, activations and DDP's copies are gone, and FSDP's gradients there, those of the last block
whole in FP32, to be added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import SMALL, bar, bar_axes, beside, key, reach

FP32, BF16 = 4, 2  # bytes
NUMBERS = {"weights": 1, "gradients": 1, "Adam's moments": 2}  # kept in FP32, for each weight
H200_BYTES = 141e9  # its data sheet; the driver finds 150e9, not all of which a program can use
COLOURS = dict(zip(NUMBERS, (style.BLUE, style.VERMILION, style.ORANGE), strict=True))


@dataclass(frozen=True)
class Network:
    """A transformer's weights: of each block, and outside of the blocks."""

    width: int
    depth: int
    outside: int

    @classmethod
    def of(cls, width: int, depth: int, weights: int) -> Network:
        """The one that has so many weights in all."""
        return cls(width, depth, weights - cls(width, depth, 0).weights)

    @property
    def block(self) -> int:
        """12·w² weights in four linear layers, 13·w in their biases and the two norms."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def weights(self) -> int:
        return self.outside + self.depth * self.block


@dataclass(frozen=True)
class Way:
    """How a network is shared out: ``ddp`` or ``fsdp``, among how many ranks, how many blocks are gathered at once."""

    share: str
    ranks: int
    gathered: int = 2  # the block that computes, and the next

    @property
    def label(self) -> str:
        return "DDP" if self.share == "ddp" else f"FSDP on {self.ranks}"

    @property
    def parts(self) -> int:
        """Into how many parts the states are cut."""
        return self.ranks if self.share == "fsdp" else 1

    def held(self, network: Network) -> dict[str, float]:
        """Bytes on a rank: each kind of state, and the copies to compute with."""
        states = {kind: FP32 * count * network.weights / self.parts for kind, count in NUMBERS.items()}
        copied = network.weights if self.share == "ddp" else self.gathered * network.block
        return states | {"BF16 copies": float(BF16 * copied)}

    def moments(self, network: Network, activations: float = 0.0) -> dict[str, float]:
        """Bytes of these and of ``activations`` as the backward pass begins, and as it ends."""
        held = self.held(network)
        everything = sum(held.values())
        if self.share == "ddp":
            return {"begins": everything + activations, "ends": everything - held["BF16 copies"]}
        return {"begins": everything - held["gradients"] + activations, "ends": everything + FP32 * network.block}

    def fullest(self, network: Network, activations: float = 0.0) -> float:
        """Bytes at the fuller of the two moments."""
        return max(self.moments(network, activations).values())


def states_bars(parts: Mapping[int, float], width: int) -> Figure:
    """The states on each rank in GB, a bar a number of GPUs, by kind; a line where one GPU is full."""
    labels = ["one GPU, or DDP" if ranks == 1 else f"sharded, {ranks} GPUs" for ranks in parts]
    with style.house_style():
        fig, ax = bar_axes(labels, f"States of a transformer {width:,} wide, on paper", "GB on each GPU")
        reach(ax, max(*parts.values(), H200_BYTES / 1e9), words_in=0.9)
        for y, whole in enumerate(parts.values()):
            left = 0.0
            for kind, count in NUMBERS.items():
                part = whole * count / sum(NUMBERS.values())
                bar(ax, y, left, part, COLOURS[kind])
                left += part
            beside(ax, left, y, f"{left:.1f} GB")
        ax.axvline(H200_BYTES / 1e9, color=style.INK, linestyle="--", linewidth=1)
        full = f"one H200 is full: {H200_BYTES / 1e9:.0f} GB"
        look = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
        ax.annotate(full, (H200_BYTES / 1e9, len(parts) - 1), size=SMALL + 0.5, **look)
        key(fig, COLOURS, len(COLOURS))
    return fig
