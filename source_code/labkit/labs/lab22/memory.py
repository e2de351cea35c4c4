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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import bar, bar_axes, beside, key, reach
from labkit.errors import LabError
from stepbudget.show.table import Table, table

FP32, BF16 = 4, 2  # bytes
NUMBERS = {"weights": 1, "gradients": 1, "Adam's moments": 2}  # kept in FP32, for each weight
H200_BYTES = 141e9  # its data sheet; the driver finds 150e9, not all of which a program can use
COLOURS = dict(
    zip(
        ("weights", "gradients", "Adam's moments", "BF16 copies", "activations"),
        (style.BLUE, style.VERMILION, style.ORANGE, style.SKY, style.GREEN),
        strict=True,
    )
)


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


def deepest(way: Way, width: int, block_bytes: float, room: float = H200_BYTES) -> int:
    """How many blocks of a width fit, with so many bytes of activations a block; the embedding left aside.

    LabError where not even one does.
    """
    one, two = (way.moments(Network(width, depth, 0), depth * block_bytes) for depth in (1, 2))
    blocks = min(int((room - 2 * one[when] + two[when]) // (two[when] - one[when])) for when in one)
    if blocks < 1:
        raise LabError(f"{way.label}: not one block of width {width} fits into {room / 1e9:.0f} GB.")
    return blocks


def kept(network: Network, ways: Sequence[Way]) -> Table:
    """On paper: what a rank keeps of the network from step to step, in GB, by kind and way."""
    columns = {way.label: [held for kind, held in way.held(network).items() if kind in NUMBERS] for way in ways}
    frame = pd.DataFrame({"kept in FP32": [*NUMBERS, "all"]})
    for label, own in columns.items():
        frame[label] = [part / 1e9 for part in (*own, sum(own))]
    caption = f"On paper: states of {network.weights:,} weights on each rank, GB"
    return table(frame, caption, dict.fromkeys(columns, "{:.3f}"), totals=[-1])


def depths(width: int, block_bytes: dict[str, float], ways: Sequence[Way], sequences: Sequence[int]) -> Table:
    """On paper: how many blocks of a width fit into an H200; ``block_bytes``: activations of a sequence, by share."""
    rows = []
    for way in ways:
        row: dict = {"way": way.label}
        for count in sequences:
            blocks = deepest(way, width, count * block_bytes[way.share])
            row[f"blocks, {count} a GPU"] = blocks
            row[f"billion weights, {count} a GPU"] = blocks * Network(width, 1, 0).block / 1e9
        rows.append(row)
    frame = pd.DataFrame(rows)
    formats = {name: "{:,.0f}" if name.startswith("blocks") else "{:.1f}" for name in frame if name != "way"}
    caption = f"On paper: the deepest network of width {width:,} on GPUs of {H200_BYTES / 1e9:.0f} GB, "
    caption += "by the sequences that each GPU has"
    return table(frame, caption, formats)


def held_bars(network: Network, ways: Sequence[Way], activations: Mapping[str, float], title: str) -> Figure:
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
