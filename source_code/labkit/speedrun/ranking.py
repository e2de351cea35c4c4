"""Which of the settings that a search tried is best? Needs no PyTorch."""

from __future__ import annotations

from labkit.speedrun import rules

TIE = 1.03  # times that differ by less are equal: those of equal work do, in one search and from search to search
SPREAD_PCT = 0.06  # of entries' accuracies over the seeds, usually: two or three seeds may agree by chance


def ranked(rows: list[dict]) -> list[dict]:
    """Rows that ran: first those that reach 99 % with an error to spare, by time; then the others by accuracy.

    Of those about as fast as the fastest that is left, the most accurate comes first.
    """
    best_first = sorted((row for row in rows if "failed" not in row), key=lambda row: -row["mean_pct"])
    enough, found = [row for row in best_first if reaches(row)], []
    while enough:
        slowest_ms = TIE * min(row["median_ms"] for row in enough)
        found += [row for row in enough if row["median_ms"] <= slowest_ms]
        enough = [row for row in enough if row["median_ms"] > slowest_ms]
    return found + [row for row in best_first if not reaches(row)]


def reaches(row: dict) -> bool:
    """Is the mean accuracy at 99 % or above, with a standard error to spare, its own or the usual one?"""
    error_pct = max(row["error_pct"], SPREAD_PCT / row["seeds"] ** 0.5)
    return row["mean_pct"] - error_pct >= rules.GOAL_PCT
