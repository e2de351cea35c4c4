"""What did each rung of the ladder bring? The wall-clock table; epochs of two rungs, round by round; their noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from labkit import course
from labkit.display.spread import Spread, spread
from labkit.source import quick
from stepbudget.show.table import Table


@dataclass(frozen=True, repr=False)
class WallClock(Table):
    """The wall-clock table, and the records behind it: step's name, or its command → a record a run."""

    runs: Mapping[str, Sequence[dict]] = field(default_factory=dict)


def wall_clock_table(records: Mapping[str, Sequence[dict]], in_turn: bool = True) -> WallClock:
    """The wall-clock table: whole process and training loop, median and range, speedups, test accuracy.

    ``records`` maps a step's name, or its command, to its records; all are compared with the first. ``in_turn=False``
    is for alternatives, which do not build on one another: no speedup over the row before is shown.
    """
    found = {_label(name): own for name, own in records.items()}
    names = list(found)
    process = {name: spread(found[name]) for name in names}
    epochs = {len(record["epochs"]) for records in found.values() for record in records}
    least, most = min(epochs), max(epochs)
    after = "" if least == quick.FULL_EPOCHS else f" after {least} epochs"  # never beside a claim on ten epochs
    rows, against = [], "× baseline" if names[0] == _label("main_baseline.py") else "× first"
    for i, name in enumerate(names):
        whole, before, first = process[name], process[names[max(0, i - 1)]], process[names[0]]
        mnist = all(record["data_source"] == "MNIST" for record in found[name])
        digits = "" if mnist else " (bundled digits, not MNIST)"
        rows.append(
            {
                "step": name,
                "n": whole.n,
                "process s": whole.median,
                "range s": f"{whole.low:.1f}–{whole.high:.1f}",
                "training s": spread(found[name], "training_s").median,
                "test s": spread(found[name], "test_s").median,
                "× before": before.median / whole.median if i else None,
                against: first.median / whole.median if i else None,
                f"accuracy %{after}{digits}": spread(found[name], "test_accuracy_pct").median,
            }
        )
    frame = pd.DataFrame(rows)
    frame = frame.drop(columns=["× before", against] if len(names) == 1 else [] if in_turn else ["× before"])
    formats = dict.fromkeys(["process s", "training s", "test s"], "{:.1f}")
    formats |= dict.fromkeys(["× before", against, frame.columns[-1]], "{:.2f}")
    many = _in_words(most) if least == most else f"{_in_words(least)} to {most}"
    caption = f"{many} epochs: whole process (median and range of n runs), with training loop and test (medians)"
    measured = [column for column in formats if column in frame]
    return WallClock(frame, caption, {column: formats[column] for column in measured}, runs=records)


def _label(name: str) -> str:
    """What a step is called in tables: by the catalogue, where it is a script of the ladder alone."""
    known = {step.script: step.label for step in course.ladder()}
    return known.get(name, name.replace(".py", ""))


def _in_words(epochs: int) -> str:
    return {quick.EPOCHS: "Three", quick.FULL_EPOCHS: "Ten"}.get(epochs, str(epochs))


def epochs_words(count: int) -> str:
    """``"ten epochs"`` for the recipe's, else ``"3 epochs"``: live runs may be shorter."""
    return "ten epochs" if count == 10 else f"{count} epoch{'' if count == 1 else 's'}"


def epoch_times(slow: Sequence[dict], fast: Sequence[dict]) -> Spread:
    """How many times as fast is an epoch after the first, round by round (the median over a run's epochs)?"""
    return Spread.of([_epoch_s(one) / _epoch_s(other) for one, other in zip(slow, fast, strict=False)])


def first_epoch_longer_s(records: Sequence[dict]) -> float:
    """How many seconds a run's first epoch takes longer than its others: the median over the runs."""
    return statistics.median(record["epochs"][0]["training_s"] - _epoch_s(record) for record in records)


def _epoch_s(record: dict) -> float:
    return statistics.median(epoch["training_s"] for epoch in record["epochs"][1:])
