"""What does sharding leave on a rank, and what does it cost, as tables?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.display.spread import MEASURED
from labkit.display.table import Table, table
from labkit.topics.scaling.readings import Records
from labkit.topics.sharding import memory, readings
from labkit.topics.sharding.memory import Network, Way
from labkit.topics.sharding.ways import NAMES
from stepbudget.ask.ranks import Ranks

HALVES = ("ReduceScatter", "AllGather")  # of an all-reduce in a ring: each is a pass over all that is reduced


def held(network: Network, ways: Sequence[Way]) -> Table:
    """On paper: what a rank keeps of the network from step to step, in GB, by kind and way."""
    columns = {way.label: [held for kind, held in way.held(network).items() if kind in memory.NUMBERS] for way in ways}
    frame = pd.DataFrame({"kept in FP32": [*memory.NUMBERS, "all"]})
    for label, own in columns.items():
        frame[label] = [part / 1e9 for part in (*own, sum(own))]
    caption = f"On paper: states of {network.weights:,} weights on each rank, GB"
    return table(frame, caption, dict.fromkeys(columns, "{:.3f}"), totals=[-1])


def peaks(measured: pd.DataFrame) -> Table:
    """The fullest moment of each way's runs, and the line through them."""
    rows = []
    for (share, ranks), own in measured.groupby(["share", "ranks"], sort=False):
        if len(own) > 1:
            found = readings.line(measured, share, ranks)
            sizes = {f"GB with {one.sequences:.0f}": one.bytes / 1e9 for one in own.itertuples()}
            rows.append(
                {"way": f"{NAMES[share]} on {ranks}"}
                | sizes
                | {"MB a sequence": found.a_sequence / 1e6, "GB without": found.network / 1e9}
            )
    frame = pd.DataFrame(rows)
    formats = {name: "{:.2f}" for name in frame if name.startswith("GB")} | {"MB a sequence": "{:.0f}"}
    return table(frame, "Fullest moment of a rank, by its sequences a step", formats, list(formats))


def ledger(network: Network, measured: pd.DataFrame, sequences: int, ranks: int = 2) -> Table:
    """Why FSDP's rank holds less than DDP's, item by item, in GB: on paper, and measured."""
    parts = readings.difference(network, measured, sequences, ranks)
    frame = pd.DataFrame({"FSDP's rank holds less of": [*parts], "GB": [part / 1e9 for part in parts.values()]})
    caption = f"From DDP to FSDP on {ranks} GPUs, {sequences} sequences a rank, at the fullest moment"
    return table(frame, caption, {"GB": "{:+.2f}"}, ["GB"])


def deepest(width: int, block_bytes: dict[str, float], ways: Sequence[Way], sequences: Sequence[int]) -> Table:
    """On paper: how many blocks of a width fit into an H200; ``block_bytes``: activations of a sequence, by share."""
    rows = []
    for way in ways:
        row: dict = {"way": way.label}
        for count in sequences:
            blocks = memory.deepest(way, width, count * block_bytes[way.share])
            row[f"blocks, {count} a GPU"] = blocks
            row[f"billion weights, {count} a GPU"] = blocks * Network(width, 1, 0).block / 1e9
        rows.append(row)
    frame = pd.DataFrame(rows)
    formats = {name: "{:,.0f}" if name.startswith("blocks") else "{:.1f}" for name in frame if name != "way"}
    caption = f"On paper: the deepest network of width {width:,} on GPUs of {memory.H200_BYTES / 1e9:.0f} GB, "
    caption += "by the sequences that each GPU has"
    return table(frame, caption, formats, list(formats))


def moved(pair: Ranks, network: Network, found: Records) -> Table:
    """What a step moves: FSDP's messages in the reports, DDP's in the runs' records."""
    own = readings.moved(pair, network.weights)
    ddp = readings.averaged(found)
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
    return table(frame, "Bytes that a step gathers or reduces", formats, list(formats), totals)


def overlap(pair: Ranks) -> Table:
    """What collectives take of a step of each rank, in ms, and how much of the transfer is hidden."""
    found = readings.overlap(pair)
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
    return table(frame, "Collectives in a step of each rank, as profiled", formats, list(formats))


def ways(found: pd.DataFrame, phases: bool = False) -> Table:
    """Ways that were run in turn (rows of ``ways.frame``): states, the fullest moment, bytes moved, a step's time.

    ``phases``: instead of the last two, what is allocated before a step and after its passes.
    """
    rows = list(found.itertuples())
    frame = pd.DataFrame({"way": found["way"], "width": found["width"], "sequences a GPU": found["sequences"]})
    frame["states GB"] = found["kept"] / 1e9
    columns = {"before": "before a step GB", "forward": "after forward GB", "backward": "after backward GB"}
    for name, label in columns.items() if phases else ():
        frame[label] = found[name].astype(float) / 1e9
    frame["fullest GB"] = found["peak"].astype(float) / 1e9
    if not phases:
        frame["bytes moved a weight"] = found["moved"] / found["weights"]
        frame["a step ms"] = found["step_ms"]
        frame["range ms"] = [f"{MEASURED}{row.low_ms:,.0f}–{row.high_ms:,.0f}" if row.fits else None for row in rows]
    frame["fits"] = ["yes" if row.fits else "out of memory" for row in rows]
    if found["fits"].all():
        frame = frame.drop(columns="fits")
    formats = {name: "{:.2f}" for name in frame if name.endswith((" GB", " weight"))} | {"a step ms": "{:,.1f}"}
    formats = {name: form for name, form in formats.items() if name in frame}
    return table(frame, "Ways of sharing out, one after another on the same GPUs", formats, list(formats))
