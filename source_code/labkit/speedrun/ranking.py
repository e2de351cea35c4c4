"""Which of the settings that a search tried is best? Needs no PyTorch."""

from __future__ import annotations

from labkit.speedrun import rules


def ranked(rows: list[dict]) -> list[dict]:
    """Rows that ran: first those that reach 99 % with an error to spare, by time; then by accuracy."""
    ran = [row for row in rows if "failed" not in row]
    return sorted(ran, key=lambda row: (0, row["median_ms"]) if reaches(row) else (1, -row["mean_pct"]))


def reaches(row: dict) -> bool:
    """Is the mean accuracy at 99 % or above, with a standard error to spare?"""
    return row["mean_pct"] - row["error_pct"] >= rules.GOAL_PCT
