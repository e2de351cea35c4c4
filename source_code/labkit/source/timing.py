"""How long did it take, over how many runs, with what spread?

A *run* is a whole process, timed from outside; inside it, the step script's own record gives the training loop and the
evaluation. Steps that are compared run alternately (A B A B …), so that a machine that warms up or is busy for a while
slows both. The middle is the median, the spread is the range.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import REPORTS, ROOT, script, typed
from labkit.source import mode, recorded
from labkit.training import machine, manifest

MEASURED = "~"  # in front of every measured number that the labs print: on another machine it will differ
REPEATS = 3  # whole-process runs of each step; LAB_REPEATS sets another number for live runs


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing: median, smallest, largest, how many."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("no measurements")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, unit: str = "s", digits: int = 1) -> str:
        """``~13.4 s (13.1–13.9)``"""
        return f"{MEASURED}{self.median:.{digits}f} {unit} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def runs(
    commands: Sequence[str], repeats: int | None = None, show: Callable[[str], None] = print, kind: str = "runs"
) -> dict[str, list[dict]]:
    """Whole-process runs of each command (a script of source_code/ with its flags), alternating; their records.

    Live, runs of the same code on the same machine that are in reports/runs/ already are used again (they then
    alternated with what they were compared to at that time). Recorded, the shipped ones of that ``kind`` are read:
    ``runs`` (part 1) or ``ledger`` (every rung of the ladder in turn, compilers' caches warm).
    """
    for command in commands:
        show(f"$ time {typed(command)}")
    if not mode.is_live():
        found = {command: recorded.records(kind, command) for command in commands}
        times = sorted(map(len, found.values()))
        fewest = "" if times[0] == times[-1] else f"{times[0]} to "
        where = recorded.shown(recorded.folder() / kind)
        show(f"recorded ({recorded.origin()}), {fewest}{_count(times[-1])} each: {where}")
        return found
    repeats = repeats or _live_repeats()
    folder = REPORTS / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    found = {command: [] for command in commands}
    for number in range(1, repeats + 1):
        for command in commands:
            file = folder / f"{recorded.key(command)}-{number:02d}.json"
            record = finished(file, command)
            if record is None or not _made_here(record):
                show(f"| run {number} of {repeats}: time {typed(command)}")
                record = run_once(command, file)
            found[command].append(record)
    show(f"live: {_count(repeats)} each: {recorded.shown(folder)}")
    return found


def benchmark(command: str, show: Callable[[str], None] = print) -> list[dict]:
    """The records of a benchmark script (``bench_….py`` with its flags): the shipped ones, or one run now."""
    show(f"$ {typed(command)}")
    if not mode.is_live():
        found = recorded.records("benchmarks", command)
        where = recorded.origin() if found[0].get("device") != "cpu" else f"on a CPU, {found[0]['run_at'][:10]}"
        show(f"recorded ({where}, {_count(len(found))}): {recorded.shown(recorded.folder() / 'benchmarks')}")
        return found
    folder = REPORTS / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    record = run_once(command, folder / f"{recorded.key(command)}-01.json")
    show(f"live: {recorded.shown(folder)}")
    return [record]


def run_once(command: str, file: Path, environment: Mapping[str, str] | None = None) -> dict:
    """Run ``source_code/<command>`` as a process of its own and keep its record in ``file``, with ``process_s`` added.

    ``environment`` holds variables beside those that the process has anyway. Raises LabError with the script's last
    words where it fails; ``file`` is then not written.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-run-", dir=file.parent) as scratch:
        draft = Path(scratch) / file.name
        words = [sys.executable, *_script(command), "--record", str(draft)]
        started = datetime.now(timezone.utc)
        start = time.perf_counter()
        variables = {**_environment(), **manifest.watched(Path(scratch)), **(environment or {})}
        done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
        process_s = time.perf_counter() - start
        if done.returncode != 0:
            raise LabError(f"'{command}' failed with status {done.returncode}: {_last_words(done)}")
        record = json.loads(draft.read_text())
        record["arguments"].pop("record", None)
        record.update(
            command=command,
            process_s=process_s,
            run_at=started.isoformat(timespec="seconds"),
            manifest=manifest.gathered(Path(scratch)),
        )
        draft.write_text(json.dumps(record, indent=1) + "\n")
        draft.replace(file)
    return record


def finished(file: Path, command: str) -> dict | None:
    """The complete record in ``file`` if this command and the code of today made it, else None."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return record if record.get("status") == "complete" and manifest.is_current(record, command) else None


def _made_here(record: dict) -> bool:
    """Was this record measured on the GPU, the number of cores and the PyTorch of this machine?"""
    there = (record.get("gpu"), record.get("cpu_cores"), record.get("versions", {}).get("torch"))
    return there == (machine.gpu_name(), machine.usable_cores(), importlib.metadata.version("torch"))


def spread(records: Sequence[dict], field: str = "process_s") -> Spread:
    """Median and range of one field over the records of a step."""
    return Spread.of([record[field] for record in records])


def speedup(slow: Sequence[dict], fast: Sequence[dict], field: str = "process_s") -> float:
    """How many times faster: median over median."""
    return spread(slow, field).median / spread(fast, field).median


def paired(slow: Sequence[dict], fast: Sequence[dict], field: str = "process_s") -> Spread:
    """How many times faster, round by round: the spread of the ratios of runs that were made one after the other.

    What slows the machine for a while slows both runs of a round, so a ratio varies less than the times do.
    """
    return Spread.of([one[field] / other[field] for one, other in zip(slow, fast, strict=False)])


@contextmanager
def stopwatch(synchronize: Callable[[], None] = lambda: None) -> Iterator[list[float]]:
    """Seconds of a ``with`` block, appended to the list it yields; ``synchronize`` runs before both readings.

    GPU work is asynchronous: without ``synchronize=torch.cuda.synchronize`` a clock sees only the launches.
    """
    seconds: list[float] = []
    synchronize()
    start = time.perf_counter()
    yield seconds
    synchronize()
    seconds.append(time.perf_counter() - start)


def _count(runs: int) -> str:
    return f"{runs} run{'' if runs == 1 else 's'}"


def _live_repeats() -> int:
    wanted = os.environ.get("LAB_REPEATS", str(REPEATS))
    if not wanted.isdecimal() or int(wanted) < 1:
        raise LabError(f"LAB_REPEATS={wanted} is not a number of runs.")
    return int(wanted)


def _script(command: str) -> list[str]:
    """The command's words, with the script's path from source_code/ (an absolute path stays)."""
    name, *flags = shlex.split(command)
    return [str(script(name)), *flags]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def _last_words(done: subprocess.CompletedProcess) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else "it said nothing"
