"""What did Keras do? Records of labs 16 and 17: made now where Keras and the backend are there, else shipped ones.

What ran on TensorFlow, on a CPU, is shipped and never run again by the labs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from labkit import source
from labkit.source import kinds, recorded
from labkit.training import keras_net

KIND = "keras"
USUAL_SCALE = "dynamic, from 32,768"  # as compile gives it
Tried = Mapping[str, Mapping[str, pd.DataFrame]]  # backend → the tables that ``tried`` gives


def with_keras(request: kinds.Request[kinds.Answer]) -> kinds.Request[kinds.Answer]:
    """The same, for which live runs need Keras and the backends that its commands name."""
    backends = {backend for command in request.commands for backend in re.findall(r"--backend (\w+)", command)}
    return replace(request, packages=("keras", *sorted(backends)), install=keras_net.HOW_TO_INSTALL)


def tried(backend: str) -> dict[str, pd.DataFrame]:
    """The tables of ``bench_keras.py`` on a backend, by name; of TensorFlow's the shipped ones."""
    asked = source.Recorded(recorded.folder()) if backend == "tensorflow" else source.current()
    record = asked.get(with_keras(kinds.record(f"bench_keras.py --backend {backend}", KIND)))
    rows = pd.DataFrame(record["rows"])
    return {name: table.dropna(axis=1, how="all") for name, table in rows.groupby("table", sort=False)}


def benchmarks(commands: str) -> dict[str, dict[str, pd.DataFrame]]:
    """The tables of ``bench_keras.py``, by backend; a ``python3 …`` command a line, as in a terminal."""
    return {backend: tried(backend) for backend in re.findall(r"--backend (\w+)", commands)}


def few_digits() -> pd.DataFrame:
    """The shipped trainings on few digits and a CPU, a row each: framework, policy, loss scale, seed, what came out."""
    rows = []
    for record in recorded.matching(KIND, "*-limit-3000-*"):
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


def _scale(arguments: dict) -> str:
    """A run's loss scale in words."""
    scale = arguments.get("loss_scale", "none")
    if scale == "dynamic":
        return f"dynamic, from {arguments['initial_scale']:,.0f}"
    return scale if scale == "none" else f"fixed, {scale:,.0f}"
