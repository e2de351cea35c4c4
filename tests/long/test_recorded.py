"""The shipped recordings: whole, unchanged, free of anybody's private things, and good enough for what is claimed."""

from __future__ import annotations

import json
import lzma
import re
import statistics
from pathlib import Path

import pytest

from labkit import course, images
from labkit.recording import pages, plan, provenance, status
from labkit.source import Recorded, kinds, recorded
from labkit.subjects import accuracy, nvml, roofline, steps
from stepbudget.ask import budget, copies, idle, tensor_cores
from stepbudget.report import open_report

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "reports" / "recorded").glob("*/provenance.json"))
PRIVATE = re.compile(rb"/(?:home|root|work)/|LD_LIBRARY_PATH|PYTHONPATH|HOSTNAME|ENVIRONMENT_VARIABLE")

by_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
MACHINES = [folder for folder in FOLDERS if folder.name in course.MACHINES]
PROFILED = [folder for folder in MACHINES if folder.name in course.PROFILED]
HOSTS = [folder for folder in FOLDERS if folder.name in course.HOSTS]
profiled = pytest.mark.parametrize("folder", PROFILED, ids=lambda path: path.name)


def test_there_are_recordings():
    assert FOLDERS


@by_folder
def test_what_today_s_code_would_measure_otherwise_is_named_on_every_page_that_shows_it(folder):
    """``python3 -m labkit.recording --status`` lists what this is about."""
    found = status.findings(folder)
    assert status.unplanned(folder, [finding.item for finding in found]) == []
    assert status.unsaid(folder, found, pages.shown_on()) == {}


@by_folder
def test_the_provenance_is_derived_from_the_recordings(folder):
    """Checksums too: every file is the one that was recorded."""
    assert json.loads((folder / "provenance.json").read_text()) == provenance.derive(folder)


@by_folder
def test_provenance_is_complete(folder):
    source = json.loads((folder / "provenance.json").read_text())
    names = ["gpu", "driver", "cpu", "cpu_cores", "recorded", "finished", "commits", "commands"]
    if folder in (*PROFILED, *HOSTS):
        names += ["nsys", "profiles"]
        assert source["repetitions"] >= 2
        assert source["data_source"] == ["MNIST"]
    for name in names:
        assert source[name], name
    assert {"python", "torch", "cuda", "cudnn"} <= set(source["versions"])
    commits = [commit for found in source["commits"].values() for commit in found]
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in commits), "each of a clean tree"


@by_folder
def test_nothing_private_is_shipped(folder):
    """A whole report tells of its host what ``labkit.recording.anonymous`` pretends: tests/short/test_anonymous.py."""
    for path in folder.glob("*/*"):
        if path.suffix == ".nsys-rep":
            continue
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        assert not PRIVATE.search(content), path.name


def test_sizes():
    reports = sum(path.stat().st_size for path in (ROOT / "reports" / "recorded").rglob("*") if path.is_file())
    assert reports < 40e6
    clinic = [path.stat().st_size for path in (ROOT / "reports" / "recorded").glob("*/profiles/clinic_*.sqlite.xz")]
    assert sum(clinic) < 5e6 and all(size < 600e3 for size in clinic)


@pytest.mark.parametrize("folder", HOSTS, ids=lambda path: path.name)
def test_numbers_of_gpus_alternate_and_every_rank_is_there(folder):
    files = sorted((folder / "ranks").glob("scaling-*.json"), key=lambda path: path.stem.split("-")[::-1])
    records = [json.loads(file.read_text()) for file in files]
    assert [record["run_at"] for record in records] == sorted(record["run_at"] for record in records)
    assert {record["omp_threads"] for record in records} == {1}
    assert {record["ranks"] for record in records} == {size for size in plan.SIZES if size <= records[0]["gpus"]}
    for record in records:
        assert (record["status"], record["backend"]) == ("complete", "nccl")
        for row in record["rows"]:
            of_each = row.get("of_each_rank") or row.get("rows")
            assert of_each is None or len(of_each) == record["ranks"], row["program"]


@pytest.mark.parametrize("folder", MACHINES, ids=lambda path: path.name)
def test_runs_alternate_and_are_whole(folder, monkeypatch):
    monkeypatch.setenv("LAB_RECORDED", folder.name)
    steps = [step.script for step in course.ladder()]
    runs = [recorded.records("runs", step) for step in steps]
    for run in (run for own in runs for run in own):
        assert run["status"] == "complete"
        assert not run["profiled"]
        assert len(run["epochs"]) == run["arguments"]["epochs"]
        assert run["startup_s"] + run["training_s"] + run["test_s"] <= run["process_s"]
        assert run["training_s"] == pytest.approx(sum(epoch["training_s"] for epoch in run["epochs"]))
    assert len({len(own) for own in runs}) == 1
    in_turn = [run["run_at"] for round_ in zip(*runs, strict=True) for run in round_]
    assert in_turn == sorted(in_turn)


def test_the_claims_of_the_course_hold_on_the_h200(monkeypatch):
    """At least 4x by whole-process median; no straw man; the accuracy gate."""
    monkeypatch.setenv("LAB_RECORDED", "h200")

    def seconds(kind: str, step: str) -> float:
        return statistics.median(run["process_s"] for run in recorded.records(kind, step))

    assert seconds("runs", "main_baseline.py") / seconds("runs", "main_opt3.py") >= 4.0
    assert seconds("reference", plan.REFERENCE) / seconds("reference", "main_baseline.py") >= 0.95
    for step in plan.ACCURACY:
        assert len(recorded.accuracy(step)) >= 10
        mean, p = accuracy.mean_and_p("main_baseline.py", step)
        assert mean >= accuracy.FLOOR_PCT
        assert step == "main_baseline.py" or p >= accuracy.SIGNIFICANCE


@profiled
def test_reports_say_what_the_labs_say(folder):
    def opened(name):
        return open_report(folder / "profiles" / f"{name}.sqlite.xz")

    with opened("main_baseline_nvtx") as baseline:
        assert budget.budget(baseline).fractions["loader"] >= 0.8
        assert (tensor_cores.kernels(baseline)["tensor_cores"] != "yes").all()
    with opened("main_opt2") as opt2:
        table = copies.copies(opt2)
        batches = table[table["direction"] == "host to device"]
        assert set(batches["host_memory"]) == {"pinned"}
    with opened("main_opt3") as opt3:
        assert (tensor_cores.kernels(opt3)["tensor_cores"] == "yes").any()
        assert tensor_cores.tensor_active(opt3).max_pct > 10


def test_the_recorded_machine_keeps_its_gpu_busy_from_opt4_on_and_from_opt5_on_under_the_profiler(monkeypatch):
    """Labs 6, 9 and 18 say so of what they show; where the CPU is slower, launches hold opt4 up, so they check less."""
    monkeypatch.setenv("LAB_RECORDED", "h200")
    monkeypatch.setenv("LAB_MODE", "recorded")
    with open_report(recorded.folder() / "profiles" / "main_opt5.sqlite.xz") as report:
        found = idle.idle(report)
    assert found.idle_share < 0.1

    rungs = [f"main_opt{number}" for number in (4, 5, 6, 7)]
    made_by = recorded.provenance()["counters"]
    shipped = Recorded(recorded.folder())
    counted = {rung: shipped.get(kinds.counts(made_by[f"{rung}_bytes"]), lambda line: None).step for rung in rungs}
    seconds = {rung: roofline.step_seconds(recorded.records("runs", f"{rung}.py")) for rung in rungs}
    points = [steps.step_point(rung, seconds[rung], counted[rung]) for rung in rungs]
    peaks = roofline.peaks(recorded.records("benchmarks", "bench_peaks.py"))
    assert (steps.distances(points, counted, peaks).frame["waiting ×"] < 1.3).all()

    (monitored,) = recorded.records("benchmarks", "bench_nvml.py")
    rows = {row["program"].split(" --")[0]: row for row in monitored["rows"]}
    opt4, opt7 = (
        nvml.mean(nvml.from_text(row["samples"]), "gpu_pct", *nvml.busy_stretch(row))
        for row in (rows["main_opt4.py"], rows["main_opt7.py"])
    )
    assert abs(opt7 - opt4) < 15


def test_a_recorded_report_opens_only_with_the_command_that_made_it():
    with pytest.raises(recorded.LabError, match="another command"):
        recorded.named("profiles", "main_opt1", "nsys profile python3 something_else.py", recorded.folder())


def test_the_charts_in_images_are_what_the_code_draws():
    assert images.stale(ROOT / "images") == []
