"""Lab 22: what does sharding leave on a rank, what does it move, and whose CPU is late?

A step's fullest moment grows by so many bytes with each sequence a rank has: activations. What a line through two runs
leaves for no sequence at all is what the network itself takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.errors import NotRecorded
from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.labs.lab22.memory import BF16, FP32, H200_BYTES, NUMBERS, Network, Way, states_bars
from labkit.labs.lab22.ways import NAMES, of_width, shared_out, tried
from labkit.numbers import Quantity
from labkit.predictions import Guess
from labkit.subjects.scaling import readings as scaling
from labkit.subjects.scaling.readings import ON_CPU, Records, gained
from stepbudget import intervals
from stepbudget.ask import collectives, phases
from stepbudget.ask.ranks import Rank, Ranks
from stepbudget.show.table import Table, table

HALVES = ("ReduceScatter", "AllGather")  # of an all-reduce in a ring: each is a pass over all that is reduced
SHARES = {"text_ddp": "ddp", "text_fsdp": "fsdp"}


@dataclass(frozen=True)
class Line:
    """Bytes at a rank's fullest moment: so many for each sequence, and those that are there without any."""

    a_sequence: float
    network: float

    def at(self, sequences: int) -> float:
        return self.network + sequences * self.a_sequence


def network(found: Records) -> Network:
    """The transformer that was trained. NotRecorded where none was."""
    for record in found.values():
        for row in record["rows"]:
            if scaling.program_of(row) in SHARES:
                return Network.of(row["arguments"]["width"], row["arguments"]["depth"], row["parameters"])
    raise NotRecorded("no transformer was trained in these runs.")


def peaks(found: Records) -> pd.DataFrame:
    """The transformer's fullest GPU, medians over the rounds: ``share``, ``ranks``, ``sequences`` a rank, ``bytes``."""
    runs = scaling.frame(found)
    runs = runs[runs["program"].isin(SHARES)]
    runs = runs.assign(
        share=runs["program"].map(SHARES), sequences=runs["batch"] // runs["ranks"],
        bytes=1e6 * runs["peak_memory_mb"].astype(float),
    )  # fmt: skip
    return runs.groupby(["share", "ranks", "sequences"])["bytes"].median().reset_index()


def line(measured: pd.DataFrame, share: str, ranks: int) -> Line:
    """Through the peaks of a way with few and with many sequences. NotRecorded where there are not two."""
    own = measured[(measured["share"] == share) & (measured["ranks"] == ranks)].dropna().sort_values("sequences")
    if len(own) < 2:
        raise NotRecorded(f"{share} on {ranks} GPUs was not recorded with few and with many sequences.")
    few, many = own.iloc[0], own.iloc[-1]
    slope = (many["bytes"] - few["bytes"]) / (many["sequences"] - few["sequences"])
    return Line(float(slope), float(few["bytes"] - slope * few["sequences"]))


def difference(network: Network, measured: pd.DataFrame, sequences: int, ranks: int = 2) -> dict[str, float]:
    """What DDP's rank holds more than FSDP's at the fullest moment, by item, in bytes.

    Three items are on paper; the activations are by the lines' slopes. Last, their sum, and what was measured.
    """
    ddp, fsdp = (Way(share, ranks) for share in ("ddp", "fsdp"))
    whole, part = ddp.held(network), fsdp.held(network)
    lines = [line(measured, share, ranks) for share in ("ddp", "fsdp")]
    kept = ("weights", "Adam's moments")
    found = {
        "weights and moments: an equal share each": sum(whole[kind] - part[kind] for kind in kept),
        "gradients: none there yet": whole["gradients"],
        "BF16 copies: of two blocks, not of all": whole["BF16 copies"] - part["BF16 copies"],
        "activations: all in BF16": sequences * (lines[0].a_sequence - lines[1].a_sequence),
    }
    return found | {
        "all that": sum(found.values()),
        "measured": lines[0].at(sequences) - lines[1].at(sequences),
    }


def moved(pair: Ranks, weights: int) -> pd.DataFrame:
    """Messages of a step, by what they do and how large they are.

    Columns: ``function``, ``bytes`` (all that is gathered or reduced), ``count``, ``total`` (bytes), ``a_weight``.
    """
    found = scaling.messages(pair.table)
    found = found.assign(count=found["count"] / steps(pair))
    found["total"] = found["bytes"] * found["count"]
    return found.assign(a_weight=found["total"] / weights)[["function", "bytes", "count", "total", "a_weight"]]


def averaged(found: Records) -> int:
    """Bytes of gradients that DDP averages in a step."""
    return sum(scaling.buckets(found)["text_ddp"])


def steps(pair: Ranks) -> int:
    """How many steps the reports hold."""
    own = phases.phases(pair.ranks[0].report, pair.ranks[0].window).set_index("phase")
    return int(own.loc["forward", "count"])


def late(pair: Ranks) -> Rank:
    """The rank that waits least for the others."""
    waiting_ms = overlap(pair).groupby("rank")["waiting_ms"].sum()
    return min(pair.ranks, key=lambda rank: waiting_ms[rank.number])


def overlap(pair: Ranks) -> pd.DataFrame:
    """What collectives take of a step of each rank, by what they do, in ms.

    Columns: ``rank``, ``function``, ``count``, ``total_ms``, ``waiting_ms`` (for the last rank), ``transfer_ms``, and
    of the transfer ``hidden_ms``: the GPU computes meanwhile.
    """
    count, rows = steps(pair), []
    for rank in pair.ranks:
        busy = rank.clock.there(collectives.others(rank.report, rank.window.gpu))
        own = pair.table[(pair.table["rank"] == rank.number) & pair.table["last_start"].notna()]
        for function, each in own.groupby("function"):
            arrived = each[["last_start", "end"]].min(axis=1).astype("int64").clip(lower=each["start"])
            hidden_ns = intervals.covered(busy, arrived.to_numpy(), each["end"].to_numpy()).sum()
            parts = {
                "total_ms": (each["end"] - each["start"]).sum(),
                "waiting_ms": (arrived - each["start"]).sum(),
                "transfer_ms": (each["end"] - arrived).sum(),
                "hidden_ms": hidden_ns,
            }
            rows.append(
                {"rank": rank.number, "function": function, "count": len(each) / count}
                | {name: float(ns) / 1e6 / count for name, ns in parts.items()}
            )
    return pd.DataFrame(rows)


def fullest(measured: pd.DataFrame) -> Table:
    """The fullest moment of each way's runs, and the line through them."""
    rows = []
    for (share, ranks), own in measured.groupby(["share", "ranks"], sort=False):
        if len(own) > 1:
            found = line(measured, share, ranks)
            sizes = {f"GB with {one.sequences:.0f}": one.bytes / 1e9 for one in own.itertuples()}
            rows.append(
                {"way": f"{NAMES[share]} on {ranks}"}
                | sizes
                | {"MB a sequence": found.a_sequence / 1e6, "GB with none": found.network / 1e9}
            )
    frame = pd.DataFrame(rows)
    of_sizes = sorted((name for name in frame if name[-1].isdigit()), key=lambda name: int(name.split()[-1]))
    frame = frame[["way", *of_sizes, "MB a sequence", "GB with none"]]
    formats = {name: "{:.2f}" for name in frame if name.startswith("GB")} | {"MB a sequence": "{:.0f}"}
    return table(frame, "A rank's fullest moment, by sequences a step (none: extrapolated)", formats)


def ledger(network: Network, measured: pd.DataFrame, sequences: int, ranks: int = 2) -> Table:
    """Why FSDP's rank holds less than DDP's, item by item, in GB: on paper, and measured."""
    parts = difference(network, measured, sequences, ranks)
    frame = pd.DataFrame({"FSDP's rank holds less of": [*parts], "GB": [part / 1e9 for part in parts.values()]})
    caption = f"From DDP to FSDP on {ranks} GPUs, {sequences} sequences a rank, at the fullest moment"
    return table(frame, caption, {"GB": "{:+.2f}"})


def bytes_moved(pair: Ranks, network: Network, found: Records) -> Table:
    """What a step moves: FSDP's messages in the reports, DDP's in the runs' records."""
    own = moved(pair, network.weights)
    ddp = averaged(found)
    rows = [("FSDP", *row) for row in own.itertuples(index=False, name=None)]
    rows += [("DDP", f"AllReduce as {half}", None, None, ddp, ddp / network.weights) for half in HALVES]
    for share in ("FSDP", "DDP"):
        total = sum(row[4] for row in rows if row[0] == share)
        rows.append((share, "all", None, None, total, total / network.weights))
    rows.sort(key=lambda row: row[0] == "DDP")
    columns = ["way", "collective", "MB each", "a step", "MB a step", "bytes a weight"]
    frame = pd.DataFrame(rows, columns=columns)
    for name in ("MB each", "MB a step"):
        frame[name] = frame[name] / 1e6
    formats = {"MB each": "{:.2f}", "a step": "{:.0f}", "MB a step": "{:,.1f}", "bytes a weight": "{:.2f}"}
    totals = frame.index[frame["collective"] == "all"]
    return table(frame, "Bytes that a step gathers or reduces", formats, totals)


def hidden(pair: Ranks) -> Table:
    """What collectives take of a step of each rank, in ms, and how much of the transfer is hidden."""
    found = overlap(pair)
    frame = pd.DataFrame(
        {
            "rank": found["rank"],
            "collective": found["function"],
            "a step": found["count"],
            "total ms": found["total_ms"],
            "waiting ms": found["waiting_ms"],
            "transfer ms": found["transfer_ms"],
            "of it hidden %": 100 * found["hidden_ms"] / found["transfer_ms"],
        }
    )
    formats = {name: "{:,.2f}" for name in frame if name.endswith(" ms")}
    formats |= {"a step": "{:.0f}", "of it hidden %": "{:.0f}"}
    return table(frame, "Collectives in a step of each rank, as profiled", formats)


# --- what it claims -----------------------------------------------------------------------------------------


def explained(parts: Mapping[str, float]) -> Iterator[Claim | str]:
    """What FSDP's rank holds less than DDP's, taken to pieces; ``parts``: of ``difference``."""
    off = abs(parts["all that"] / parts["measured"] - 1)
    yield Claim(
        "three items on paper and the activations explain the difference to a tenth", off < 0.1, off,
        because="another version of PyTorch frees gradients, or copies weights, at another time",
        so="torch.cuda.memory._record_memory_history() shows what is there at the fullest moment",
    )  # fmt: skip


def _as_deep(wide: pd.Series, network: Network) -> Network:
    """The network of a row, as deep as ``network``."""
    return Network.of(int(wide.width), network.depth, int(wide.weights))


def fits_only_shared_out(wide: pd.DataFrame, network: Network) -> Iterator[Claim | str]:
    """The wide network, by FSDP and by DDP, a row each, as deep as ``network``: the two moments, and what fits."""
    shared, peak = wide.iloc[0], wide["peak"].max()
    paper = Way("fsdp", 2).moments(_as_deep(shared, network), shared.forward - shared.before)
    for when, size in paper.items():
        yield f"On paper, with the activations as measured, as the backward pass {when}: {size / 1e9:.1f} GB."
    near = abs(max(paper.values()) / peak - 1) < 0.05
    yield Claim("the fuller one is what was measured, to a twentieth", near, peak)
    fits = dict(zip(wide["share"], wide["fits"], strict=True))
    yield Claim("by DDP it ran out of memory, as recorded", fits == {"fsdp": True, "ddp": False})


def messages_are_blocks(moved: pd.DataFrame, network: Network) -> Iterator[Claim | str]:
    """The largest messages of a step, and how many there are; ``moved``: of ``measured.moved``."""
    gathered, scattered = (
        moved[moved["function"] == function].sort_values("bytes").iloc[-1]
        for function in ("AllGather", "ReduceScatter")
    )
    yield Claim(
        "the report's largest messages are a block's weights, two bytes and four",
        (gathered.bytes, scattered.bytes) == (2 * network.block, 4 * network.block),
    )
    yield Claim("each block is gathered twice a step", bool(gathered["count"] == 2 * network.depth))


def ddp_is_faster(runs: pd.DataFrame, by_fsdp: Spread) -> Iterator[Claim | str]:
    """The batch of one GPU shared out between two: what DDP gains, by the ``runs``, and what FSDP does."""
    by_ddp, by_fsdp = gained(runs, "text_ddp", "strong", 2).median, by_fsdp.median
    yield Claim(
        "shared out, the batch of one GPU gains more by DDP than by FSDP", by_ddp > by_fsdp,
        f"{by_ddp:.2f} and {by_fsdp:.2f} times as fast",
        because="a faster CPU keeps ahead of the GPU also where a step is short",
        so="FSDP costs little here: see how much of the transfer is hidden",
    )  # fmt: skip


def cpu_is_late(pair: Ranks) -> Iterator[Claim | str]:
    """Both ranks wait for the one that waits least: for its CPU, rather than for bytes."""
    own = overlap(pair).groupby("rank")[["waiting_ms", "transfer_ms"]].sum()  # of a step
    late, *_, other = sorted(pair.ranks, key=lambda rank: own["waiting_ms"][rank.number])
    cpu_ms = sum(late.budget.ms[cause] for cause in ON_CPU) / steps(pair)
    move_ms = float(own["transfer_ms"][late.number])
    yield f"Rank {late.number}, a step: idle for its CPU {cpu_ms:.1f} ms, transfer {move_ms:.1f} ms."
    longer = other.budget.ms["tensor_core_kernels"] / late.budget.ms["tensor_core_kernels"]
    yield f"same work: rank {other.number}'s Tensor Core kernels take {longer:.2f}× rank {late.number}'s"
    yield Claim(
        "the late rank's GPU idles for its own CPU over three times as long as bytes travel",
        cpu_ms > 3 * move_ms,
        f"{cpu_ms:.1f} and {move_ms:.1f} ms",
        because="the CPU is faster, or the link between the GPUs slower (PCIe in place of NVLink)",
        so="the transfer is a larger part of your step: see how much of it is hidden",
    )


def full_batches_scale(runs: pd.DataFrame) -> Iterator[Claim | str]:
    """What FSDP on two GPUs gains where each has the batch of one; ``runs``: ``scaling.frame``."""
    weak = gained(runs, "text_fsdp", "weak", 2).median
    yield Claim(
        "with full batches, FSDP on two keeps over nine tenths of two single GPUs", weak > 1.8, weak,
        because="the link is slower, and a block's kernels too short to hide its messages",
        so="give each GPU more samples, if they fit",
    )  # fmt: skip


def large_steps_hide_it(wider: pd.DataFrame) -> Iterator[Claim | str]:
    """The wider network, a row a way.

    DDP, FSDP, FSDP kept, with its own prefetching, two blocks ahead, and whole: nothing is shared out.
    """
    ddp, fsdp, kept, none, two, whole = (wider.iloc[at] for at in range(6))
    yield Claim("as recorded, FSDP's median step is shorter than DDP's", bool(fsdp.step_ms < ddp.step_ms))
    saved, more = fsdp.step_ms - kept.step_ms, (kept.peak - fsdp.peak) / 1e9
    vary = fsdp.high_ms - fsdp.low_ms
    yield f"a pass less: {saved:.0f} ms of {fsdp.step_ms:.0f}, and {more:.1f} GB more"
    yield f"but steps of one way vary by {vary:.0f} ms"
    apart = max(abs(one.step_ms - fsdp.step_ms) for one in (none, two))
    yield f"as FSDP prefetches by itself, or two blocks ahead: {apart:.1f} ms apart, less than steps vary"
    yield Claim("within a way, steps vary by more", bool(apart < vary))
    for what, before, after in (("FSDP, whole, against DDP", ddp, whole), ("then sharing out", whole, fsdp)):
        yield f"{what}: {before.step_ms - after.step_ms:.0f} ms and {(before.peak - after.peak) / 1e9:.1f} GB less"


# --- its exercises ------------------------------------------------------------------------------------------


# Exposed transfer


def _of_first(column: str, function: str = "") -> Quantity:
    """Of rank 0's step, over its collectives or those of one function."""

    def ms(pair: Ranks) -> float:
        own = overlap(pair)
        return float(own.loc[(own["rank"] == 0) & own["function"].str.contains(function), column].sum())

    return Quantity(ms)


TRANSFER, HIDDEN = _of_first("transfer_ms"), _of_first("hidden_ms")
EXPOSED = Number(
    READ,
    "Transfer, less what of it is hidden, of all-gathers and reduce-scatters: two rows of the table.",
    right=TRANSFER - HIDDEN,
    wrong={
        "that is the whole transfer: for a part of it the GPU computes": TRANSFER,
        "that is what is hidden: the rest is asked for": HIDDEN,
        "those are the all-gathers alone: there is another row": (
            _of_first("transfer_ms", "AllGather") - _of_first("hidden_ms", "AllGather")
        ),
        "while it waits for the other rank, nothing moves": _of_first("total_ms") - HIDDEN,
        "that is of all steps in the report: one is asked for": (TRANSFER - HIDDEN) * steps,
    },
    within=0.05,  # the table's shares are rounded
)

# The least number of GPUs

STATES = FP32 * sum(NUMBERS.values())  # bytes a weight


def _gpus(a_weight: float, used: bool = True, rounded: Callable[[float], int] = math.ceil) -> Callable:
    """So many GPUs hold so many bytes for each weight; ``used``: beside the others that each of them needs."""
    return lambda weights, other: float(rounded(weights * a_weight / (H200_BYTES - used * other)))


LEAST = Number(
    BOUND,
    "Bytes of states for each weight, shared out among so many that each part fits into what a GPU has left.",
    right=_gpus(STATES),
    wrong={
        "so many parts are a little too large: round up": _gpus(STATES, rounded=math.floor),
        "that leaves no room for activations": _gpus(STATES, used=False),
        "those are the weights alone: each has a gradient and two moments, too": _gpus(FP32),
        "the states are kept in FP32, whatever is computed with": _gpus(BF16 * sum(NUMBERS.values())),
        "gradients are kept until the optimizer's step: they need room": _gpus(STATES - FP32),
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

    def children(self) -> list[Module]:
        return [*self.layers, *self.blocks]

    def set_modules_to_forward_prefetch(self, modules: Sequence[Module]) -> None:
        """As FSDP2's, on whose units nothing here depends; the same holds for the backward pass."""

    set_modules_to_backward_prefetch = set_modules_to_forward_prefetch

    def parts(self) -> list[Module]:
        return [self, *(one for child in (*self.layers, *self.blocks) for one in child.parts())]


def _network() -> Module:
    blocks = [Module(f"block {at}", layers=[Module("linear", 25) for _ in range(LAYERS)]) for at in range(BLOCKS)]
    return Module("model", 10, blocks=blocks)


def _try_share(share: Callable) -> str | None:
    model, units, kept = _network(), {}, []
    taken: set[Module] = set()
    late: list[str] = []

    def fully_shard(module: Module | list[Module], *_: object, reshard_after_forward: bool = True, **__: object):
        """As FSDP2's: what lies in a module, or in several, and belongs to no unit yet becomes a unit."""
        modules = [*module] if isinstance(module, (list, tuple)) else [module]
        for one in modules:
            if not isinstance(one, Module):
                raise TypeError(f"fully_shard wants modules, not {type(one).__name__}")
        first = modules[0]
        late.extend(one.name for one in modules if one in taken)
        units[first] = [part for one in modules for part in one.parts() if part not in taken]
        taken.update(units[first])
        kept.extend([first] * (not reshard_after_forward and first not in (model, model.blocks[-1])))
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
    if late:
        return (
            f"{late[0]} is shared out when it belongs to a unit already: from the inside out, each once, the model last"
        )
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


# --- what it asks before it shows ---------------------------------------------------------------------------


SEQUENCES = 32  # a rank's, of the runs that are compared


def _parts(network, peaks) -> dict[str, float]:
    return difference(network, peaks, SEQUENCES)


PREDICTIONS = {
    "less": Guess(
        "memory that sharding on two saves", " GB", lambda network, peaks: _parts(network, peaks)["measured"] / 1e9,
        wrong={
            "That's half of the states. But FSDP's gradients aren't there yet, and activations differ, too.": (
                lambda network, peaks: STATES / 2 * network.weights / 1e9
            ),
            "That leaves the activations out: FSDP's policy has all of them in BF16, autocast only some.": (
                lambda network, peaks: sum(list(_parts(network, peaks).values())[:3]) / 1e9
            ),
        },
    ),
    "wide": Guess(
        "besides the states, on each of two GPUs", " GB", lambda wide, _: (wide["peak"] - wide["kept"]).max() / 1e9,
        wrong={
            "That's with the states.": lambda wide, _: wide["peak"].max() / 1e9,
            "Those are the two gathered blocks. As the backward pass ends, a gradient still whole comes on top.": (
                lambda wide, network: 2 * BF16 * _as_deep(wide.iloc[0], network).block / 1e9
            ),
        },
    ),
    "bytes": Guess(
        "bytes of FSDP, against DDP's", "×",
        lambda pair, network, found: (
            float(moved(pair, network.weights)["total"].sum()) / (2 * averaged(found))
        ),
        wrong={
            "That counts numbers. The two all-gathers carry two bytes each, not four.": lambda *_: 1.5,
            "That's all three passes in BF16. Gradients are added up in FP32.": lambda *_: 0.75,
        },
    ),
    "strong": Guess(
        "FSDP on two GPUs, batch shared out", "×", lambda runs: gained(runs, "text_fsdp", "strong", 2).median,
        wrong={
            "That's what DDP gains. FSDP moves as many bytes, but its CPU has more to do.": (
                lambda runs: gained(runs, "text_ddp", "strong", 2).median
            ),
            "That's the ideal: nothing waits and nothing is moved.": lambda _: 2.0,
        },
    ),
}  # fmt: skip
