"""What the front page shows: which fix mattered on which machine, and on which machine the rest was recorded.

Every step of the ladder is held against the one before, on each recorded machine. An epoch is compared, the first of a
run left out, since some machines were recorded with fewer epochs than others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise, product

import pandas as pd

from labkit import course
from labkit.display.runs import is_beyond_noise
from labkit.display.spread import paired
from labkit.paths import RECORDED
from labkit.source import recorded
from stepbudget.show.table import Table, table

Epochs = Mapping[str, Mapping[course.Step, Sequence[dict]]]  # machine's folder → step → what it recorded


def epochs() -> Epochs:
    """The runs of every step of the ladder on each machine of the catalogue."""
    found = {folder: {} for folder in course.MACHINES}
    for folder, step in product(course.MACHINES, course.ladder()):
        found[folder][step] = recorded.records("runs", step.script, RECORDED / folder)
    return found


def seconds(found: Epochs) -> Table:
    """Seconds of an epoch, a row a step, a column a machine: the median over the runs, their first epochs left out."""
    rows = [
        {"step": step.label} | {course.MACHINES[folder]: _median_s(own[step]) for folder, own in found.items()}
        for step in course.ladder()
    ]
    older = {(folder, step) for folder, own in found.items() for step in own if recorded.outdated(own[step])}
    caption = "Seconds an epoch (the first left out), by machine"
    if older:
        steps = [step.label.partition(":")[0] for step in course.ladder() if step in {step for _, step in older}]
        on = [course.MACHINES[folder] for folder in found if folder in {folder for folder, _ in older}]
        caption += f" ({recorded.OLDER}: steps {', '.join(steps)} on {' and '.join(on).replace(', ', ' with ')})"
    return table(pd.DataFrame(rows), caption, dict.fromkeys(map(course.MACHINES.get, found), "{:.2f}"))


def mattered_most(found: Epochs) -> Table:
    """For each machine the step that saved most seconds of an epoch; each one that did in a round, where rounds differ.

    A step counts if the rounds agree that it saved any; a machine on which none did has no row.
    """
    rows = []
    for folder, own in found.items():
        saved = {}  # a step and the one before it → the seconds saved, a round each
        for pair in pairwise(own):
            slow, fast = (_epochs(own[step]) for step in pair)
            if is_beyond_noise(paired(slow, fast, "epoch_s")):
                saved[pair] = [one["epoch_s"] - other["epoch_s"] for one, other in zip(slow, fast, strict=False)]
        rounds = range(min(map(len, saved.values()), default=0))
        for before, after in {max(saved, key=lambda pair: saved[pair][number]): None for number in rounds}:
            was, now = _median_s(own[before]), _median_s(own[after])
            rows.append((course.MACHINES[folder], after.label.partition(": ")[2], was, now, was - now))
    columns = ["machine", "what saved most", "epoch before s", "after s", "saved s"]
    caption = "What mattered most; two rows where repeated runs disagree"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[2:], "{:.2f}"))


def recorded_table() -> Table:
    """Where the recorded runs come from, in short; ``provenance.json`` holds the rest."""
    source = recorded.provenance()
    versions = source["versions"]
    days = f"{source['recorded'][:10]} to {source['finished'][:10]}"
    lines = {
        "GPU": f"{source['gpu']}, driver {source['driver']}",
        "CPU": f"{source['cpu_cores']} cores, {source['cpu']}",
        "software": f"Python {versions['python']}, torch {versions['torch']}, Nsight Systems {source['nsys']}",
        "digits": ", ".join(source["data_source"]),
        "measured": f"{days}; {source['repetitions']} runs of each step, in turn",
        "commits": f"{len({*chain.from_iterable(source['commits'].values())})}, in that file",
        "made by": source["made_by"],
    }
    where = recorded.shown(recorded.folder() / "provenance.json")
    return table(pd.DataFrame(lines.items(), columns=["", where]))


def _median_s(records: Sequence[dict]) -> float:
    return statistics.median(own["epoch_s"] for own in _epochs(records))


def _epochs(records: Sequence[dict]) -> list[dict]:
    return [{"epoch_s": statistics.median(epoch["training_s"] for epoch in own["epochs"][1:])} for own in records]
