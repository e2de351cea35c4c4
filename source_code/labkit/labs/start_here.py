"""What the front page shows: which fix mattered on which machine, and on which machine the rest was recorded.

Every step of the ladder is held against the one before, on each recorded machine. An epoch is compared, the first of a
run left out, since some machines were recorded with fewer epochs than others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import chain, pairwise

import pandas as pd

from labkit import course
from labkit.display.runs import is_beyond_noise
from labkit.display.spread import paired
from labkit.paths import RECORDED
from labkit.source import recorded
from stepbudget.show.table import Table, table

ALL = "all of them"  # the row of the last step against the first


def gains() -> pd.DataFrame:
    """How many times as fast an epoch is, a row a step (its label; then ``ALL``), a column a machine of the catalogue.

    The median over the rounds; NaN where the rounds cannot tell it from 1.
    """
    ladder = course.ladder()
    columns, behind = {}, {step: [] for step in ladder}
    for folder in course.MACHINES:
        for step in ladder:
            behind[step].append(recorded.records("runs", step.script, RECORDED / folder))
        runs = [_epochs(records[-1]) for records in behind.values()]
        ratios = [paired(*both, "epoch_s") for both in (*pairwise(runs), (runs[0], runs[-1]))]
        columns[folder] = [ratio.median if is_beyond_noise(ratio) else None for ratio in ratios]
    labels = [f"{step.label}{recorded.outdated(chain.from_iterable(behind[step]))}" for step in ladder[1:]]
    return pd.DataFrame(columns, index=[*labels, ALL], dtype=float)


def gains_table(found: pd.DataFrame) -> Table:
    """``gains()``, the machines by their names."""
    frame = found.rename(columns=course.MACHINES).rename_axis("step").reset_index()
    machines = list(course.MACHINES.values())
    caption = "An epoch: how many times as fast as with the step before (–: the rounds cannot tell it from no gain)"
    return table(frame, caption, dict.fromkeys(machines, "{:.3g}"))


def whole_table(found: pd.DataFrame) -> Table:
    """The row ``ALL`` of ``gains()``, a row a machine: it tells nothing of any single step."""
    frame = found.loc[ALL].rename(course.MACHINES).rename_axis("machine").rename("times as fast").reset_index()
    return table(frame, "An epoch, the last step against the first", {"times as fast": "{:.3g}"})


def mattered_most(found: pd.DataFrame) -> dict[str, str]:
    """Machine by its name → the label of the step that made an epoch the most times as fast there."""
    steps = found.drop(index=ALL)
    return {course.MACHINES[folder]: str(steps[folder].idxmax()) for folder in found}


def recorded_table() -> Table:
    """Where the recorded runs come from, in short; ``provenance.json`` holds the rest."""
    source = recorded.provenance()
    versions = source["versions"]
    lines = {
        "GPU": f"{source['gpu']}, driver {source['driver']}",
        "CPU": f"{source['cpu_cores']} cores, {source['cpu']}",
        "software": f"Python {versions['python']}, torch {versions['torch']}, Nsight Systems {source['nsys']}",
        "digits": ", ".join(source["data_source"]),
        "measured": f"{source['recorded'][:10]}, {source['repetitions']} runs of each step, in turn",
        "commits": f"{len({*chain.from_iterable(source['commits'].values())})}, named there",
        "made by": source["made_by"],
    }
    where = recorded.shown(recorded.folder() / "provenance.json")
    return table(pd.DataFrame(lines.items(), columns=["", where]))


def _epochs(records: Sequence[dict]) -> list[dict]:
    return [{"epoch_s": statistics.median(epoch["training_s"] for epoch in own["epochs"][1:])} for own in records]
