"""Benchmark: how long reading a report takes, and how much memory: python3 -m stepbudget and nsys stats."""

import argparse
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from labkit.errors import one_sentence
from labkit.paths import SOURCE_CODE
from labkit.source import recorded
from labkit.training import flags, machine
from stepbudget.ask import sums
from stepbudget.export import nsys, stats
from stepbudget.report import open_report

FULL, TABLES = "stepbudget", "stepbudget.ask --tables"  # the second asks what nsys stats is asked
NOTEBOOK = "stepbudget.ask.sums where Python runs already, as in a notebook"


def parse_args() -> argparse.Namespace:
    parser, count = flags.script_parser(__doc__, "the record"), flags.at_least(1)
    parser.add_argument("report", nargs="?", help="a report (default: the shipped baseline, made larger)")
    parser.add_argument("--samples", type=count, default=1_500_000, help="make it hold so many samples (%(default)s)")
    parser.add_argument("--runs", type=count, default=3, help="runs of each (default: %(default)s)")
    return parser.parse_args()


def enlarged(source: Path, target: Path, samples: int) -> Path:
    """A copy of the export in which everything happens again and again, later each time, until it holds the samples."""
    with open_report(source) as report:
        report.copy_to(target)
        length, threads = report.extent.end - report.extent.start + 1_000_000, 1 << 32
    db = sqlite3.connect(target)
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in tables}
    (have,) = db.execute("SELECT count(*) FROM GPU_METRICS").fetchone()
    for table in tables:
        moments = [name for name in columns[table] if name in ("start", "end", "timestamp")]
        if not moments:
            continue
        shifted = {name: f'"{name}" + :length' for name in moments} | {"correlationId": "correlationId + :ids"}
        listed = ", ".join(shifted.get(name, f'"{name}"') for name in columns[table])
        db.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
        for number in range(1, -(-samples // have)):
            values = {"length": number * length, "ids": number * threads}
            query = f"INSERT INTO {table} SELECT {listed} FROM once"
            db.execute(query, {key: value for key, value in values.items() if f":{key}" in query})
        db.execute("DROP TABLE once")
    db.commit()
    db.execute("VACUUM")
    db.close()
    return target


def measured(words: list[str]) -> tuple[float, float]:
    """Seconds and the highest memory (MB) of one run of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(words, cwd=SOURCE_CODE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(words)} failed: {process.stderr.read().decode().strip()}")
    return seconds, usage.ru_maxrss / 1e3  # Linux counts in kB


def in_this_process(file: Path) -> tuple[float, float]:
    """The same for the plain sums where Python runs already, as in a notebook: the file is opened anew each time."""
    start = time.perf_counter()
    sums.sums(file)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def compared(rows: list[dict], ours: str, theirs: str) -> str:
    """Which of two tools answered sooner, by the medians, and whether their ranges of seconds lie apart."""
    own, other = ([row["seconds"] for row in rows if row["tool"] == tool] for tool in (ours, theirs))
    ratio = statistics.median(own) / statistics.median(other)
    verdict = f"{1 / ratio:.1f} times as fast as" if ratio < 1 else f"slower than, {ratio:.1f} times the seconds of,"
    apart = max(own) < min(other) or max(other) < min(own)
    return f"{ours} is {verdict} {theirs}" + ("" if apart else "; but the ranges overlap")


def main() -> None:
    args = parse_args()
    with one_sentence(), tempfile.TemporaryDirectory() as scratch:
        source = Path(args.report) if args.report else recorded.folder() / "profiles" / "main_baseline_nvtx.sqlite.xz"
        file = Path(scratch) / "report.sqlite"
        if args.report:
            with open_report(source) as report:
                report.copy_to(file)
        else:
            enlarged(source, file, args.samples)
        db = sqlite3.connect(file)
        (samples,) = db.execute("SELECT count(*) FROM GPU_METRICS").fetchone()
        db.close()
        print(f"{file.stat().st_size / 1e6:.0f} MB, {samples:,} counter samples, {machine.usable_cores()} cores")
        ours = [sys.executable, "-m", "stepbudget", str(file), "--json"]
        commands = {FULL: ours, TABLES: [*ours, "--tables"]}
        if found := nsys.find_nsys():
            names = [names[0 if found.version >= (2023, 1) else 1] for names in stats.TABLES.values()]
            asked = [word for name in names for word in ("--report", name)]
            made = ["--format", "csv", "--output", str(Path(scratch) / "stats"), "--force-overwrite", "true"]
            theirs = f"nsys stats {found.version_text}"
            commands[theirs] = [found.path, "stats", *asked, *made, str(file)]
        rows = []
        for run in range(args.runs):  # in turns, so that what else the machine does meets all of them
            for name, words in commands.items():
                seconds, memory_mb = measured(words)
                rows.append({"tool": name, "run": run + 1, "seconds": seconds, "memory_mb": memory_mb})
            seconds, memory_mb = in_this_process(file)
            rows.append({"tool": NOTEBOOK, "run": run + 1, "seconds": seconds, "memory_mb": memory_mb})
        for name in (*commands, NOTEBOOK):
            own = [row for row in rows if row["tool"] == name]
            seconds, memory = ([row[key] for row in own] for key in ("seconds", "memory_mb"))
            spread = f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
            print(f"{name}: {spread}, {max(memory):.0f} MB")
        if found:
            print(compared(rows, TABLES, theirs))
            print(compared(rows, NOTEBOOK, theirs))
        import torch  # only now: a child's peak memory counts that of the parent which started it

        from labkit.training import steps

        about = {"file_mb": file.stat().st_size / 1e6, "samples": samples}
        steps.write_benchmark_record(args, torch.device("cpu"), rows, **about)


if __name__ == "__main__":
    main()
