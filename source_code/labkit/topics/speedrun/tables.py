"""Which entry is fastest, how far does each seed stray, and what did it take beside the training?"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from labkit.display.table import Table, table
from labkit.speedrun import rules
from labkit.topics.speedrun import readings


def standing(records: Iterable[dict]) -> Table:
    """Every entry and every published result, fastest first."""
    lines = readings.standing(records)
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
    return table(frame, "Time to 99 %: median over the seeds, and the test accuracy", formats, list(formats))


def seeds(record: dict) -> Table:
    """Each seed of an entry."""
    frame = pd.DataFrame(record["rows"], columns=["seed", "training_ms", "untrained_pct", "accuracy_pct"])
    frame.columns = ["seed", "training ms", "before it %", "after it %"]
    formats = {"training ms": "{:,.2f}", "before it %": "{:.1f}", "after it %": "{:.2f}"}
    return table(frame, f"{record['entry']}, seed by seed", formats, list(formats))


def goals(records: Iterable[dict]) -> Table:
    """Each track's goal, and the fastest entry in it so far."""
    best = readings.best(records)
    rows = [
        {"track": track.name, "set beforehand, ms": track.goal_ms, "best ms": best[track.name]}
        for track in rules.TRACKS.values()
    ]
    formats = {"set beforehand, ms": "{:.0f}", "best ms": "{:.1f}"}
    return table(pd.DataFrame(rows), None, formats, ["best ms"])


def hidden(records: Iterable[dict]) -> Table:
    """What an entry's median does not say: the range of its times, its worst seed, and its whole process."""
    rows = []
    for record in records:
        times = [row["training_ms"] for row in record["rows"]] or [readings.NAN]
        count, seconds = readings.trainings(record)
        rows.append(
            {
                "entry": readings.line(record).name,
                "fastest ms": min(times),
                "slowest ms": max(times),
                "worst seed %": min((row["accuracy_pct"] for row in record["rows"]), default=readings.NAN),
                "trainings": count,
                "all of them s": seconds,
                "whole process s": record["process_s"],
            }
        )
    formats = {"fastest ms": "{:.1f}", "slowest ms": "{:.1f}", "worst seed %": "{:.2f}", "all of them s": "{:.2f}"}
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the median hides", formats, list(formats))


def cost(searches: Iterable[dict]) -> Table:
    """What it took to find a recipe: combinations, trainings, and where the seconds went."""
    rows = []
    for search in searches:
        ran = [row for number in (1, 2) for row in readings.tried(search, number)]
        rows.append(
            {
                "entry": search["entry"].removesuffix(".py"),
                "combinations": search["combinations"],
                "tried": len(readings.tried(search, 1)),
                "again": len(readings.tried(search, 2)),
                "trainings": sum(row["seeds"] for row in ran),
                "all of them s": sum(row["seeds"] * row["median_ms"] for row in ran) / 1e3,
                "preparing s": sum(row["warm_up_s"] for row in ran),
                "whole process s": search["process_s"],
            }
        )
    formats = {"tried": "{}", "again": "{}", "trainings": "{}", "all of them s": "{:.1f}", "preparing s": "{:.1f}"}
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the search took", formats, list(formats))


def rounds(searches: Iterable[dict]) -> Table:
    """Of each search's chosen recipe: the mean of the first round's seeds, and of those that the second added."""
    rows = []
    for search in searches:
        row = readings.chosen(search)
        first, added = readings.first_round(search, row), readings.added_pct(search, row)
        rows.append(
            {
                "entry": search["entry"].removesuffix(".py"),
                "seeds": first["seeds"],
                "their mean %": first["mean_pct"],
                "± %": first["error_pct"],
                "added": row["seeds"] - first["seeds"],
                "mean of these %": added,
                "difference %": first["mean_pct"] - added,
            }
        )
    formats = {"their mean %": "{:.3f}", "± %": "{:.3f}", "mean of these %": "{:.3f}", "difference %": "{:+.3f}"}
    caption = "The chosen recipes: the first round's seeds, and those that the second round added"
    return table(pd.DataFrame(rows), caption, formats, list(formats))


def recipes(searches: Iterable[dict]) -> Table:
    """The settings that each search ends with, and what held-out digits say of them."""
    rows = []
    for search in searches:
        row = readings.chosen(search)
        settings = {name: str(value) for name, value in row["settings"].items()}
        name = search["entry"].removesuffix(".py")
        rows.append({"entry": name, "held out %": row["mean_pct"], "± %": row["error_pct"], **settings})
    frame = pd.DataFrame(rows)
    formats = {"held out %": "{:.3f}", "± %": "{:.3f}"}
    return table(frame, "The recipe that each search chose, by digits held out", formats, list(frame.columns[1:]))
