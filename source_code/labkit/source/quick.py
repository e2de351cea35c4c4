"""What is shortened live, so that a lab waits less? Trainings: fewer epochs and rounds, unless ``LAB_LIVE=full``.

Compilers' caches stay warm from run to run in both. Benchmarks, profiles and counts are the same in both.
"""

from __future__ import annotations

import os

from labkit.errors import LabError

EPOCHS, ROUNDS = 3, 2  # of a quick run: a first epoch, which is left out, and two to compare; twice, to see the noise
FULL_EPOCHS, FULL_ROUNDS = 10, 3  # as recorded
TRAINING = ("main_", "keras_")  # what the scripts that train are called
WORDS = ("quick", "full")


def is_quick() -> bool:
    """Are live runs to be quick? ``LAB_LIVE=quick|full``; LabError for another word."""
    wanted = os.environ.get("LAB_LIVE", "").strip().lower() or "quick"
    if wanted not in WORDS:
        raise LabError(f"LAB_LIVE={wanted} is not a way to run live: use {' or '.join(WORDS)}.")
    return wanted == "quick"


def quick(command: str) -> str:
    """The quick form of a timed run: a training of fewer epochs, unless the command says how many itself."""
    has_form = command.startswith(TRAINING) and "--epochs" not in command.split()
    return f"{command} --epochs {EPOCHS}" if has_form else command


def rounds(when_quick: int = ROUNDS) -> int:
    """How often each step is run live: ``LAB_REPEATS``, else what quick or full mode asks for."""
    usual = when_quick if is_quick() else FULL_ROUNDS
    wanted = os.environ.get("LAB_REPEATS", "").strip() or str(usual)
    if not wanted.isdecimal() or int(wanted) < 1:
        raise LabError(f"LAB_REPEATS={wanted} is not a number of runs.")
    return int(wanted)


def shortened(record: dict, epochs: int = EPOCHS) -> dict:
    """What a recorded training would have been with its first ``epochs`` epochs only."""
    kept, left_out = record["epochs"][:epochs], record["epochs"][epochs:]
    if not left_out:
        return record
    parts = {name: sum(epoch[name] for epoch in kept) for name in ("training_s", "test_s")}
    saved_s = sum(epoch["training_s"] + epoch["test_s"] for epoch in left_out)
    ends = {name: record[name] - saved_s for name in ("wall_s", "process_s")}
    result = {name: kept[-1][name] for name in ("test_loss", "test_accuracy_pct")}
    arguments = record["arguments"] | {"epochs": epochs}
    form = {"command": quick(record["command"]), "arguments": arguments, "epochs": kept}
    return record | form | parts | ends | result
