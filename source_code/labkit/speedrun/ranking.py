"""Which of the settings that a search tried is best? Needs no PyTorch."""

from __future__ import annotations

from labkit.speedrun import rules

TIE = 1.01  # times that differ by less are equal: from search to search they exchange places


def ranked(rows: list[dict]) -> list[dict]:
    """Rows that ran: first those that reach 99 % with an error to spare, by time; then the others by accuracy.

    Those about as fast as the fastest come first of all, by accuracy.
    """
    ran = [row for row in rows if "failed" not in row]
    fastest_ms = min((row["median_ms"] for row in ran if reaches(row)), default=0.0)

    def place(row: dict) -> tuple[int, float]:
        if not reaches(row):
            return 2, -row["mean_pct"]
        return (0, -row["mean_pct"]) if row["median_ms"] <= TIE * fastest_ms else (1, row["median_ms"])

    return sorted(ran, key=place)


def reaches(row: dict) -> bool:
    """Is the mean accuracy at 99 % or above, with a standard error to spare?"""
    return row["mean_pct"] - row["error_pct"] >= rules.GOAL_PCT
