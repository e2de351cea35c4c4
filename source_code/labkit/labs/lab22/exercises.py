"""The exercises of lab 22: bytes that move while nothing is computed, the fewest GPUs, and how to share out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.labs.lab22 import measured
from labkit.labs.lab22.memory import BF16, FP32, H200_BYTES, NUMBERS
from stepbudget.ask.ranks import Ranks

# Exposed transfer


def _of_first(pair: Ranks, *columns: str, function: str = "") -> float:
    """Of rank 0's step: the first column less the others, over its collectives or those of one function."""
    own = measured.overlap(pair)
    own = own[(own["rank"] == 0) & own["function"].str.contains(function)]
    return float(own[columns[0]].sum() - sum(own[column].sum() for column in columns[1:]))


EXPOSED = Number(
    READ,
    "Transfer, less what of it is hidden, of all-gathers and reduce-scatters: two rows of the table.",
    right=lambda pair: _of_first(pair, "transfer_ms", "hidden_ms"),
    wrong={
        "that is the whole transfer: for a part of it the GPU computes": lambda pair: _of_first(pair, "transfer_ms"),
        "that is what is hidden: the rest is asked for": lambda pair: _of_first(pair, "hidden_ms"),
        "those are the all-gathers alone: there is another row": lambda pair: _of_first(
            pair, "transfer_ms", "hidden_ms", function="AllGather"
        ),
        "while it waits for the other rank, nothing moves": lambda pair: _of_first(pair, "total_ms", "hidden_ms"),
        "that is of all steps in the report: one is asked for": lambda pair: (
            measured.steps(pair) * _of_first(pair, "transfer_ms", "hidden_ms")
        ),
    },
    within=0.05,  # the table's shares are rounded
)

# The least number of GPUs

STATES = FP32 * sum(NUMBERS.values())  # bytes a weight


def _gpus(weights: float, a_weight: float, room: float, rounded: Callable[[float], int] = math.ceil) -> float:
    return float(rounded(weights * a_weight / room))


LEAST = Number(
    BOUND,
    "Bytes of states for each weight, shared out among so many that each part fits into what a GPU has left.",
    right=lambda weights, other: _gpus(weights, STATES, H200_BYTES - other),
    wrong={
        "so many parts are a little too large: round up": lambda weights, other: _gpus(
            weights, STATES, H200_BYTES - other, math.floor
        ),
        "that leaves no room for activations": lambda weights, other: _gpus(weights, STATES, H200_BYTES),
        "those are the weights alone: each has a gradient and two moments, too": lambda weights, other: _gpus(
            weights, FP32, H200_BYTES - other
        ),
        "the states are kept in FP32, whatever is computed with": lambda weights, other: _gpus(
            weights, BF16 * sum(NUMBERS.values()), H200_BYTES - other
        ),
        "gradients are kept until the optimizer's step: they need room": lambda weights, other: _gpus(
            weights, STATES - FP32, H200_BYTES - other
        ),
    },
    within=0.0,
)

# How to share out

BLOCKS, LAYERS = 6, 4


@dataclass(eq=False)
class Module:
    """A part of a pretended network: weights of its own, and further parts."""

    name: str
    own: int = 0
    layers: list[Module] = field(default_factory=list)
    blocks: list[Module] = field(default_factory=list)

    def parts(self) -> list[Module]:
        return [self, *(one for child in (*self.layers, *self.blocks) for one in child.parts())]


def _network() -> Module:
    blocks = [Module(f"block {at}", layers=[Module("linear", 25) for _ in range(LAYERS)]) for at in range(BLOCKS)]
    return Module("model", 10, blocks=blocks)


def _try_share(share: Callable) -> str | None:
    model, units, kept = _network(), {}, []
    taken: set[Module] = set()

    def fully_shard(module: Module | list[Module], *_: object, reshard_after_forward: bool = True, **__: object):
        """As FSDP2's: what lies in a module, or in several, and belongs to no unit yet becomes a unit."""
        modules = [*module] if isinstance(module, (list, tuple)) else [module]
        for one in modules:
            if not isinstance(one, Module):
                raise TypeError(f"fully_shard wants modules, not {type(one).__name__}")
        first = modules[0]
        units[first] = [part for one in modules for part in one.parts() if part not in taken]
        taken.update(units[first])
        kept.extend([first] * (not reshard_after_forward and first is not model))
        return module

    share(model, fully_shard)
    whole = sum(part.own for part in model.parts())
    if not units:
        return "nothing is shared out"
    if model not in units:
        return "what lies outside of the blocks stays whole on each rank: share out the model, too"
    of_root = sum(part.own for part in units[model])
    if of_root == whole:
        return "one unit holds all weights: they are gathered at once, with nothing to compute meanwhile"
    if of_root > model.own:
        return f"some blocks are left to the model: {of_root} of {whole} weights are gathered for the whole step"
    largest = max(sum(part.own for part in unit) for unit in units.values())
    if largest > whole / 2:
        return f"one unit holds {largest} of {whole} weights: they are gathered at once, and little can overlap"
    if len(units) > BLOCKS + 1:
        return f"{len(units)} units: each is a message with a latency of its own, and code on the CPU"
    if kept:
        return "what was gathered is kept after the forward pass: soon a rank holds all of it"
    return None


def _shared(
    blocks: slice = slice(None), root: bool = True, first: bool = False, layers: bool = False,
    together: bool = False, **how: bool,
) -> Callable:  # fmt: skip
    def share(model, fully_shard):
        if first:
            fully_shard(model)
        if together:
            fully_shard(model.blocks)
        for block in [] if together else model.blocks[blocks]:
            for part in block.layers if layers else [block]:
                fully_shard(part, **how)
        if root and not first:
            fully_shard(model)

    return share


SHARE = Code(
    "From the inside out: each block a unit, then the model, which takes what is left.",
    _try_share,
    wrong={
        "one unit holds all weights": _shared(first=True),
        "share out the model, too": _shared(root=False),
        "some blocks are left to the model": _shared(slice(1, None)),
        "one unit holds 600 of 610 weights": _shared(together=True),
        "each is a message with a latency of its own": _shared(layers=True),
        "is kept after the forward pass": _shared(reshard_after_forward=False),
        "nothing is shared out": lambda model, fully_shard: None,
    },
)

EXERCISES = {"22.1": EXPOSED, "22.2": LEAST, "22.3": SHARE}
