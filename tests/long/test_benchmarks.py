"""What a benchmark starts is there: the steps lie in source_code/, and the benchmarks in a folder of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks import bench_nvml
from labkit import paths
from labkit.source.quick import FEWER
from labkit.subjects import nvml
from pretend_nvml import PretendNVML

FILES = sorted(paths.BENCHMARKS.glob("*.py"))
SCRIPT = re.compile(r"(\w+\.py)( -.*| \w+ -.*)?")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_script_that_a_benchmark_names_is_there(file):
    constants = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
    named = [match[1] for text in constants if isinstance(text, str) and (match := SCRIPT.fullmatch(text))]
    assert not [name for name in named if not paths.script(name).is_file()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_finds_other_scripts_by_the_course_and_not_beside_itself(file):
    """``labkit.paths.script`` knows where they lie; ``__file__`` alone is the benchmark itself, which it may start."""
    beside = r"__file__\)?[^,\n]*\.(?:with_name|parent|joinpath)"
    assert not re.search(beside, file.read_text())


def test_the_shortened_benchmarks_are_there():
    assert all(paths.script(name).is_file() for name in FEWER)


@pytest.fixture
def sampled(monkeypatch):
    """``bench_nvml.watch``, which asks a stand-in for the driver."""
    sampler = nvml.Sampler
    monkeypatch.setattr(nvml, "Sampler", lambda period_s: sampler(period_s, PretendNVML()))
    return lambda command: bench_nvml.watch(command, 0.05)


def test_a_step_is_watched_while_it_trains(sampled):
    row = sampled("main_opt4.py --epochs 2 --limit 64 --batch-size 32 --device cpu")
    assert len(row["epoch_ends_s"]) == 2 and row["begins_s"] < row["epoch_ends_s"][0] < row["process_s"]
    assert len(nvml.from_text(row["samples"])) > 5


@pytest.mark.parametrize("command", bench_nvml.BUSY)
def test_what_keeps_the_gpu_busy_is_started_too(sampled, command, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match=r"failed with status 2: .*no GPU"):
        sampled(command)


def test_the_programs_to_watch_are_steps():
    steps = {file.name for file in Path(paths.SOURCE_CODE).glob("main_*.py")}
    assert set(bench_nvml.PROGRAMS) | {bench_nvml.COMPILED} <= steps
