"""The benchmark of the first epoch: a script trains as it is; each part is timed in its epoch, and what is extra."""

from __future__ import annotations

import json

import pytest

import forked
from benchmarks import bench_first_epoch
from labkit.paths import BENCHMARKS, SOURCE_CODE


def test_each_part_of_each_epoch_is_timed(tmp_path):
    file, script = tmp_path / "first.json", BENCHMARKS / "bench_first_epoch.py"
    words = ["--only", "main_opt7.py", "--limit", 16, "--epochs", 2, "--repeats", 1, "--record", file]
    done = forked.run([script, *words])
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(file.read_text())["rows"]
    found = {row["part"]: row for row in rows if not row["rehearsed"]}
    assert [*found] == [row["part"] for row in rows if row["rehearsed"]]
    assert {"shuffle: randperm", "shuffle: random_", "graph launch", "read back", "read back, test"} < {*found}
    assert all(row["first_ms"] > 0 and row["second_ms"] == row["later_ms"] > 0 for row in rows)
    inside = sum(found[part]["first_ms"] for part in ("shuffle", "graph launch", "read back"))
    assert 0.5 * found["training"]["first_ms"] < inside <= found["training"]["first_ms"]
    assert "main_opt7.py, rehearsed: graph launch" in done.stdout


def test_what_is_extra_by_hand():
    """Two runs of three epochs: later ones take 2 and 4 ms, the first 10 and 14."""
    runs = [[{"a": 10.0}, {"a": 1.0}, {"a": 3.0}], [{"a": 14.0}, {"a": 4.0}, {"a": 4.0}]]
    (row,) = bench_first_epoch.rows("main_opt7.py", True, runs)
    assert (row["first_ms"], row["second_ms"], row["later_ms"]) == (12.0, 2.5, 3.0)
    assert (row["extra_ms"], row["extra_range_ms"], row["repeats"]) == (9.0, [8.0, 10.0], 2)


def test_only_what_runs_in_an_epoch_is_counted():
    parts = bench_first_epoch.Parts()
    work = parts.timing("work", lambda number: number + 1)
    assert work(1) == 2 and parts.epochs == []
    parts.epochs.append({"work": 0.0})
    assert work(number=2) == 3 and work(3) == 4 and parts.epochs[0]["work"] > 0


def test_a_script_that_fails_is_named():
    with pytest.raises(SystemExit, match=r"main_opt4\.py failed: .*unrecognized arguments"):
        bench_first_epoch.trained("main_opt4.py", ["--faster"], False)


def test_the_scripts_are_there():
    assert all((SOURCE_CODE / script).is_file() for script in bench_first_epoch.SCRIPTS)
