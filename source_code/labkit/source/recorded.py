"""What did the course ship with? Runs, reports and benchmarks measured on one GPU, and where they come from.

reports/recorded/<gpu>/provenance.json   GPU, driver, versions, commands, dates, commit, a checksum for each file
                       runs/             whole-process runs, one JSON record each: <key>-<round>.json
                       accuracy/         full trainings for the accuracy gate: <key>--seed-<n>.json
                       profiles/         slim Nsight Systems reports: <name>.sqlite.xz
                       benchmarks/       what the small benchmark scripts found: <key>-<round>.json
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import RECORDED, ROOT

DEFAULT = "h200"  # the machine whose recordings the text is written from


def folder() -> Path:
    """The recorded folder in use: ``LAB_RECORDED=<machine>``, else the default machine's. LabError if there is none."""
    wanted = os.environ.get("LAB_RECORDED") or DEFAULT
    if not (RECORDED / wanted / "provenance.json").is_file():
        there = ", ".join(sorted(file.parent.name for file in RECORDED.glob("*/provenance.json"))) or "none"
        raise LabError(f"nothing was recorded on {wanted}: there are {there} (in {RECORDED}).")
    return RECORDED / wanted


def provenance() -> dict:
    """Where the recorded runs come from: the content of ``provenance.json``."""
    return _read_json(folder() / "provenance.json")


def origin() -> str:
    """GPU and date in a few words, for captions."""
    source = provenance()
    return f"{source['gpu']}, {source['recorded'][:10]}"


def key(command: str) -> str:
    """A file name for a command: ``main_opt3.py --amp-dtype bfloat16`` → ``main_opt3-amp-dtype-bfloat16``."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", command.replace(".py", "")).strip("-")


def records(kind: str, command: str) -> list[dict]:
    """The records of a command (``kind`` is ``runs`` or ``benchmarks``), one a round, in order."""
    return _records(kind, f"{key(command)}-[0-9]*.json", command)


def accuracy(command: str) -> list[dict]:
    """The records of a command's trainings for the accuracy gate, one a seed, in order."""
    return _records("accuracy", f"{key(command)}--seed-*.json", command)


def _records(kind: str, pattern: str, command: str) -> list[dict]:
    files = sorted((folder() / kind).glob(pattern))
    found = [record for record in map(_read_json, files) if record["command"].startswith(command)]
    if not found:
        raise LabError(f"'{command}' was not recorded on the {provenance()['gpu']}: run the lab live (LAB_MODE=live).")
    return found


def report_file(name: str, command: str) -> Path:
    """The slim report called ``name``; LabError where it was recorded with another command than ``command``."""
    made_with = provenance()["profiles"].get(name)
    if made_with is None:
        raise LabError(f"no report called {name} was recorded. There are: {', '.join(provenance()['profiles'])}.")
    if made_with != command:
        raise LabError(f"the report {name} was recorded with another command: {made_with}")
    return folder() / "profiles" / f"{name}.sqlite.xz"


def shown(path: Path) -> str:
    """A path as the text shows it: from the checkout's top."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def _read_json(file: Path) -> dict:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise LabError(f"{file} cannot be read ({error}). Fetch the checkout's reports again.") from error
