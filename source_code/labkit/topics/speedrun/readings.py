"""What do the entries say? Records of ``benchmarks/speedrun.py`` and of its search, and what others have published."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.source import recorded
from labkit.speedrun import ranking, rules

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


def standing(records: Iterable[dict]) -> list[Line]:
    """All lines, fastest first: the records', and the published ones."""
    return sorted(
        [*map(line, records), *published()], key=lambda one: (one.training_ms != one.training_ms, one.training_ms)
    )


def best(records: Iterable[dict]) -> dict[str, float]:
    """Milliseconds of the fastest entry of each track; NaN where a track has none."""
    lines = [line(record) for record in records]
    return {
        name: min((one.training_ms for one in lines if one.track == name and one.seeds), default=NAN)
        for name in rules.TRACKS
    }


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


def tried(search: dict, number: int) -> list[dict]:
    """The rows of a search's first or second round that ran."""
    return [row for row in search["rows"] if row["round"] == number and "failed" not in row]


def chosen(search: dict) -> dict:
    """The row that a search ends with: of its second round, else of its first; of no settings where nothing ran."""
    rows = ranking.ranked(tried(search, 2)) or ranking.ranked(tried(search, 1))
    return rows[0] if rows else {"settings": {}, "seeds": 0, "mean_pct": NAN, "error_pct": NAN, "median_ms": NAN}


def first_round(search: dict, row: dict) -> dict:
    """What the first round said of a row's settings; the row itself where they had no other."""
    return next((one for one in tried(search, 1) if one["settings"] == row["settings"]), row)


def added_pct(search: dict, row: dict) -> float:
    """The mean accuracy of the seeds that the second round added to the first's; NaN where it added none.

    Both rounds begin with seed 1, so a row of the second holds the first round's seeds too.
    """
    first = first_round(search, row)
    added = row["seeds"] - first["seeds"]
    if not added:
        return NAN
    return (row["seeds"] * row["mean_pct"] - first["seeds"] * first["mean_pct"]) / added


def is_recipe_of(row: dict, record: dict) -> bool:
    """Was an entry trained with this row's settings?"""
    settings = row["settings"]
    return bool(settings) and all(record["recipe"][name] == value for name, value in settings.items())
