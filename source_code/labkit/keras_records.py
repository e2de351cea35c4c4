"""What did Keras do? The records of lab 12: made now where Keras and the backend are there, else the shipped ones.

What ran on TensorFlow, on a CPU, is shipped and never run again by the lab.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pandas as pd

from labkit import keras_run, machine, recorded, timing
from labkit.nsight import command as nsys
from labkit.nsight.report import Report
from labkit.paths import REPORTS

KIND = "keras"


def runs(commands: Sequence[str]) -> dict[str, list[dict]]:
    """Whole-process runs of each command, as ``timing.runs``."""
    with _recorded_without(commands):
        return timing.runs(commands, kind=KIND)


def once(commands: Sequence[str]) -> dict[str, list[dict]]:
    """One whole-process run of each command."""
    with _recorded_without(commands):
        return timing.runs(commands, repeats=1, kind=KIND)


def profile(command: str) -> Report:
    """The report of an ``nsys profile`` command, as ``lab.profile``."""
    with _recorded_without([command]):
        return nsys.profile(command)


def tried(backend: str) -> dict[str, pd.DataFrame]:
    """The tables of ``bench_keras.py`` on a backend, by name."""
    command = f"bench_keras.py --backend {backend}"
    print(f"$ python3 source_code/{command}")
    with _recorded_without([command]):
        if machine.is_live():
            folder = REPORTS / KIND
            folder.mkdir(parents=True, exist_ok=True)
            record = timing.run_once(command, folder / f"{recorded.key(command)}-01.json")
            print(f"live: {recorded.shown(folder)}")
        else:
            record = recorded.records(KIND, command)[0]
            where = recorded.shown(recorded.folder() / KIND)
            print(f"recorded ({_on(record)}): {where}")
    rows = pd.DataFrame(record["rows"])
    return {name: table.dropna(axis=1, how="all") for name, table in rows.groupby("table", sort=False)}


def few_digits() -> pd.DataFrame:
    """The shipped trainings on a CPU and few digits, a row each: framework, policy, seed, test accuracy in per cent."""
    found = []
    for file in sorted((recorded.folder() / KIND).glob("*limit*.json")):
        record = json.loads(file.read_text())
        told = record["arguments"]
        framework = f"Keras on {record['backend']}" if "backend" in record else "PyTorch"
        policy = told.get("policy") or "float32"
        found.append((framework, policy, told["seed"], record["test_accuracy_pct"], record["train_samples"]))
    return pd.DataFrame(found, columns=["framework", "policy", "seed", "accuracy_pct", "train_samples"])


def _on(record: dict) -> str:
    """Where and when a record was made, in a few words."""
    return f"{record['gpu'] or 'CPU'}, {record['run_at'][:10]}"


@contextmanager
def _recorded_without(commands: Sequence[str], show: Callable[[str], None] = print) -> Iterator[None]:
    """Recorded mode, in which nothing is run, where a command's backend or Keras itself cannot be imported."""
    backends = {backend for command in commands for backend in re.findall(r"--backend (\w+)", command)}
    absent = keras_run.missing("keras", *sorted(backends)) if machine.is_live() else []
    before = os.environ.get("LAB_MODE")
    if absent:
        show(f"recorded, since {' and '.join(absent)} cannot be imported here ({keras_run.HOW_TO_INSTALL})")
        os.environ["LAB_MODE"] = "recorded"
    try:
        yield
    finally:
        if absent and before is None:
            del os.environ["LAB_MODE"]
        elif absent:
            os.environ["LAB_MODE"] = before
