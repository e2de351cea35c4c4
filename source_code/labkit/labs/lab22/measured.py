"""What do runs and reports say of a transformer that is shared out? Memory by samples, bytes moved, what is hidden.

A step's fullest moment grows by so many bytes with each sequence a rank has: activations. What a line through two runs
leaves for no sequence at all is what the network itself takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from labkit.errors import NotRecorded
from labkit.labs.lab22.memory import Network, Way
from labkit.labs.lab22.ways import NAMES
from labkit.subjects.scaling import readings as scaling
from labkit.subjects.scaling.readings import Records
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
                | {"MB a sequence": found.a_sequence / 1e6, "GB without": found.network / 1e9}
            )
    frame = pd.DataFrame(rows)
    formats = {name: "{:.2f}" for name in frame if name.startswith("GB")} | {"MB a sequence": "{:.0f}"}
    return table(frame, "Fullest moment of a rank, by its sequences a step", formats)


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
