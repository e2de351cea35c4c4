"""Pretended machines: a lab is live on them, and each differs from the recorded machine in what it is said to lack."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from labkit import source
from labkit.errors import LabError
from labkit.paths import RECORDED
from labkit.pretend import machines
from labkit.source import command, counting, kinds, quick, recorded
from labkit.subjects import nvml, roofline, shapes
from stepbudget.ask import ops, tensor_cores
from stepbudget.ask.budget import budget
from stepbudget.report import open_report

RECORDED_FILES = sorted(path for path in RECORDED.rglob("*") if path.is_file())


def quiet(line: str) -> None:
    """Shows nothing."""


@pytest.fixture
def on(monkeypatch):
    """The live source on a pretended machine, by its name."""
    monkeypatch.setenv("LAB_LIVE", "quick")
    return lambda name: machines.live(name)


def profiled(live: source.Live, name: str):
    return live.get(kinds.profile(recorded.provenance()["profiles"][name]), quiet)


def said(program: str, folder: Path) -> str:
    """What a program says that runs as the notebooks do in ``tests/long/test_machines.py``."""
    environment = {**os.environ, "LAB_MODE": "live", "LAB_LIVE": "quick", "TMPDIR": str(folder)}
    environment.pop("LAB_REPEATS", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_lab_is_live_and_what_it_makes_goes_into_a_folder_that_goes(tmp_path):
    program = """
from labkit import lab, source
from labkit.pretend import machines
from labkit.source.command import profile_command
with source.using(machines.live("h200")):
    lab.start()
    runs = lab.runs(["main_opt3.py"])["main_opt3.py"]
    print(len(lab.benchmark("bench_matmul.py")), len(runs), [len(run["epochs"]) for run in runs])
    print(lab.profile(profile_command("main_opt3", "main_opt3.py --profile --epochs 2")))
from pathlib import Path
import tempfile
scratch = Path(tempfile.gettempdir())
print(sorted({path.relative_to(scratch).parts[2] for path in scratch.rglob("*") if path.is_file()}))
"""
    words = said(program, tmp_path)
    assert "Live: the commands run on this machine (NVIDIA H200). Quick: what is timed trains 3 epochs, 2 runs" in words
    assert "\n1 2 [3, 3]\n" in words and "Report(main_opt3.nsys-rep)" in words
    assert words.count("live: ") == 3 and "recorded (" not in words
    assert "['benchmarks', 'main_opt3.json', 'main_opt3.nsys-rep', 'main_opt3.sqlite', 'runs']" in words
    assert not list(tmp_path.iterdir())


def test_what_nobody_recorded_is_an_error(on):
    with pytest.raises(LabError, match=r"'main_opt3\.py --epochs 77' runs live, and was never recorded"):
        on("h200").get(kinds.runs(["main_opt3.py --epochs 77"]), quiet)
    with pytest.raises(LabError, match="was recorded with another command"):
        on("h200").get(kinds.profile(command.profile_command("main_opt3", "main_opt3.py --seed 7")), quiet)
    with pytest.raises(LabError, match="b200 is no machine that is pretended"):
        on("b200")


def test_every_machine_leaves_the_recordings_as_they_are(on):
    def sums() -> dict:
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in RECORDED_FILES}

    before = sums()
    for name in machines.names():
        live = on(name)
        live.get(kinds.runs(["main_opt1.py"]), quiet)
        live.get(kinds.benchmark("bench_shapes.py"), quiet)
        profiled(live, "main_opt1").close()
        live.get(kinds.trace("profile_torch.py main_opt4.py --overhead 3"), quiet)
    assert sums() == before and sorted(path for path in RECORDED.rglob("*") if path.is_file()) == RECORDED_FILES


def test_a_recorded_machine_is_replayed_as_it_is(on):
    live, shipped = on("h200"), source.Recorded(RECORDED / "h200")
    assert live.facts == shipped.facts and live.facts.bf16 and live.facts.capability == (9, 0)
    (words, runs), *_ = live.get(kinds.runs(["main_opt1.py --epochs 3 --workers 1"], 2), quiet).items()
    as_made_now = ("run_at", "manifest", "versions")
    for run, there in zip(runs, shipped.get(kinds.runs([words]), quiet)[words], strict=False):
        assert {name for name in there if run[name] != there[name]} <= {*as_made_now} and len(run["epochs"]) == 3
    words = recorded.provenance()["counters"]["main_opt7_bytes"]
    pd.testing.assert_frame_equal(
        live.get(kinds.counts(words), quiet).kernels, shipped.get(kinds.counts(words), quiet).kernels
    )


def test_a_turing_has_tensor_cores_for_fp16_only(on):
    live = on("turing")
    assert (live.facts.gpu, live.facts.bf16, live.facts.tf32) == ("Tesla T4", False, False)
    with profiled(live, "main_opt3") as fp16, profiled(live, "main_opt3_bf16") as bf16:
        assert fp16.gpu == "Tesla T4" and tensor_cores.tensor_active(fp16) is None
        assert budget(fp16).ms["tensor_core_kernels"] > 0
        assert budget(bf16).ms["tensor_core_kernels"] == 0
    runs = live.get(kinds.runs(["main_opt2.py", "main_opt3.py --amp-dtype bfloat16"], 1), quiet)
    fp32, bf16 = (found[0] for found in runs.values())
    assert bf16["epochs"] == fp32["epochs"] and bf16["arguments"]["amp_dtype"] == "bfloat16"
    peaks = roofline.peaks(live.get(kinds.benchmark("bench_peaks.py"), quiet))
    assert peaks.tflops["tf32"] == peaks.tflops["bf16"] == peaks.tflops["fp32"] < peaks.tflops["fp16"]
    products = shapes.products(live.get(kinds.benchmark("bench_shapes.py"), quiet))
    lacks = products["dtype"].isin(["tf32", "bf16", "fp8"])
    assert (products["refused"].notna() == lacks).all() and shapes.half_type(products) == "fp16"
    for bench in ("bench_sin_fit.py", "bench_gan.py", "bench_deep.py"):
        assert "bf16" not in {row["variant"] for row in live.get(kinds.benchmark(bench), quiet)[0]["rows"]}
    switches = live.get(kinds.benchmark("bench_tf32.py"), quiet)[0]["rows"]
    assert {row[what] for row in switches for what in ("matmul", "conv")} == {"FP32"}


def test_what_is_for_hopper_alone_comes_from_the_recordings_elsewhere_with_all_beside_it(on):
    assert on("h200").facts.hopper and not on("turing").facts.hopper
    rounds = len(recorded.records("runs", "main_opt8.py"))
    assert rounds >= quick.FULL_ROUNDS
    for name, why in (("turing", "main_opt8.py needs a Hopper GPU (H100, H200, GH200), and Tesla T4 is none."),
                      ("h200", "")):  # fmt: skip
        live, shown = on(name), []
        runs = live.get(kinds.runs(["main_opt6.py", "main_opt8.py"], 1), shown.append)
        assert [line for line in shown if why in line and line.startswith("| recorded instead")] or not why
        assert {records[0]["gpu"] for records in runs.values()} == {"NVIDIA H200"}
        assert {len(records) for records in runs.values()} == ({rounds} if why else {1})
        with profiled(live, "main_opt8") as report:
            assert report.gpu == "NVIDIA H200" and len(report.kernels)
    with pytest.raises(LabError, match="never recorded"):
        on("turing").get(kinds.runs(["main_opt3.py --epochs 77"]), quiet)
    assert "needs BF16" in said_of(on("turing"), "bench_stages.py")
    shown = []
    assert on("turing").get(kinds.counts(counting.KERNELS), shown.append).kernels["phase"].nunique() == 16
    assert any("count_kernels.py needs a Hopper GPU" in line for line in shown)


def said_of(live: source.Live, benchmark: str) -> str:
    """What is said where a benchmark's numbers come from."""
    shown: list[str] = []
    live.get(kinds.benchmark(benchmark), shown.append)
    return "\n".join(shown)


def test_without_counters_reports_have_none_and_counts_come_from_the_recordings(on):
    live, shown = on("no-counters"), []
    with profiled(live, "main_opt3") as report:
        assert tensor_cores.tensor_active(report) is None and len(report.kernels)
    found = live.get(kinds.counts(recorded.provenance()["counters"]["main_opt6_bytes"], brief=True), shown.append)
    assert "ERR_NVGPUCTRPERM" in shown[0] and found.origin.startswith("NVIDIA H200, 20")


def test_without_nsys_a_profile_is_a_trace_of_the_same_work(on):
    live = on("no-nsys")
    assert live.facts.traces and "Without nsys, PyTorch's profiler" in live.greeting
    for name in ("main_opt2", "main_opt2_ops"):
        with profiled(live, name) as found, profiled(on("turing"), name) as report:
            assert (found.profiler, found.gpu) == ("torch.profiler", "Tesla T4") and found.os_calls.empty
            assert not found.sampled and len(found.kernels) == len(report.kernels)
            theirs, own = budget(report), budget(found)
            assert own.window.duration_ms == pytest.approx(theirs.window.duration_ms)
            assert own.busy_fraction == pytest.approx(theirs.busy_fraction)
            assert [*ops.eligible(found)["sizes"]] == [*ops.eligible(report)["sizes"]]


def test_a_slice_of_a_gpu_has_no_utilisation(on):
    live = on("mig")
    assert "MIG" in live.facts.gpu
    (record,) = live.get(kinds.benchmark("bench_nvml.py"), quiet)
    samples = nvml.from_text(record["rows"][1]["samples"])
    assert samples["gpu_pct"].isna().all() and samples["power_w"].notna().all()


def test_on_two_cores_the_loader_sets_the_pace_whatever_the_workers(on):
    """As recorded on two cores, through the same door."""
    live = on("h200-2cores")
    one, opt1, opt4 = (
        found[0]
        for found in live.get(kinds.runs(["main_baseline.py", "main_opt1.py", "main_opt4.py"], 1), quiet).values()
    )
    assert opt1["cpu_cores"] == live.facts.cores == 2 and opt1["arguments"]["workers"] == 1
    assert opt1["training_s"] > one["training_s"] / 2 and opt4["training_s"] < one["training_s"] / 10
    with profiled(live, "main_opt1") as report:
        assert budget(report).fractions["loader"] > 0.8


def test_a_cpu_alone_has_phases_and_no_gpu_work(on):
    live, shown = on("cpu"), []
    assert live.facts.gpu is None and "no GPU: CPU phases only" in live.greeting
    with profiled(live, "main_opt3") as report:
        assert report.gpu is None and report.kernels.empty and report.copies.empty
        assert "data loading" in set(report.ranges["name"])
    runs = live.get(kinds.runs(["main_baseline.py", "main_opt7.py"], 1), quiet)
    assert {found[0]["gpu"] for found in runs.values()} == {None}
    assert runs["main_opt7.py"][0]["training_s"] == runs["main_baseline.py"][0]["training_s"] > 30
    found = live.get(kinds.benchmark("bench_peaks.py"), shown.append)
    assert "no GPU that CUDA can use" in shown[-2] and found == recorded.records("benchmarks", "bench_peaks.py")
    record, trace = live.get(kinds.trace("profile_torch.py main_opt2.py --memory"), quiet)
    with open_report(trace) as traced:
        assert traced.kernels.empty and not any(row["on_gpu"] for row in record["operators"])


def test_a_newer_library_refuses_nothing(on):
    live = on("newer-library")
    products = shapes.products(live.get(kinds.benchmark("bench_shapes.py"), quiet))
    assert products["refused"].isna().all() and products.loc[products["dtype"] == "fp8", "us"].notna().all()
    assert not any(row["refused"] for row in live.get(kinds.benchmark("bench_tf32.py"), quiet)[0]["rows"])
