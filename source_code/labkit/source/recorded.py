"""What did the course ship with? Runs, reports and benchmarks measured on one GPU, and where they come from.

reports/recorded/<gpu>/provenance.json   GPU, driver, versions, commands, dates, commit, a checksum for each file
                       runs/             whole-process runs, one JSON record each: <key>-<round>.json
                       accuracy/         full trainings for the accuracy gate: <key>--seed-<n>.json
                       profiles/         slim Nsight Systems reports: <name>.sqlite.xz
                       benchmarks/       what the small benchmark scripts found: <key>-<round>.json
                       counters/         what Nsight Compute counted: <name>.csv
                       findings/         what other tools said of the clinic's reports: <tool>--<case>.json
                       nsight/           a whole report, for Nsight Systems' own window: <name>.nsys-rep
                       ranks/            several GPUs of one host: a record for each number of them and each round
                       torch_profiler/   what PyTorch's profiler left: <step>.json and <step>.trace.json.gz
                       keras/            runs of the Keras scripts, a record each: <key>-<round>.json
                       reference/        runs of PyTorch's own example, beside the baseline's
                       nsys_stats/       what nsys stats said of a report: <report>.json
"""

from __future__ import annotations

import os
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from labkit import course
from labkit.errors import LabError, NotRecorded, near
from labkit.paths import RECORDED
from labkit.scripts import script
from labkit.source import originals
from labkit.source.quick import quick, shortened, whole
from labkit.source.running import trace_beside
from labkit.training import manifest

DEFAULT = course.DEFAULT_MACHINE
Found = TypeVar("Found")
OLDER = "code changed since"  # of what today's code would measure otherwise, or of what nobody knows the code
TRACES = "torch_profiler"  # where records and traces of PyTorch's profiler lie
RANKS = "ranks"  # where the records of several GPUs lie
shown = originals.shown
ROUNDS = "{key}-[0-9]*.json"  # what a command's runs are called
NAMED = {"profiles": ("report", ".sqlite.xz"), "counters": ("set of counts", ".csv")}  # files that their commands name


def folder() -> Path:
    """The recorded folder in use: ``LAB_RECORDED=<machine>``, else the default machine's. LabError if there is none."""
    wanted = os.environ.get("LAB_RECORDED") or DEFAULT
    if not (RECORDED / wanted / "provenance.json").is_file():
        there = ", ".join(sorted(file.parent.name for file in RECORDED.glob("*/provenance.json"))) or "none"
        raise LabError(f"nothing was recorded on {wanted}: there are {there} (in {RECORDED}).")
    return RECORDED / wanted


def machines(where: Path | None = None) -> list[Path]:
    """The folders to look in: the one in use, or ``where``, then the default machine's and the hosts'.

    Not every machine was recorded in full, and what takes several GPUs is a host's.
    """
    first = where or folder()
    others = [RECORDED / name for name in (DEFAULT, *course.HOSTS)]
    return [first, *(other for other in others if other != first and other.is_dir())]


def held(find: Callable[[Path], Found], where: Path | None = None) -> tuple[Found, Path]:
    """What ``find`` finds in the first of the ``machines`` that has it, and that folder; NotRecorded where none has."""
    first, *others = machines(where)
    try:
        return find(first), first
    except NotRecorded:
        for other in others:
            with suppress(NotRecorded):
                return find(other), other
        raise


def provenance(where: Path | None = None) -> dict:
    """Where the recorded runs come from: the content of ``provenance.json``, of the folder in use or of ``where``."""
    return originals.about(where or folder())


def origin(where: Path, records: Iterable[dict] = (), on: str | None = None) -> str:
    """GPU (or ``on``) and days of records in a few words, for captions, and whether they are older than their code.

    Without records the folder's own GPU and days.
    """
    source, records = provenance(where), list(records)
    own = [source[when][:10] for when in ("recorded", "finished")]
    days = sorted({record["run_at"][:10] for record in records} or {*own})
    return f"{on or source['gpu']}, {days[0]}" + (f" to {days[-1]}" if days[1:] else "") + outdated(records)


def outdated(records: Iterable[dict]) -> str:
    """``, code changed since``, where one of the records is."""
    return f", {OLDER}" if any(map(manifest.is_outdated, records)) else ""


def record_of(file: Path) -> dict:
    """The record in a file, or beside a report or counts: command, day, versions, the code's hashes."""
    is_record = file.suffix == ".json"
    return originals.read(file if is_record else file.with_name(f"{file.name.partition('.')[0]}.json"))


def key(command: str) -> str:
    """A file name for a command: ``main_opt3.py --amp-dtype bfloat16`` → ``main_opt3-amp-dtype-bfloat16``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", command.replace(".py", "")).strip("-")


def files(kind: str, command: str, where: Path, pattern: str = ROUNDS) -> list[Path]:
    """The records of a command (``kind``: ``runs``, ``benchmarks`` or ``keras``), one a round, in order.

    A machine that was recorded in a quick session holds a command's quick form instead.
    """
    for form in dict.fromkeys((command, quick(command))):
        found = []
        for file in originals.matching(where, f"{kind}/{pattern.format(key=key(form))}"):
            if originals.read(file)["command"].startswith(form):
                found.append(file)
        if found:
            return found
    gpu = provenance(where)["gpu"]
    try:
        script(command.split(" ", 1)[0])
    except LabError as none:
        raise NotRecorded(f"'{command}' was not recorded on the {gpu}, and {none}") from None
    raise NotRecorded(f"'{command}' was not recorded on the {gpu}: run the lab live (LAB_MODE=live).")


def records(kind: str, command: str, where: Path | None = None, pattern: str = ROUNDS) -> list[dict]:
    """What these files hold."""
    found = files(kind, command, where, pattern) if where else held(partial(files, kind, command, pattern=pattern))[0]
    return list(map(originals.read, found))


def long_or_short(kind: str, command: str, where: Path | None = None) -> list[dict]:
    """The same, where a quick form that was not recorded is made of the long runs of its command."""
    try:
        return records(kind, command, where)
    except NotRecorded:
        if whole(command) == command:
            raise
        return [shortened(record) for record in records(kind, whole(command), where)]


def accuracy(command: str, where: Path | None = None) -> list[dict]:
    """The records of a command's trainings for the accuracy gate, one a seed, in order."""
    return records("accuracy", command, where, "{key}--seed-*.json")


def matching(kind: str, pattern: str) -> list[dict]:
    """The records of a kind whose files' names fit a pattern, in order of these; LabError where there are none."""

    def find(where: Path) -> list[dict]:
        if files := originals.matching(where, f"{kind}/{pattern}.json"):
            return [originals.read(file) for file in files]
        raise NotRecorded(f"nothing called {pattern} was recorded on {where.name} ({kind}).")

    return held(find)[0]


def cold_files(command: str, where: Path) -> list[Path]:
    """The record of a run with cold caches, on this machine alone; none where none was recorded."""
    for form in (command, quick(command)):
        if found := originals.matching(where, f"runs/{key(form)}-cold.json"):
            return found
    return []


def named(kind: str, name: str, command: str, where: Path) -> Path:
    """The report (``profiles``) or counts (``counters``) of a name; LabError where another command made them."""
    there, (what, ending) = originals.about(where).get(kind, {}), NAMED[kind]
    if name not in there:
        raise NotRecorded(f"no {what} called {name} was recorded. {near(name, there)}")
    if there[name] != command:
        raise LabError(f"the {what} {name} was recorded with another command: {there[name]}")
    return originals.original(where / kind / f"{name}{ending}")


def scaling_files(where: Path) -> list[Path]:
    """The records of a host's GPUs together; NotRecorded where there are none. ``where``: recorded or live."""
    if found := originals.matching(where, f"{RANKS}/scaling-x*-*.json"):
        return found
    raise NotRecorded(f"no runs on several GPUs were recorded on {where.name}.")


def gpus_and_round(file: Path) -> tuple[int, int]:
    """``scaling-x2-01.json`` → (2, 1)"""
    _, gpus, number = file.stem.split("-")
    return int(gpus[1:]), int(number)


def on_gpus(where: Path) -> dict[tuple[int, int], dict]:
    """What these records hold, by number of GPUs and round."""
    return {gpus_and_round(file): originals.read(file) for file in scaling_files(where)}


def rank_files(words: Sequence[str], where: Path) -> list[Path]:
    """The slim reports that a command left, one a rank, in their order; NotRecorded where none was recorded with it."""
    there = provenance(where)["profiles"]
    names = [name for name, command in there.items() if shlex.split(command) == [*words]]
    if not names:
        raise NotRecorded(f"no reports of '{shlex.join(words)}' were recorded on {where.name}.")
    names.sort(key=lambda name: (len(name), name))
    return [originals.original(where / "profiles" / f"{name}.sqlite.xz") for name in names]


def took_s(kind: str, name: str) -> float | None:
    """How long it took to make a report (``profiles``) or counts (``counters``), in seconds; None if nothing tells.

    Where that was not noted, the median of the others: most of it is the start of the program and of the profiler.
    """
    there = {file.stem: originals.read(file).get("took_s") for file in (folder() / kind).glob("*.json")}
    known = [seconds for seconds in there.values() if seconds is not None]
    return there.get(name) or (statistics.median(known) if known else None)


def traced_file(command: str, where: Path) -> Path:
    """The record of a ``profile_torch.py STEP …``, beside which its trace lies; LabError where there is none."""
    name = f"{TRACES}/{traced_name(command)}"
    if name not in originals.about(where)["sha256"]:
        raise NotRecorded(f"'{command}' was not recorded: run the lab live (LAB_MODE=live).")
    record = originals.read(where / name)
    if record["command"] != command:
        raise LabError(f"{Path(name).name} was recorded with another command: {record['command']}")
    originals.original(trace_beside(where / name))
    return where / name


def traced_name(command: str) -> str:
    """``profile_torch.py main_opt2.py --overhead 3`` → ``main_opt2.json``"""
    return f"{key(command.split()[1])}.json"
