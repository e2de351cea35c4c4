"""A machine whose programs answer with what was recorded: for tests, so that a lab runs live where there is no GPU.

It stands in the place of ``labkit.source.programs.Programs``, behind the one door. A lab then takes every path of live
mode but the last step, the program on the GPU. Copies of the recorded data go into a scratch folder; the machines of
``labkit.pretend.machines`` change them on the way. What nobody recorded is an error.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from labkit.errors import LabError, NotRecorded
from labkit.paths import RECORDED
from labkit.source import door, recorded, running
from labkit.source.facts import Machine, torch_version
from labkit.source.programs import Programs
from labkit.source.quick import shortened, whole
from stepbudget.export import files, nsys

ROUND = re.compile(r"-(\d+)\.json$")


class Replay(Programs):
    """The recorded machine called ``name``; what it lacks, the default machine answers."""

    told: ClassVar[dict] = {}  # facts in which a machine differs from the recorded one
    stands_in: ClassVar[dict] = {}  # report → the one that is opened in its place

    def __init__(self, name: str = recorded.DEFAULT) -> None:
        self.folder = RECORDED / name
        if not (self.folder / "provenance.json").is_file():
            raise LabError(f"{name} is no machine that is pretended or recorded.")

    @cached_property
    def facts(self) -> Machine:
        return replace(door.recorded_machine(self.folder), **self.told)

    def missing(self, *packages: str) -> list[str]:
        return []

    # What a machine changes

    def record(self, command: str, record: dict) -> dict:
        """A record, as this machine would have made it."""
        return record

    def report(self, name: str, db: sqlite3.Connection) -> None:
        """Change the copy of a report."""

    def counts(self, text: str) -> str:
        """What Nsight Compute wrote, as this machine's would."""
        return text

    def trace_of(self, content: dict) -> dict:
        """A trace of PyTorch's profiler, as this machine would have made it."""
        return content

    # What is asked

    def turn(self, what: str, show: Callable[[str], None], gpus: int = 1) -> AbstractContextManager[None]:
        return nullcontext()  # nothing is measured

    def run(self, words: str, file: Path) -> dict:
        number = ROUND.search(file.name)
        found = self._first(lambda where: self._records(words, where))
        return self._keep(words, found[(int(number[1]) if number else 1) % len(found) - 1], file)

    def run_cold(self, words: str, file: Path) -> dict:
        (cold,) = recorded.cold_files(whole(words), self.folder)
        record = json.loads(cold.read_text())
        return self._keep(words, record if record["command"] == words else shortened(record), file)

    def trace(self, words: str, file: Path) -> dict:
        there = self._first(lambda where: recorded.traced_file(words, where))
        content = self.trace_of(json.loads(gzip.decompress(running.trace_beside(there).read_bytes())))
        running.trace_beside(file).write_bytes(gzip.compress(json.dumps(content).encode(), compresslevel=1))
        return self._keep(words, json.loads(there.read_text()), file)

    def profile(self, words: Sequence[str], report: Path, show: Callable[[str], None]) -> None:
        slim = self._first(lambda where: recorded.named("profiles", report.stem, shlex.join(words), where))
        export = report.with_suffix(".sqlite")
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_bytes(files.NSYS_MAGIC)
        export.unlink(missing_ok=True)
        name = self.stands_in.get(report.stem, report.stem)
        export.write_bytes(lzma.decompress((slim.parent / f"{name}.sqlite.xz").read_bytes()))
        with sqlite3.connect(export) as db:
            self.report(name, db)
        db.close()
        nsys.note(export, nsys.identity(report))
        _by_no_module_of_ours()
        show("| Generated")

    def count(self, words: Sequence[str], log: Path, show: Callable[[str], None]) -> None:
        there = self._first(lambda where: recorded.named("counters", log.stem, shlex.join(words), where))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(self.counts(there.read_text()))
        _by_no_module_of_ours()
        show("| ==PROF== Connected")

    def _records(self, words: str, where: Path) -> list[dict]:
        for kind in ("runs", "benchmarks", "keras"):
            try:
                return recorded.long_or_short(kind, words, where)
            except NotRecorded:
                continue
        raise NotRecorded(f"'{words}' runs live, and was never recorded")

    def _first(self, find: Callable[[Path], recorded.Found]) -> recorded.Found:
        return recorded.held(find, self.folder)[0]

    def _keep(self, words: str, record: dict, file: Path) -> dict:
        told, now = self.facts, datetime.now(timezone.utc).isoformat(timespec="seconds")
        made = self.record(words, json.loads(json.dumps(record)))
        made |= {"gpu": told.gpu, "driver": told.driver, "cpu_cores": told.cores}
        made |= {"command": words, "status": "complete", "run_at": now, "manifest": {"modules": {}}}
        made["versions"] = made.get("versions", {}) | {"torch": torch_version()}
        file.write_text(json.dumps(made))
        return made


def _by_no_module_of_ours() -> None:
    """So that what was made is current, whatever changed since it was recorded."""
    if folder := os.environ.get("LAB_MANIFEST"):
        Path(folder, "modules-0.json").write_text("[]")


def tables(db: sqlite3.Connection) -> dict[str, list[str]]:
    """The tables of a report and their columns."""
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [column for _, column, *_ in db.execute(f'PRAGMA table_info("{name}")')] for name in names}


def drop(db: sqlite3.Connection, *named: str) -> None:
    """Take tables out of a report, as a profiler leaves out those for which it has nothing."""
    for table in named:
        db.execute(f'DROP TABLE IF EXISTS "{table}"')
