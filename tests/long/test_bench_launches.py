"""The benchmark of launches runs, on the CPU with few digits, and says what it timed."""

import json

import forked
from labkit.paths import SOURCE_CODE


def test_the_benchmark_of_launches(tmp_path):
    file = tmp_path / "launches.json"
    script = SOURCE_CODE / "benchmarks" / "bench_launches.py"
    done = forked.run([script, "--limit", 40, "--batch-size", 32, "--repeats", 1, "--record", file])
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads(file.read_text())
    found = {(row["network"], row["compiled"], row["batch"], row["how"]): row for row in record["rows"]}
    assert len(found) == len(record["rows"]) == 12
    assert {row["steps"] for row in found.values()} == {2}, "with few digits a batch, as many steps"
    assert all(0 < row["epoch_ms_range"][0] <= row["epoch_ms"] <= row["epoch_ms_range"][1] for row in found.values())
    assert record["status"] == "complete" and record["script"] == "bench_launches.py"
    assert f"{found['LeanNet', False, 16, 'graph']['epoch_ms']:.2f} ms" in done.stdout
