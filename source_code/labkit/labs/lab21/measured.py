"""What more GPUs brought, beside what labs 21 and 22 share: gains, buckets, collectives, accuracy."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from labkit.display.spread import Spread
from labkit.source import originals, recorded
from labkit.subjects import accuracy as gate
from labkit.subjects.scaling import readings
from labkit.subjects.scaling.readings import MACHINE_FOLDER, PROGRAMS, Records
from stepbudget.ask.ranks import Ranks
from stepbudget.show.table import Table, table

ACCURACY = re.compile(r"(main_\w+)-accuracy-x(\d+)-\d+\.json")


def gains(found: Records) -> dict[str, Spread]:
    """How many times as fast two GPUs are with the batch of one, by program."""
    runs = readings.frame(found)
    return {name: readings.gained(runs, name, "strong", 2) for name in readings.DDP}


def graph(found: Records, program: str = "ddp_graph") -> Spread:
    """The same of an epoch in one launch, or of another program recorded with it."""
    return readings.gained(readings.frame(found), program, "strong", 2)


def weak(found: Records) -> Spread:
    """How many times the transformer's samples a second two GPUs see, with a full batch each."""
    return readings.gained(readings.frame(found), "text_ddp", "weak", 2)


def communication(found: Ranks, caption: str = "The collectives of each rank, ms") -> Table:
    """What each rank's collectives come to: how long they ran, split twice; and how often the rank came last."""
    columns = {f"{name}_ms": f"{name} ms" for name in ("total", "waiting", "transfer", "hidden", "exposed")}
    rows = [
        {"rank": rank.number, "collectives": round(own["kernels"])}
        | {label: own[name] for name, label in columns.items()}
        | {"came last to": round(own["last"])}
        for rank in found.ranks
        for own in [rank.communication]
    ]
    formats = dict.fromkeys(columns.values(), "{:,.1f}") | {"came last to": "{:,}"}
    return table(pd.DataFrame(rows), caption, formats)


def buckets(found: Records | None = None, programs: Collection[str] = readings.DDP) -> Table:
    """The buckets in which DDP averages gradients, and their sizes in MB."""
    sizes = readings.buckets(found or readings.records())
    rows = [
        (PROGRAMS[name].label, sum(own) / 1e6, len(own), own[0] / 1e6, max(own) / 1e6, own[-1] / 1e6)
        for name, own in sizes.items()
        if name in programs
    ]
    columns = ["program", "gradients MB", "buckets", "first MB", "largest MB", "last MB"]
    formats = dict.fromkeys([name for name in columns if name.endswith("MB")], "{:,.2f}")
    return table(pd.DataFrame(rows, columns=columns), "Gradients and the buckets in which DDP averages them", formats)


def accuracy(where: Path | None = None) -> pd.DataFrame:
    """Whole trainings, a row a script, number of GPUs and seed: ``script``, ``gpus``, ``seed``, ``epochs``, ``pct``.

    Those of a host's folder that ``bench_ranks.py --accuracy`` left there; no rows where there are none.
    """
    rows = []
    for file in sorted(((where or MACHINE_FOLDER) / recorded.RANKS).glob("*-accuracy-x*.json")):
        named = ACCURACY.fullmatch(file.name)
        for row in originals.read(file)["rows"] if named else ():
            trained = row["epochs"]
            script, seed = f"{named[1]}.py", row["arguments"]["seed"]
            rows.append((script, int(named[2]), seed, len(trained), trained[-1]["test_accuracy_pct"]))
    return pd.DataFrame(rows, columns=["script", "gpus", "seed", "epochs", "pct"])


def seeds(found: pd.DataFrame, alone: str = "main_opt4.py") -> Table:
    """Whole trainings, seed by seed (``accuracy``), below those of a step of the ladder without DDP.

    ``p``: Welch's one-sided test against the same script on one GPU. The gate wants as many seeds as the ladder's.
    """
    without = pd.DataFrame({"script": alone, "gpus": 1, "pct": gate.seeds(alone)})
    most, rows = len(without), []
    for (script, gpus), own in [
        *without.groupby(["script", "gpus"]),
        *found.groupby(["script", "gpus"], sort=False),
    ]:
        on_one = found.loc[(found["script"] == script) & (found["gpus"] == 1), "pct"]
        p = gate.below(on_one, own["pct"]) if gpus > 1 and len(on_one) > 1 and len(own) > 1 else None
        passed = own["pct"].mean() >= gate.FLOOR_PCT and (p is None or p >= gate.SIGNIFICANCE)
        verdict = "passed" if passed else "FAILED"
        verdict = verdict if len(own) >= most else f"{verdict}, of few seeds"
        rows.append((script, gpus, verdict, len(own), own["pct"].mean(), own["pct"].min(), own["pct"].max(), p))
    columns = ["script", "GPUs", "gate", "seeds", "mean %", "lowest %", "highest %", "p (below one GPU)"]
    caption = "Test accuracy after ten epochs on MNIST"
    caption += "" if len(found) else "; on several GPUs, no whole trainings are recorded yet"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[4:], "{:.2f}"))
