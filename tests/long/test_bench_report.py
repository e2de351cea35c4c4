"""The benchmark of the reader runs for real: a shipped report, read by every tool that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stepbudget.export import nsys

SOURCE = Path(__file__).resolve().parents[2] / "source_code" / "benchmarks"


def test_the_benchmark_times_every_reader_and_records_it(tmp_path):
    record = tmp_path / "record.json"
    words = [sys.executable, "bench_report.py", "--samples", "300000", "--runs", "1", "--record", str(record)]
    done = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert found["samples"] >= 300_000
    assert len({row["tool"] for row in found["rows"]}) == (4 if nsys.find_nsys() else 3)
    assert all(row["seconds"] > 0 and row["memory_mb"] > 0 for row in found["rows"])
