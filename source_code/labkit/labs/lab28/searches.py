"""What did a search for a recipe find, and what did it take? Records of ``benchmarks/speedrun_search.py``."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from labkit.labs.lab28.entries import NAN
from labkit.speedrun import ranking
from stepbudget.show.table import Table, table


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


def second_round(search: dict) -> list[tuple[float, float, float]]:
    """Of each recipe that was tried again: milliseconds, mean accuracy and its standard error in per cent."""
    rows = tried(search, 2)
    return [(round(row["median_ms"], 1), round(row["mean_pct"], 3), round(row["error_pct"], 3)) for row in rows]


def cost(searches: Iterable[dict]) -> Table:
    """What it took to find a recipe: combinations, trainings, and where the seconds went.

    Also how many trainings by the recipe that was found would take as long as all that were made.
    """
    rows = []
    for search in searches:
        ran = [row for number in (1, 2) for row in tried(search, number)]
        trained_ms = sum(row["seeds"] * row["median_ms"] for row in ran)
        rows.append(
            {
                "entry": search["entry"].removesuffix(".py"),
                "combinations": search["combinations"],
                "tried": len(tried(search, 1)),
                "again": len(tried(search, 2)),
                "trainings": sum(row["seeds"] for row in ran),
                "all of them s": trained_ms / 1e3,
                "by the chosen recipe": trained_ms / chosen(search)["median_ms"],
                "preparing s": sum(row["warm_up_s"] for row in ran),
                "whole process s": search["process_s"],
            }
        )
    formats = {
        "tried": "{}",
        "again": "{}",
        "trainings": "{}",
        "all of them s": "{:.1f}",
        "by the chosen recipe": "{:.0f}",
        "preparing s": "{:.1f}",
    }
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the search took", formats)


def rounds(searches: Iterable[dict]) -> Table:
    """Of each search's chosen recipe: the mean of the first round's seeds, and of those that the second added."""
    rows = []
    for search in searches:
        row = chosen(search)
        first, added = first_round(search, row), added_pct(search, row)
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
    return table(pd.DataFrame(rows), caption, formats)
