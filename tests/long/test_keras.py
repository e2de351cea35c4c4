"""The net in Keras: the same as PyTorch's, in every policy, on TensorFlow and the CPU; and the labs without Keras."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from labkit import source
from labkit.display.runs import epoch_ms
from labkit.errors import LabError
from labkit.labs import lab16, lab17
from labkit.labs.lab17 import reports
from labkit.paths import SOURCE_CODE
from labkit.recording import plan
from labkit.source import recorded
from labkit.subjects import accuracy, keras
from labkit.training import keras_net, keras_run, machine
from labkit.training.model import Net
from stand_in import StandIn
from stepbudget.report import open_report
from synthetic import SyntheticReport

FLAGS = ["--backend", "tensorflow", "--limit", "48", "--epochs", "2", "--batch-size", "16", "--test-batch-size", "8"]
RUNS = {
    "float32": ["keras_mnist.py", "--jit", "on"],
    "mixed_float16": ["keras_mixed.py", "--initial-scale", str(2.0**33)],  # overflows at first
    "mixed_bfloat16": ["keras_mixed.py", "--policy", "mixed_bfloat16"],
}

# TensorFlow takes its time to be imported, so that one process answers all questions: the scripts' records, and what
# the benchmark's tables say.
CHILD = """
import json, runpy, sys, warnings
from pathlib import Path
source, folder, flags, runs = Path(sys.argv[1]), Path(sys.argv[2]), *map(json.loads, sys.argv[3:5])
warnings.simplefilter("ignore")
bench = runpy.run_path(str(source / "benchmarks" / "bench_keras.py"))
bench["keras_run"].use("tensorflow", tf32=None)
claims = list(bench["claims"]())  # first, while all is as it comes
for name, (script, *more) in runs.items():
    sys.argv = [script, *flags, *more, "--record", str(folder / f"{name}.json")]
    runpy.run_path(str(source / "benchmarks" / script), run_name="__main__")
import torch
tables = {name: list(bench[name]()) for name in ("layer_dtypes", "float16_layers", "compiled_with", "steps_taken")}
step = runpy.run_path(str(source / "benchmarks" / "bench_keras_step.py"))
every = step["tried"].__globals__["optimizers"]
step["tried"].__globals__["optimizers"] = lambda args: {"SGD": every(args)["SGD"]}
from types import SimpleNamespace
import numpy as np
import keras
keras.config.set_dtype_policy("mixed_float16")
images, labels = np.random.default_rng(0).random((8, 28, 28, 1), "float32"), np.arange(8)
told = SimpleNamespace(batch_size=8, test_batch_size=8, epochs=1, lr=1.0, seed=1)
tables["own_step"] = list(step["tried"]((images, labels), (images, labels), told))
tables["agreement"] = list(bench["agreement"](torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))))
tables["claims"] = claims
tables["older"] = [hasattr(keras.optimizers.LossScaleOptimizer, one) for one in ("get_scaled_loss", "scale_loss")]
class TwoOptimizers(keras.Model):
    def compile(self, one, other):
        super().compile()
        self.both = [one, other]
gan = TwoOptimizers()
gan.compile(keras.optimizers.SGD(), keras.optimizers.Adam())
tables["gan"] = [type(one).__name__ for one in gan.both]
import nbformat
page = nbformat.read(source.parent / "labs" / "16_keras.ipynb", as_version=4)
exec("\\n".join(cell.source for cell in page.cells if cell.source.startswith(("def compiled(", "def train_step("))))
layers = lambda: [keras.Input((4,)), keras.layers.Dense(4), keras.layers.Softmax(dtype="float32")]
model = compiled(lambda: keras.Sequential(layers()), keras.optimizers.SGD(1.0), "mse")
model.optimizer.build(model.trainable_weights)
before, inputs = model.get_weights()[0], np.eye(4, dtype="float32")
train_step(model, model.optimizer, keras.losses.MeanSquaredError(), inputs, inputs)
tables["home"] = float(abs(model.get_weights()[0] - before).max())
(folder / "tables.json").write_text(json.dumps(tables))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """The records of ``RUNS`` by name, and the benchmark's tables."""
    if missing := machine.missing("keras", "tensorflow"):
        if os.environ.get("LAB_REQUIRE_KERAS") == "1":
            pytest.fail(f"LAB_REQUIRE_KERAS=1, but {' and '.join(missing)} cannot be imported")
        pytest.skip(f"{' and '.join(missing)} cannot be imported: {keras_run.HOW_TO_INSTALL}")
    folder = tmp_path_factory.mktemp("keras")
    (folder / "gpu-performance-lab").mkdir()
    (folder / "gpu-performance-lab" / ".download-failed").touch()  # bundled digits, and no network is asked
    environment = {name: value for name, value in os.environ.items() if name not in ("LAB_DATA_DIR", "KERAS_BACKEND")}
    environment |= {"XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(SOURCE_CODE)}
    words = [sys.executable, "-c", CHILD, str(SOURCE_CODE), str(folder), json.dumps(FLAGS), json.dumps(RUNS)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in RUNS}
    return found | json.loads((folder / "tables.json").read_text()) | {"said": done.stdout}


def test_the_two_nets_agree(told):
    for row in told["agreement"]:
        assert row["parameters"] == row["parameters_torch"] == 1_199_882
        assert row["largest_output"] > 1
    differences = {row["policy"]: row["largest_difference"] for row in told["agreement"]}
    assert differences["float32"] < 1e-5 < differences["mixed_float16"] < 1e-2
    assert differences["mixed_float16"] < differences["mixed_bfloat16"] < 0.1


@pytest.mark.parametrize("name", RUNS)
def test_every_policy_trains_and_leaves_a_whole_record(told, name):
    found = told[name]
    assert (found["status"], found["backend"], found["device"]) == ("complete", "tensorflow", "cpu")
    assert {"keras", "tensorflow", "torch"} <= set(found["versions"])
    assert found["train_samples"] == 48 and found["data_source"] == "bundled 5,000 digits"
    assert all(epoch["training_s"] > 0 and epoch["test_s"] > 0 for epoch in found["epochs"])
    assert found["extras"]["jit_compile"] is (name == "float32")
    losses = [epoch["train_loss"] for epoch in found["epochs"]]
    skipped = [epoch.get("skipped_steps", 0) for epoch in found["epochs"]]
    assert all(0.5 < loss < 6 for loss in losses), losses
    assert losses[1] < losses[0] or skipped[0] == 3, "nothing is learned in steps that are skipped"


def test_a_scale_that_is_too_large_is_halved_until_steps_are_taken(told):
    found = told["mixed_float16"]["epochs"][-1]
    assert 0 < found["skipped_steps"] <= 6, "of six"
    assert found["loss_scale"] == 2.0 ** (33 - found["skipped_steps"])
    assert told["mixed_bfloat16"]["epochs"][-1]["loss_scale"] is None


def test_a_step_that_overflows_is_skipped_under_a_dynamic_scale_only(told):
    rows = {(row["scale"], row["steps"]): row for row in told["steps_taken"]}
    skipped = rows["dynamic", "1 overflowed"]
    assert (skipped["weight"], skipped["steps_counted"]) == (1.0, 0)
    assert skipped["scale_after"] == skipped["scale_before"] / 2
    assert rows["dynamic", "3 good"]["scale_after"] == 2 * rows["dynamic", "3 good"]["scale_before"]
    for fixed in ("fixed 1024", "none"):
        assert rows[fixed, "1 overflowed"]["weight"] == "inf"
    assert {row["weight"] for row in rows.values() if row["steps"] == "1 good"} == {0.5}, "unscaled in the end"


def test_a_step_of_ones_own_scales_the_loss_only_if_it_says_so(told):
    keras_step, unscaled, scaled = told["own_step"]
    assert {row["trains"] for row in told["own_step"]} == {"LossScaleOptimizer"}
    assert math.isclose(scaled["first_step"], keras_step["first_step"], rel_tol=0.01)
    assert math.isclose(unscaled["first_step"] * 2**15, keras_step["first_step"], rel_tol=0.05)


@pytest.mark.parametrize(
    ("table", "recorded_as"),
    [("layer_dtypes", "layers"), ("compiled_with", "compile"), ("steps_taken", "steps"), ("claims", "claims")],
)
def test_the_recorded_tables_are_what_the_installed_keras_does(told, table, recorded_as):
    shipped = recorded.records("keras", "bench_keras.py --backend tensorflow")[0]
    same_version = shipped["keras"]["keras"] == told["float32"]["versions"]["keras"]
    ignored = {"table"} if same_version else {"table", "says"}  # another version may word its errors otherwise

    def rows_of(rows):
        kept = (row for row in rows if row.get("line") != "tf.keras.__version__")
        return [{name: value for name, value in row.items() if name not in ignored} for row in kept]

    assert rows_of(told[table]) == rows_of(row for row in shipped["rows"] if row["table"] == recorded_as)


def test_what_older_guides_call_is_gone_and_compile_wraps_no_optimizer_of_ones_own(told):
    assert told["older"] == [False, True]
    assert told["gan"] == ["SGD", "Adam"]


def test_what_is_taken_home_scales_the_loss(told):
    assert "trains: LossScaleOptimizer" in told["said"] and "'softmax" in told["said"]
    assert 1e-3 < told["home"] < 1, "neither 32,768 times too long nor too short"


def test_layers_that_would_lose_16_bits_compute_in_32(told):
    last = {row["what"]: row["last"] for row in told["float16_layers"]}
    assert last["mean of squares of ±1000, written out"] == "inf"
    assert abs(last["BatchNormalization of ±1000"]) < 2
    assert last["Softmax of (0, -20)"] == 0 < last["Softmax of (0, -20), dtype float32"] < 1e-8


# Without Keras


def test_the_weights_in_keras_order():
    """Checked by products, not by Keras: an image's row and column go before its channel."""
    torch.manual_seed(0)
    net = Net()
    kernels = keras_net.weights_of(net)
    assert [kernel.shape for kernel in kernels] == [
        (3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (9216, 128), (128,), (128, 10), (10,)
    ]  # fmt: skip
    pooled = torch.rand(2, 64, 12, 12)
    inputs = pooled.permute(0, 2, 3, 1).flatten(1).numpy()
    expected = net.fc1(pooled.flatten(1)).detach().numpy()
    assert np.allclose(inputs @ kernels[4] + kernels[5], expected, atol=1e-5)


@pytest.mark.parametrize("wrong", [["--loss-scale", "0"], ["--loss-scale", "much"], ["--policy", "float8"], ["--what"]])
def test_wrong_flags_end_with_status_2(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras_mixed.py", *wrong])
    with pytest.raises(SystemExit) as end:
        keras_run.parse_args("A script.", mixed=True)
    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_the_command_line_is_the_courses_and_kerass(monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    line = "keras_mixed.py --backend jax --epochs 3 --policy mixed_bfloat16"
    monkeypatch.setattr(sys, "argv", line.split())
    args = keras_run.parse_args("A script.", mixed=True)
    assert (args.backend, args.epochs, args.batch_size, args.loss_scale) == ("jax", 3, 1024, "none")
    monkeypatch.setattr(sys, "argv", ["keras_mixed.py"])
    assert keras_run.parse_args("A script.", mixed=True).loss_scale == "dynamic"


def test_without_keras_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(machine, "missing", lambda *packages: ["keras"])
    with pytest.raises(LabError, match=r"^keras: not installed\. pip install"):
        keras_run.use("tensorflow")


def test_a_live_lab_without_keras_shows_what_was_recorded(capsys):
    with source.using(source.Live(StandIn(missing=lambda *packages: ["keras"]))):
        assert keras.tried("jax")["agreement"]["parameters"].tolist() == [1_199_882] * 3
        said = capsys.readouterr().out
        assert "recorded, since keras cannot be imported here" in said
        command = plan.profile_command("keras_mixed_jax", plan.KERAS_PROFILES["keras_mixed_jax"])
        assert lab17.profile(command).name == "keras_mixed_jax"
        assert len(lab17.runs({"off": plan.KERAS_ONCE[-1]}, repeats=1)["off"]) == 1


def test_what_ran_on_tensorflow_is_shipped_and_not_run_again(capsys, tmp_path):
    with source.using(source.Live(StandIn(missing=lambda *packages: []), tmp_path)):
        assert keras.tried("tensorflow")["agreement"]["parameters"].tolist() == [1_199_882] * 3
    assert "recorded (CPU, " in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_live_lab_with_keras_runs_it(tmp_path):
    asked = []
    programs = StandIn(missing=lambda *packages: [], run=lambda words, file: asked.append(words) or {"process_s": 1.0})
    with source.using(source.Live(programs, tmp_path)):
        lab17.runs({"off": f"python3 source_code/benchmarks/{plan.KERAS_ONCE[-1]}"}, repeats=1)
    assert asked == [plan.KERAS_ONCE[-1]]


def test_the_shipped_runs_on_a_gpu_are_whole():
    """Every command that is timed, on the backend that it names; ten seeds or more for the accuracy gate."""
    for step in plan.KERAS_RUNS:
        for run in recorded.records("keras", step):
            assert run["status"] == "complete" and len(run["epochs"]) == 10 and run["data_source"] == "MNIST"
            assert (run["backend"], run["profiled"], run["extras"]["jit_compile"]) == ("jax", False, True)
            assert math.isfinite(run["test_loss"]) and "H200" in run["gpu"]
    for step in plan.KERAS_ACCURACY:
        seeds = [run["arguments"]["seed"] for run in recorded.accuracy(step)]
        assert len(seeds) >= 10 and seeds == list(range(1, len(seeds) + 1))
        mean, p = accuracy.mean_and_p("main_baseline.py", step)
        assert mean >= accuracy.FLOOR_PCT and p >= accuracy.SIGNIFICANCE


def test_the_shipped_runs_on_a_cpu_are_told_as_such():
    few = keras.few_digits()
    assert set(few["framework"]) == {"PyTorch", "Keras on tensorflow"} and set(few["train_samples"]) == {3000}
    assert {"dynamic, from 32,768", "fixed, 1,024", "none"} < set(few["scale"])
    shown = lab16.few_digits(few)
    assert "on a CPU" in shown.caption and set(shown.frame["framework"]) == set(few["framework"])
    assert shown.frame["seeds"].sum() == len(few)


def test_a_step_of_ones_own_is_shipped_for_every_optimizer():
    shown = lab16.own_step()
    found = shown.frame
    assert list(found["optimizer"].unique()) == ["SGD", "Adam", "Adadelta"]
    assert found.groupby("optimizer")["trained by"].nunique().eq(3).all()
    assert (found.loc[found["trained by"] == "Keras's step", "first step: times shorter"] == 1).all()
    assert "(Keras on tensorflow, CPU)" in shown.caption


def test_every_table_names_its_backend(capsys):
    tried = {backend: keras.tried(backend) for backend in ("tensorflow", "jax", "torch")}
    names = ("FP32", "TF32", "FP16", "BF16")
    runs = {name: recorded.records("keras", step) for name, step in zip(names, plan.KERAS_RUNS, strict=True)}
    for backend, tables in tried.items():
        named = [
            lab16.layers(tables, "mixed_float16", backend),
            lab16.ways_to_compile(tables, backend),
            lab16.steps(tables, backend),
            lab17.epoch_table(runs, backend),
        ]
        assert all(f"(Keras on {backend})" in table.caption for table in named)
    for table in (lab16.agreement(tried), lab16.in_float16(tried), lab17.precision(tried)):
        assert all(backend in str(table) for backend in tried)
    counted = {"FP16 on torch": lab17.counted(shipped("torch"))}
    claims = lab17.texts(tried, runs, keras.few_digits(), counted).frame
    assert {name for names in claims["backend"] for name in names.split(", ")} <= set(tried)
    assert claims["what we found"].str.contains(r"\w").all()
    capsys.readouterr()
    assert "(Keras on jax)" in lab17.epoch_bars(runs, "jax").axes[0].get_title(loc="left")


# Keras under the profiler


def shipped(backend: str, script: str = "mixed"):
    return open_report(recorded.folder() / "profiles" / f"keras_{script}_{backend}.sqlite.xz")


def sampled(path, values: list[float], name: str = "SMs Active [Throughput %]") -> SyntheticReport:
    """A report whose training range of 20 ms holds a sample of this counter every 100 µs."""
    report = SyntheticReport(path).range(0, 20_000, "training")
    for number, value in enumerate(values):
        report.counter(100 * number, value, name)
    return report


def test_the_steps_are_the_longest_stretch_without_a_long_pause(tmp_path):
    values = [5] * 3 + [0] * 45 + ([80] * 9 + [0] * 11) * 4 + [0] * 40 + [60] * 20  # set-up, steps, the test
    report = open_report(sampled(tmp_path / "steps.sqlite", values).write())
    steps = reports.steps_window(report)
    assert (steps.start - report.window().start, steps.end - steps.start) == (4_800_000, 6_900_000)
    assert reports.steps_window(open_report(sampled(tmp_path / "idle.sqlite", [0] * 99).write())).name == "training"
    without = open_report(sampled(tmp_path / "none.sqlite", []).write())
    assert reports.steps_window(without) == without.window()
    found = lab17.counted(without)
    assert (found.tensor, found.least, found.most, found.by_kernels) == (None, None, None, None)


def test_the_time_without_a_kernel_lies_between_the_bounds_of_the_counter(tmp_path):
    report = sampled(tmp_path / "bounds.sqlite", [50, 0] * 100)  # half of each second sample's time, on all SMs
    for number in range(100):
        report.kernel(200 * number, 200 * number + 50, "a_kernel")
    report.copy(60, 90, 1000)  # needs no SM
    found = lab17.counted(open_report(report.write()))
    assert found.least == pytest.approx(0.5, abs=0.01) and found.most == pytest.approx(0.75, abs=0.01)
    assert found.by_kernels == pytest.approx(0.75, abs=0.01)


def test_the_shipped_profiles_say_what_lab_17_says():
    """Of JAX counters only, and events that break off; of PyTorch both."""
    fp32, fp16, torch_fp16 = shipped("jax", "mnist"), shipped("jax"), shipped("torch")
    for report in (fp32, fp16):
        assert not len(report.kernels) and not report.windows("test") and reports.flushes(report) == 0
        assert reports.last_event_ms(report) < report.window().duration_ms / 3
    assert len(torch_fp16.kernels) and torch_fp16.windows("test") and reports.flushes(torch_fp16) > 0
    assert reports.last_event_ms(torch_fp16) > torch_fp16.window().duration_ms
    for report, step in ((fp32, plan.KERAS_RUNS[0]), (fp16, plan.KERAS_RUNS[2])):
        timed_ms = epoch_ms(recorded.records("keras", step))
        assert reports.steps_window(report).duration_ms == pytest.approx(timed_ms, rel=0.15), "no test in it"
    fp32, fp16, torch_fp16 = (lab17.counted(report) for report in (fp32, fp16, torch_fp16))
    assert fp32.tensor.max_pct <= 1 and fp16.tensor.max_pct >= 10 and torch_fp16.tensor.max_pct >= 10
    assert fp32.most < fp16.least and torch_fp16.least < torch_fp16.by_kernels < torch_fp16.most


def test_the_shipped_trial_says_what_lab_17_says_of_broken_reports():
    """Broken where XLA compiles in the traced process; else, of an epoch, whole; a name is missing where it broke."""
    found = reports.trial()
    of_epoch, traced = found["changed"] != "no capture range", found["compiled"] == "in the traced process"
    assert traced.sum() >= 2 and not found.loc[traced, "whole"].any()
    assert found.loc[of_epoch & ~traced, "whole"].all() and (of_epoch & ~traced).sum() >= 20
    assert found.loc[~found["whole"], "name_not_found"].all()
    assert found.loc[of_epoch, "name_not_found"].eq(traced[of_epoch]).all()
    base = found[~traced & (found["changed"] == "nothing") & (found["variant"] != "torch")]
    assert len(base) >= 3 and (base["last_event_ms"] > base["training_ms"]).all() and (base["kernels"] > 59).all()
    shown = str(lab17.broken_off()).splitlines()
    assert len(shown) == 3 + 5 and "in the traced process" in shown[3] and "12–25" in shown[3]


def test_the_counters_chart_draws_what_was_sampled(tmp_path):
    report = sampled(tmp_path / "chart.sqlite", [0, 100] * 100)
    for number in range(200):
        report.counter(100 * number, 10)
    found = {"sampled": open_report(report.write()), "not": open_report(sampled(tmp_path / "no.sqlite", []).write())}
    fig = lab17.counter_panels(found)
    (means, _), (samples, _) = ([area.get_paths()[0].vertices for area in ax.collections] for ax in fig.axes[:2])
    assert means[:, 1].max() == 50 and samples[:, 1].max() == 100, "the mean of a ms, and each sample"
    assert [text.get_text() for text in fig.axes[2].texts] == ["SMs Active was not sampled"]
    shown = str(lab17.counters({name: lab17.counted(one) for name, one in found.items()})).splitlines()
    assert "49.7" in shown[-2] and shown[-1].count("–") == 5, "a share that begins with the first busy sample"
