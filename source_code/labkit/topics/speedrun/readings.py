"""What do the entries say? Records of ``benchmarks/speedrun.py``, and what others have published."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.speedrun import rules

ENTRIES = SOURCE_CODE / "speedrun" / "entries"
PUBLISHED = SOURCE_CODE / "speedrun" / "published.json"


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
    """An entry's line: mean accuracy, and the median of its times. LabError where it breaks a rule."""
    if broken := rules.broken(record):
        raise LabError(f"{record['entry']} is no entry: {'; '.join(broken)}.")
    accuracies = [row["accuracy_pct"] for row in record["rows"]]
    return Line(
        record["track"], record["entry"].removesuffix(".py"), record["author"], record["gpu"],
        statistics.fmean(accuracies), statistics.stdev(accuracies), len(accuracies),
        statistics.median(row["training_ms"] for row in record["rows"]),
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


def published() -> list[Line]:
    """What others have published, with the place."""
    return [Line(**one) for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))]


def standing(records: Iterable[dict]) -> list[Line]:
    """All lines, fastest first: the records', and the published ones."""
    return sorted([*map(line, records), *published()], key=lambda one: one.training_ms)


def steps(record: dict) -> int:
    """Steps of a training of this recipe over all training digits; what does not fill a batch is left out."""
    recipe = record["recipe"]
    return int(recipe["epochs"] * record["train_samples"] / recipe["batch"])


def same_recipe(one: dict, other: dict) -> bool:
    """Did both train the same parameters with the same settings, as far as both have them?"""
    shared = one["recipe"].keys() & other["recipe"].keys()
    settings = all(one["recipe"][name] == other["recipe"][name] for name in shared)
    return settings and one["parameters"] == other["parameters"]
