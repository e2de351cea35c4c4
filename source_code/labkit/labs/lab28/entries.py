"""How fast was 99 % reached, by whom, on what? Records of ``benchmarks/speedrun.py``, and what others published."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.source import recorded
from labkit.speedrun import rules
from stepbudget.show.table import Table, table

FOLDER = SOURCE_CODE / "speedrun"
ENTRIES, PUBLISHED = FOLDER / "entries", FOLDER / "published.json"
OWN = ("own_kernels", "course_net", "any_net")  # the course's entries, which are recorded
PLACES = {"conv1": 26 * 26, "conv2": 24 * 24, "fc1": 1, "fc2": 1}  # where a weight of the course's net is used
NAN = float("nan")


@dataclass(frozen=True)
class Line:
    """A line of the table: an entry, or a published result, whose clock may have run over other things."""

    track: str
    name: str
    author: str
    gpu: str
    mean_pct: float
    spread_pct: float
    seeds: int
    training_ms: float
    published: str = ""  # where; empty for an entry


def line(record: dict) -> Line:
    """An entry's line: mean accuracy, and the median of its times; whether it breaks a rule, ``rules`` says.

    Without a seed, as where the test set stayed closed, no number.
    """
    accuracies = [row["accuracy_pct"] for row in record["rows"]]
    return Line(
        record["track"], record["entry"].removesuffix(".py"), record["author"], record["gpu"] or "–",
        statistics.fmean(accuracies) if accuracies else NAN,
        statistics.stdev(accuracies) if len(accuracies) > 1 else NAN, len(accuracies),
        statistics.median(row["training_ms"] for row in record["rows"]) if accuracies else NAN,
    )  # fmt: skip


def entries(folder: Path = ENTRIES) -> list[dict]:
    """The records of a folder. LabError names a file that holds none."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            record["rows"], record["track"]
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{file} holds no record of speedrun.py.") from error
        found.append(record)
    return found


def own() -> list[dict]:
    """The course's own entries, as recorded."""
    return [recorded.held(lambda where, n=name: recorded.records("benchmarks", f"speedrun.py {n}", where))[0][0]
            for name in OWN]  # fmt: skip


def published() -> list[Line]:
    """What others have published, with the place."""
    return [Line(**one) for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))]


def standing(records: Iterable[dict]) -> Table:
    """Every entry and every published result, fastest first."""
    lines = [*map(line, records), *published()]
    lines.sort(key=lambda one: (one.training_ms != one.training_ms, one.training_ms))
    frame = pd.DataFrame(
        {
            "entry": [one.name for one in lines],
            "track": [one.track for one in lines],
            "by": [one.author or "the course" for one in lines],
            "GPU": [one.gpu for one in lines],
            "training ms": [one.training_ms for one in lines],
            "mean %": [one.mean_pct for one in lines],
            "spread %": [one.spread_pct for one in lines],
            "seeds": [one.seeds for one in lines],
        }
    )
    formats = {"training ms": "{:,.1f}", "mean %": "{:.3f}", "spread %": "{:.3f}"}
    return table(frame, "Time to 99 %: median over the seeds, and the test accuracy", formats)


def seeds(record: dict) -> Table:
    """Each seed of an entry."""
    frame = pd.DataFrame(record["rows"], columns=["seed", "training_ms", "untrained_pct", "accuracy_pct"])
    frame.columns = ["seed", "training ms", "before it %", "after it %"]
    formats = {"training ms": "{:,.2f}", "before it %": "{:.1f}", "after it %": "{:.2f}"}
    return table(frame, f"{record['entry']}, seed by seed", formats)


def goals(records: Iterable[dict]) -> Table:
    """Each track's goal, and the fastest entry in it so far; NaN where it has none."""
    lines = [line(record) for record in records]
    rows = [
        {
            "track": track.name,
            "set beforehand, ms": track.goal_ms,
            "best ms": min((one.training_ms for one in lines if one.track == track.name and one.seeds), default=NAN),
        }
        for track in rules.TRACKS.values()
    ]
    formats = {"set beforehand, ms": "{:.0f}", "best ms": "{:.1f}"}
    return table(pd.DataFrame(rows), None, formats)


def steps(record: dict) -> int:
    """Steps of a training of this recipe over all training digits; what does not fill a batch is left out."""
    recipe = record["recipe"]
    return int(recipe["epochs"] * record["train_samples"] / recipe["batch"])


def mflop() -> float:
    """Million operations of the course's network for one digit, there and back.

    A weight is multiplied and added once for each place where it is used, and again for each of the two gradients; the
    first layer's input has none.
    """
    forward = {}
    for name, places in PLACES.items():
        outputs, *inputs = rules.COURSE_NET[f"{name}.weight"]
        weights = outputs
        for size in inputs:
            weights *= size
        forward[name] = 2 * places * weights
    return (3 * sum(forward.values()) - forward["conv1"]) / 1e6


def same_recipe(one: dict, other: dict) -> bool:
    """Did both train the same parameters with the same settings, as far as both have them?"""
    shared = one["recipe"].keys() & other["recipe"].keys()
    settings = all(one["recipe"][name] == other["recipe"][name] for name in shared)
    return settings and one["parameters"] == other["parameters"]


def trainings(record: dict) -> tuple[int, float]:
    """How many trainings were timed in an entry's process, on held-out digits and on all; their seconds together."""
    times = [row["training_ms"] for row in (*record["hold_out"], *record["rows"])]
    return len(times), sum(times) / 1e3


def knew(records: Iterable[dict]) -> list[float]:
    """Per cent that each network had right before it was trained."""
    return [row["untrained_pct"] for record in records for row in record["rows"]]


def hidden(records: Iterable[dict]) -> Table:
    """What an entry's median does not say: the range of its times, its worst seed, and its whole process."""
    rows = []
    for record in records:
        times = [row["training_ms"] for row in record["rows"]] or [NAN]
        count, seconds = trainings(record)
        rows.append(
            {
                "entry": line(record).name,
                "fastest ms": min(times),
                "slowest ms": max(times),
                "worst seed %": min((row["accuracy_pct"] for row in record["rows"]), default=NAN),
                "trainings": count,
                "all of them s": seconds,
                "whole process s": record["process_s"],
            }
        )
    formats = {"fastest ms": "{:.1f}", "slowest ms": "{:.1f}", "worst seed %": "{:.2f}", "all of them s": "{:.2f}"}
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the median hides", formats)
