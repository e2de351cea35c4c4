"""Where do a machine's recordings come from? ``provenance.json``, derived from the recordings and never typed."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.recording import plan
from labkit.recording.make import checksum
from labkit.recording.status import planned, read
from labkit.source import originals
from labkit.training.record import write_json
from stepbudget.ncu import counters

FILE = originals.PROVENANCE


def write(folder: Path) -> None:
    """Write a machine's ``provenance.json``, where anything was recorded."""
    if derived := derive(folder):
        write_json(folder / FILE, derived)


def derive(folder: Path) -> dict:
    """What ``provenance.json`` has to say; nothing where no recording names a GPU."""
    records = {path.relative_to(folder).as_posix(): read(path) for path in sorted(folder.glob("*/*.json"))}
    in_time = sorted(records.values(), key=lambda record: record["run_at"])
    full = [record for record in in_time if record.get("gpu") and "versions" in record]
    if not full:
        return {}
    items = planned(folder)
    reports = [item for item in items if _is_report(item) and (folder / item.file).is_file()]
    profiled = {Path(name).name.partition(".")[0]: records.get(item.record) for item in reports for name in item.files}
    last = full[-1]
    versions = {name: version for record in full for name, version in record["versions"].items()}
    return {
        "recorded": in_time[0]["run_at"],
        "finished": in_time[-1]["run_at"],
        "made_by": "make record",
        "commits": _commits(items, records),
        **{name: last[name] for name in ("gpu", "driver", "cpu", "cpu_cores")},
        "versions": versions,
        "nsys": next((record["nsys"] for record in reversed(in_time) if "nsys" in record and "gpu" in record), None),
        "repetitions": len(list(folder.glob(_rounds(items)))),
        "data_source": sorted({record["data_source"] for record in full if "data_source" in record}),
        "profiles": {name: record["command"] for name, record in sorted(profiled.items()) if record},
        "counters": {
            path.stem: counters.made_with(path.read_text(encoding="utf-8"))
            for path in sorted(folder.glob("counters/*.csv"))
        },
        "commands": sorted({record["command"] for record in records.values()}),
        "sha256": {str(path.relative_to(folder)): checksum(path) for path in _files(folder)},
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def _is_report(item: plan.Item) -> bool:
    return item.how in ("profile", "case", "rank_reports")


def _rounds(items: list[plan.Item]) -> str:
    """What the files are called of what is run first in each round."""
    first = next(item.file for item in items if item.how == "run")
    return re.sub(r"-\d+\.json$", "-[0-9]*.json", first)


def _commits(items: list[plan.Item], records: dict[str, dict]) -> dict[str, list[str]]:
    """Kind → the commits that its recordings were measured at, ``+dirty`` where the tree was not clean."""
    found: dict[str, set[str]] = {}
    for item in items:
        kept = records.get(item.record, {}).get("manifest")
        if kept and kept["commit"]:
            found.setdefault(item.kind, set()).add(kept["commit"] + ("+dirty" if kept["clean"] is False else ""))
    return {kind: sorted(commits) for kind, commits in found.items()}
