"""Is this record an entry? The rules that a record can be asked about; source_code/speedrun/RULES.md has them all.

Needs no PyTorch.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

SEEDS = 30
GOAL_PCT = 99.0  # of the test digits, as a mean over all seeds
HELD_OUT = 10_000  # training digits that a recipe is chosen by
HOLD_OUT_SEEDS = range(101, 111)  # none of those by which a search chose
GATE_PCT = 98.8  # on held-out digits, with a sixth less to train on: below it the test set stays closed
CHANCE_PCT = 30.0  # of an untrained network, at most
TRAIN_SAMPLES, TEST_SAMPLES = 60_000, 10_000
DATA = "MNIST"


@dataclass(frozen=True)
class Track:
    """What an entry may change, and the milliseconds that this course set itself on an H200."""

    name: str
    goal_ms: float
    parameters: dict[str, list[int]] | None = None  # shapes by name; None: any


COURSE_NET = {
    "conv1.weight": [32, 1, 3, 3], "conv1.bias": [32],
    "conv2.weight": [64, 32, 3, 3], "conv2.bias": [64],
    "fc1.weight": [128, 9216], "fc1.bias": [128],
    "fc2.weight": [10, 128], "fc2.bias": [10],
}  # fmt: skip
TRACKS = {track.name: track for track in (Track("the course's net", 25.0, COURSE_NET), Track("any net", 15.0))}


def broken(record: dict) -> list[str]:
    """A sentence for each rule that a record of ``benchmarks/speedrun.py`` breaks; none: it is an entry."""
    rows = record["rows"]
    track = TRACKS.get(record["track"])
    times = [row["training_ms"] for row in rows]
    found = {
        f"its track is '{record['track']}'; there are {_listed(TRACKS)}": track is None,
        f"it was not judged by the {TEST_SAMPLES:,} test digits of {DATA}": not _on_mnist(record),
        "it was trained on the CPU": record["device"] != "cuda",
        f"its seeds are not 1 to {SEEDS}, each once: it has {len(rows)}": [row["seed"] for row in rows]
        != [*range(1, SEEDS + 1)],
        "it has a time that is none": not all(math.isfinite(one) and one > 0 for one in times),
        f"a network knew more than {CHANCE_PCT:.0f} % before its training": any(
            row["untrained_pct"] > CHANCE_PCT for row in (*rows, *record["hold_out"])
        ),
        f"its recipe was not tried on {HELD_OUT:,} held-out digits by {len(HOLD_OUT_SEEDS)} seeds of their own": [
            row["seed"] for row in record["hold_out"]
        ]
        != [*HOLD_OUT_SEEDS],
        f"on held-out digits it stays below {GATE_PCT} %": mean_pct(record["hold_out"]) < GATE_PCT,
    }
    if rows:
        mean = mean_pct(rows)
        found[f"its mean is {mean:.3f} %, and {GOAL_PCT} % is wanted"] = mean < GOAL_PCT
    if track and track.parameters:
        found["its network is not the course's"] = record["parameters"] != track.parameters
    return [sentence for sentence, is_broken in found.items() if is_broken]


def mean_pct(rows: list[dict]) -> float:
    """The mean accuracy of rows, in percent; 0 where there are none."""
    return statistics.fmean(row["accuracy_pct"] for row in rows) if rows else 0.0


def _on_mnist(record: dict) -> bool:
    sizes = record["train_samples"], record["test_samples"]
    return record["data_source"] == DATA and sizes == (TRAIN_SAMPLES, TEST_SAMPLES)


def _listed(names: object) -> str:
    return " and ".join(f"'{name}'" for name in names)
