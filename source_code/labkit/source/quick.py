"""What is shortened live, so that a lab waits less? Trainings: fewer epochs, rounds, seeds, unless ``LAB_LIVE=full``.

Compilers' caches stay warm from run to run in both. Profiles, counts and most benchmarks are the same in both.
"""

from __future__ import annotations

import os

from labkit.errors import LabError
from labkit.source.sweep import spare

MOST_ROUNDS = 100  # that somebody may ask for: hours each
EPOCHS, ROUNDS = 3, 2  # of a quick run: a first epoch, which is left out, and two to compare; twice, to see the noise
FULL_EPOCHS, FULL_ROUNDS = 10, 3  # as recorded
TRAINING = ("main_", "keras_")  # what the scripts that train are called
FEWER = {  # benchmarks of minutes: the flag that says how often or how long they do the same, and what it is when quick
    "bench_sin_fit.py": ("seeds", 2),
    "bench_gan.py": ("seeds", 3),
    "bench_formats.py": ("seeds", 3),
    "bench_roofs.py": ("seconds", 0.5),
    "bench_startup.py": ("repeats", 1),
    "bench_wmma.py": ("sizes", 5),
    "speedrun_search.py": ("minutes", 0.3),
}
ON_SPARE_CORES = ("main_opt1.py", "main_opt2.py", "main_opt3.py")  # their workers are as many as the cores to spare
WORDS = ("quick", "full")


def is_quick() -> bool:
    """Are live runs to be quick? ``LAB_LIVE=quick|full``; LabError for another word."""
    wanted = os.environ.get("LAB_LIVE", "").strip().lower() or "quick"
    if wanted not in WORDS:
        raise LabError(f"LAB_LIVE={wanted} is not a way to run live: use {' or '.join(WORDS)}.")
    return wanted == "quick"


def quick(command: str) -> str:
    """The quick form of a command: fewer epochs, seeds or repeats, unless it says how many itself."""
    told = command.split()
    if command.startswith(TRAINING) and "--epochs" not in told:
        return f"{command} --epochs {EPOCHS}"
    flag, times = FEWER.get(told[0], ("", 0))
    if flag and not {f"--{flag}", "--profile"} & set(told):
        return f"{command} --{flag} {times}"
    return command


def as_run(command: str, cores: int) -> str:
    """The command as the mode has it run; when quick, without ``--workers`` where a step starts so many by itself."""
    if not is_quick():
        return command
    return quick(command).removesuffix(f" --workers {spare(cores)}" if command.split()[0] in ON_SPARE_CORES else "")


def whole(command: str) -> str:
    """The command of which this is the quick form; the command itself where it is none."""
    for ending in (f" --epochs {EPOCHS}", *(f" --{flag} {times}" for flag, times in FEWER.values())):
        if command.endswith(ending) and quick(command.removesuffix(ending)) == command:
            return command.removesuffix(ending)
    return command


def rounds(when_quick: int = ROUNDS) -> int:
    """How often each step is run live: ``LAB_REPEATS``, else what quick or full mode asks for; 0 leaves it out."""
    if is_quick() and not when_quick:
        return 0
    usual = when_quick if is_quick() else FULL_ROUNDS
    wanted = os.environ.get("LAB_REPEATS", "").strip() or str(usual)
    if not wanted.isdecimal() or len(wanted) > len(str(MOST_ROUNDS)) or not 1 <= int(wanted) <= MOST_ROUNDS:
        raise LabError(f"LAB_REPEATS={wanted} is not a number of runs: 1 to {MOST_ROUNDS}.")
    return int(wanted)


def shortened(record: dict) -> dict:
    """What a recorded run would have been in its quick form: with its first epochs, seeds or repeats, only."""
    if "epochs" not in record:
        return _fewer(record)
    kept, left_out = record["epochs"][:EPOCHS], record["epochs"][EPOCHS:]
    if not left_out:
        return record
    parts = {name: sum(epoch[name] for epoch in kept) for name in ("training_s", "test_s")}
    saved_s = sum(epoch["training_s"] + epoch["test_s"] for epoch in left_out)
    ends = {name: record[name] - saved_s for name in ("wall_s", "process_s")}
    result = {name: kept[-1][name] for name in ("test_loss", "test_accuracy_pct")}
    arguments = record["arguments"] | {"epochs": EPOCHS}
    form = {"command": quick(record["command"]), "arguments": arguments, "epochs": kept}
    return record | form | parts | ends | result


def _fewer(record: dict) -> dict:
    flag, times = FEWER[record["script"]]
    share = times / record["arguments"][flag]
    form = {"command": quick(record["command"]), "arguments": record["arguments"] | {flag: times}}
    form["rows"] = [row | _first_of(row, times) for row in record["rows"] if row.get("seed", 0) <= times]
    return record | form | {"process_s": record["process_s"] * share}


def _first_of(row: dict, times: int) -> dict:
    """What a row holds of each repeat, of the first ones only (of a sorted row: the fastest)."""
    return {"process_s": row["process_s"][:times]} if "process_s" in row else {}
