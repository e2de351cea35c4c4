"""What did each way of sharing a network out take? The record of ``bench_sharding.py``: memory by kind, bytes, a step.

One process a GPU ran all ways in turn, once: sizes are exact, times are medians of a few steps.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pandas as pd

from labkit.errors import NotRecorded
from labkit.source import originals
from labkit.source.recorded import RANKS
from labkit.subjects.scaling.readings import MACHINE_FOLDER
from stepbudget.show.table import Table, table

KINDS = ("weights", "gradients", "optimizer")
NAMES = {"ddp": "DDP", "fsdp": "FSDP", "copies": "FSDP, whole"}


def record(where: Path | None = None) -> dict:
    """The newest record of a machine's folder. NotRecorded where there is none."""
    where = where or MACHINE_FOLDER
    files = sorted((where / RANKS).glob("sharding-x*.json"))
    if not files:
        raise NotRecorded(f"no ways of sharing out were recorded on {where.name}.")
    return originals.read(files[-1])


def of_width(width: int) -> pd.DataFrame:
    """The recorded ways of a network of this width: rows of ``tried``, those that fit first."""
    found = tried()
    return found[found["width"] == width].sort_values("fits", ascending=False, kind="stable")


def tried(found: dict | None = None) -> pd.DataFrame:
    """A row a way of the record (the newest), of its fullest or slowest rank.

    Columns: ``way`` in words, ``share``, ``width``, ``sequences`` (a rank's), ``reshard``, ``prefetch``, ``fits``; and
    where it fits ``weights`` (their number), bytes: ``kept`` (states), ``before`` a step, after its ``forward`` and
    ``backward`` pass, ``peak`` (None without a GPU), ``moved`` in a step (gathered and reduced, an all-reduce counted
    twice); and ``step_ms``, with ``low_ms`` and ``high_ms``.
    """
    rows = []
    for row in (found or record())["rows"]:
        own = {name: row[name] for name in ("share", "width", "sequences", "reshard", "prefetch")}
        each = row["of_each_rank"]
        own |= {"way": _named(row), "fits": not any(one["out_of_memory"] for one in each)}
        rows.append(own | (_measured(each) if own["fits"] else {}))
    columns = ["way", "share", "width", "sequences", "reshard", "prefetch", "fits"]
    columns += ["weights", "kept", "before", "forward", "backward", "peak", "moved", "step_ms", "low_ms", "high_ms"]
    return pd.DataFrame(rows).reindex(columns=columns)


def _named(row: dict) -> str:
    """``FSDP, kept`` for one whose blocks are not freed after the forward pass."""
    words = [NAMES[row["share"]]]
    words += ["kept"] * (not row["reshard"])
    words += [f"{row['prefetch']} ahead"] * (row["prefetch"] != 1)
    return ", ".join(words)


def _measured(each: list[dict]) -> dict:
    slowest = max((one["step_s"] for one in each), key=statistics.median)
    moved = [(2 if one["function"] == "AllReduce" else 1) * one["bytes"] * one["count"] for one in each[0]["sent"]]
    phases = {
        name: max((1e6 * one["allocated_mb"][name] for one in each if name in one["allocated_mb"]), default=None)
        for name in ("before", "forward", "backward")
    }
    return phases | {
        "weights": each[0]["parameters"],
        "kept": max(1e6 * sum(sum(one[f"{kind}_mb"].values()) for kind in KINDS) for one in each),
        "peak": max((1e6 * one["peak_memory_mb"] for one in each if one["peak_memory_mb"]), default=None),
        "moved": sum(moved),
        "step_ms": 1e3 * statistics.median(slowest),
        "low_ms": 1e3 * min(slowest),
        "high_ms": 1e3 * max(slowest),
    }


def shared_out(found: pd.DataFrame) -> Table:
    """Ways that were run in turn (rows of ``tried``): states, the fullest moment, bytes moved, a step's time."""
    rows = list(found.itertuples())
    frame = pd.DataFrame({"way": found["way"], "width": found["width"], "sequences a GPU": found["sequences"]})
    frame["states GB"] = found["kept"] / 1e9
    frame["fullest GB"] = found["peak"].astype(float) / 1e9
    frame["bytes moved a weight"] = found["moved"] / found["weights"]
    frame["a step ms"] = found["step_ms"]
    frame["range ms"] = [f"{row.low_ms:,.0f}–{row.high_ms:,.0f}" if row.fits else None for row in rows]
    frame["fits"] = ["yes" if row.fits else "out of memory" for row in rows]
    if found["fits"].all():
        frame = frame.drop(columns="fits")
    formats = {name: "{:.2f}" for name in frame if name.endswith((" GB", " weight"))} | {"a step ms": "{:,.1f}"}
    return table(frame, "Ways of sharing out, one after another on the same GPUs", formats)
