"""Which entry is fastest, and how far does each seed stray?"""

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
    frame = pd.DataFrame(record["rows"])[["seed", "training_ms", "untrained_pct", "accuracy_pct"]]
    frame.columns = ["seed", "training ms", "before it %", "after it %"]
    formats = {"training ms": "{:,.2f}", "before it %": "{:.1f}", "after it %": "{:.2f}"}
    return table(frame, f"{record['entry']}, seed by seed", formats, list(formats))


def goals(records: Iterable[dict]) -> Table:
    """Each track's goal, and the fastest entry in it so far."""
    lines = [readings.line(record) for record in records]
    rows = []
    for track in rules.TRACKS.values():
        best = min((one.training_ms for one in lines if one.track == track.name), default=float("nan"))
        rows.append({"track": track.name, "goal ms": track.goal_ms, "best ms": best})
    return table(pd.DataFrame(rows), None, {"goal ms": "{:.0f}", "best ms": "{:.1f}"}, ["best ms"])
