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
from labkit.paths import REPORTS

KIND = "keras"


def runs(commands: Sequence[str]) -> dict[str, list[dict]]:
    """Whole-process runs of each command, as ``timing.runs``."""
    with _recorded_without(commands):
        return timing.runs(commands, kind=KIND)


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
    """The shipped trainings on few digits and a CPU, a row each: framework, policy, loss scale, seed, what came out."""
    rows = []
    for record in _shipped("*-limit-3000-*"):
        told, last = record["arguments"], record["epochs"][-1]
        rows.append(
            {
                "framework": f"Keras on {record['backend']}" if "backend" in record else "PyTorch",
                "policy": told.get("policy", "float32"),
                "scale": _scale(told),
                "seed": told["seed"],
                "accuracy_pct": record["test_accuracy_pct"],
                "loss": record["test_loss"],
                "skipped_steps": last.get("skipped_steps"),
                "last_scale": last.get("loss_scale"),
                "steps": len(record["epochs"]) * -(-record["train_samples"] // told["batch_size"]),
                "train_samples": record["train_samples"],
            }
        )
    return pd.DataFrame(rows)


def jit_on_a_cpu() -> dict[tuple[str, str], list[dict]]:
    """The shipped FP32 trainings on a CPU with and without ``jit_compile``: (backend, on or off) → records."""
    found: dict[tuple[str, str], list[dict]] = {}
    for record in _shipped("keras_mnist-*-limit-1024-*"):
        found.setdefault((record["backend"], record["arguments"]["jit"]), []).append(record)
    return found


def _scale(arguments: dict) -> str:
    """A run's loss scale in words."""
    scale = arguments.get("loss_scale", "none")
    if scale == "dynamic":
        return f"dynamic, from {arguments['initial_scale']:,.0f}"
    return scale if scale == "none" else f"fixed, {scale:,.0f}"


def _shipped(pattern: str) -> list[dict]:
    """The shipped records of this lab whose file's name fits, in order."""
    return [json.loads(file.read_text()) for file in sorted((recorded.folder() / KIND).glob(f"{pattern}.json"))]


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
