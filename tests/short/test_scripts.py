"""Every step script runs for real on the CPU, and trains exactly as an independent loop says it must."""

import ast
import contextlib
import difflib
import io
import itertools
import json
import os
import re
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import forked
from labkit import course, paths
from labkit.paths import SOURCE_CODE
from labkit.training import data, steps
from labkit.training import ranges as nvtx_ranges
from labkit.training import run as training_run
from labkit.training.model import LeanNet, Net
from labkit.training.sizes import flops_per_sample, parameters, training_flops_per_sample

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:Detected call of .lr_scheduler")

WITH_LOADER = [step.script for step in course.STEPS if step.loader]
WITHOUT_LOADER = [step.script for step in course.STEPS if not step.loader and step.label]  # digits on the device
LADDER = [*WITH_LOADER, *WITHOUT_LOADER]
# No rungs: the step that each varies.
BESIDE = {"main_opt6_block.py": "main_opt6.py", "main_opt8.py": "main_opt7.py", "main_shapes.py": "main_opt4.py"}
SCRIPTS = [*LADDER, *BESIDE]
LABS = {step.script: f"{step.lab:02d}" for step in course.STEPS} | {"main_shapes.py": "12"}
PHASES = ["data loading", "copy to device", "zero grad", "forward", "loss", "backward", "optimizer step"]
BATCH = 16
COMMON = ["--batch-size", BATCH, "--test-batch-size", 40, "--device", "cpu", "--log-interval", 1]

# Flags of the runs that are checked most closely; a loader process where the step is about them.
RUNS = {step.script: ["--workers", 0] if step.loader else ["--amp-dtype", "float32"] for step in course.STEPS}
RUNS |= {"main_opt7.py": [], "main_opt8.py": []}  # no autocast: their kernels' references compute in FP32
RUNS |= {name: ["--workers", 1] for name in ("main_baseline.py", "main_opt1.py")}
RUNS |= {"main_opt3.py": ["--workers", 0, "--amp-dtype", "float32"], "main_shapes.py": ["--amp-dtype", "float32"]}
LIMIT, EPOCHS = 192, 2


@dataclass
class Outcome:
    """What a run left behind."""

    said: str
    record: dict

    @property
    def step_losses(self) -> list[float]:
        """The loss of each training step, as printed."""
        return [float(loss) for loss in re.findall(r"^Train Epoch: .*\tLoss: (\S+)$", self.said, re.MULTILINE)]

    @property
    def numbers(self) -> list[float]:
        """All that training produced: the loss of each step, then each epoch's test loss and accuracy."""
        epochs = self.record["epochs"]
        return [*self.step_losses, *(epoch[name] for epoch in epochs for name in ("test_loss", "test_accuracy_pct"))]


def same(found: Outcome, expected: list[float], tolerance: float = 1e-4) -> bool:
    return found.numbers == pytest.approx(expected, rel=tolerance)


@cache
def bundled() -> data.Digits:
    return data.read_bundled()


def digits_to(limit: int) -> tuple[data.DigitSet, data.DigitSet]:
    whole = bundled()
    count = max(1, limit // 6)
    train = data.DigitSet(whole.train.data[:limit], whole.train.targets[:limit])
    return train, data.DigitSet(whole.test.data[:count], whole.test.targets[:count])


@cache
def reference(limit: int, epochs: int, workers: int = 0, persistent: bool = False, seed: int = 1) -> list[float]:
    """The recipe of PyTorch's MNIST example, written again from its description: Outcome.numbers of such a run.

    Loaders draw from the global generator, and persistent ones differently: their settings are part of the recipe.
    """
    train, test = digits_to(limit)
    torch.manual_seed(seed)
    loading = {"num_workers": workers, "persistent_workers": persistent}
    train_loader = DataLoader(train, batch_size=BATCH, shuffle=True, **loading)
    test_loader = DataLoader(test, batch_size=40, shuffle=False, **loading)
    return recipe(Net(), train_loader, test_loader, epochs)


@cache
def reference_without_loader(limit: int, epochs: int, script: str) -> list[float]:
    """The same recipe over digits in one piece, shuffled by one permutation an epoch.

    Dropout draws its numbers in the order of memory: the layout is part of the recipe, as the lean net's is.
    """
    train, test = digits_to(limit)

    class Batches:
        def __init__(self, digits: data.DigitSet, size: int, shuffled: bool) -> None:
            self.digits, self.size, self.shuffled = digits, size, shuffled

        def __iter__(self):
            count = len(self.digits)
            order = torch.randperm(count) if self.shuffled else torch.arange(count)
            for first in range(0, count, self.size):
                chosen = order[first : first + self.size].tolist()
                yield (
                    torch.stack([self.digits[i][0] for i in chosen]),
                    torch.tensor([self.digits[i][1] for i in chosen]),
                )

    torch.manual_seed(1)
    model = LeanNet() if script == "main_opt6.py" else Net()
    if script == "main_opt6_block.py":
        model.dropout1 = SeededDropout()
    if script == "main_opt5.py":
        model = model.to(memory_format=torch.channels_last)
    return recipe(model, Batches(train, BATCH, True), Batches(test, 40, False), epochs)


class SeededDropout(nn.Module):
    """dropout1 as the block's operator has it on the CPU: by a seed that is drawn for each step, channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        seeded = torch.Generator().manual_seed(int(torch.randint(2**62, (1,))))
        keep = torch.rand(len(x), 12, 12, 64, generator=seeded).permute(0, 3, 1, 2) < 0.75
        return x * keep / 0.75


def recipe(model, train_loader, test_loader, epochs: int) -> list[float]:
    """Train and test as the example does; what Outcome.numbers is of such a run."""
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    criterion, summed = nn.NLLLoss(), nn.NLLLoss(reduction="sum")
    step_losses, tests = [], []
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 0.7**epoch
        model.train(True)
        for images, labels in train_loader:
            for parameter in model.parameters():
                parameter.grad = None
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step_losses.append(loss.item())
        model.train(False)
        with torch.no_grad():
            outputs = [(model(images), labels) for images, labels in test_loader]
        samples = sum(len(labels) for _, labels in outputs)
        test_loss = sum(summed(output, labels).item() for output, labels in outputs) / samples
        right = sum(int((output.max(1).indices == labels).sum()) for output, labels in outputs)
        tests += [test_loss, 100 * right / samples]
    return [*step_losses, *tests]


@pytest.fixture(scope="session")
def run_script(tmp_path_factory):
    """Runs a script as a process of its own, once for each set of flags, and returns its Outcome."""
    environment = {name: value for name, value in os.environ.items() if name != "LAB_DATA_DIR"}

    @cache
    def run(script: str, *flags) -> Outcome:
        record = tmp_path_factory.mktemp("run") / "record.json"
        done = forked.run([paths.script(script), *COMMON, *flags, "--record", record], environment)
        assert done.returncode == 0, done.stderr
        return Outcome(done.stdout, json.loads(record.read_text()))

    return run


@pytest.fixture
def run_here(monkeypatch, tmp_path):
    """Runs a script, or a changed copy of one, in this process; faster, and it can be watched."""
    monkeypatch.delenv("LAB_DATA_DIR", raising=False)
    monkeypatch.setattr(nvtx_ranges, "_on", False)
    monkeypatch.setattr(
        training_run, "load_digits", lambda folder, limit: data.Digits(*digits_to(limit), data.BUNDLED, folder)
    )

    def run(script: str, *flags, change: tuple[str, str] | None = None) -> Outcome:
        text = (paths.script(script)).read_text()
        if change:
            assert change[0] in text, f"{script} has no '{change[0]}' to change"
            text = text.replace(*change)
        copy = tmp_path / script
        copy.write_text(text)
        record = tmp_path / "record.json"
        words = [copy, *COMMON, *flags, "--record", record]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(copy), run_name="__main__")
        return Outcome(said.getvalue(), json.loads(record.read_text()))

    return run


@pytest.fixture(params=SCRIPTS)
def script(request) -> str:
    return request.param


@pytest.fixture
def outcome(run_script, script) -> Outcome:
    return run_script(script, "--limit", LIMIT, "--epochs", EPOCHS, *RUNS[script])


# What a run prints and records


def test_a_script_prints_the_usual_lines(outcome, script):
    lines = outcome.said.splitlines()
    assert re.match(rf"{script}: 2 epochs, batch 16, seed 1 \| no GPU used: .* \d+ CPU cores, slowly$", lines[0])
    assert lines[1].startswith("Data: bundled 5,000 digits | FP32 arithmetic: true FP32 (TF32 off) | loader workers: ")
    assert lines[2].startswith("Train Epoch: 1 [0/192 (0%)]\tLoss: 2.")
    assert "Train Epoch: 2 [176/192 (92%)]\tLoss: " in outcome.said
    tests = re.findall(r"^Test set: Average loss: \d\.\d{4}, Accuracy: \d+/32 \(\d+%\)$", outcome.said, re.MULTILINE)
    assert len(tests) == EPOCHS


def test_the_loss_falls_and_accuracy_rises_above_chance(outcome):
    steps_an_epoch = LIMIT // BATCH
    losses = outcome.step_losses
    assert len(losses) == EPOCHS * steps_an_epoch
    first, last = losses[:steps_an_epoch], losses[-steps_an_epoch:]
    assert sum(last) < 0.8 * sum(first)
    tests = [epoch["test_loss"] for epoch in outcome.record["epochs"]]
    assert tests[-1] < tests[0] < 2.3
    assert outcome.record["test_accuracy_pct"] > 50


FIELDS = {
    "format": int, "script": str, "status": str, "arguments": dict, "profiled": bool, "started": str, "wall_s": float,
    "startup_s": float, "training_s": float, "test_s": float, "epochs": list, "test_loss": float,
    "test_accuracy_pct": float, "extras": dict, "manifest": dict, "peak_gpu_memory_mb": type(None), "data_source": str,
    "train_samples": int, "test_samples": int, "device": str, "gpu": type(None), "driver": type(None), "cpu": str,
    "cpu_cores": int, "versions": dict,
}  # fmt: skip


def test_the_record_is_complete_and_of_the_right_types(outcome, script):
    record = outcome.record
    assert {name: type(value) for name, value in record.items()} == FIELDS
    assert (record["format"], record["script"], record["status"]) == (1, script, "complete")
    assert record["data_source"] == "bundled 5,000 digits"
    assert (record["train_samples"], record["test_samples"]) == (LIMIT, LIMIT // 6)
    assert record["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__
    assert record["arguments"]["batch_size"] == BATCH and record["arguments"]["seed"] == 1
    assert record["profiled"] is False


def test_the_records_times_add_up(outcome):
    record = outcome.record
    epochs = record["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert {frozenset(epoch) for epoch in epochs} == {
        frozenset(("epoch", "training_s", "test_s", "train_loss", "test_loss", "test_accuracy_pct"))
    }
    assert all(epoch["training_s"] > epoch["test_s"] > 0 for epoch in epochs)
    assert record["training_s"] == pytest.approx(sum(epoch["training_s"] for epoch in epochs))
    assert record["test_s"] == pytest.approx(sum(epoch["test_s"] for epoch in epochs))
    assert record["startup_s"] > 0.1, "imports count"
    assert record["wall_s"] > record["startup_s"] + record["training_s"] + record["test_s"] - 0.05
    assert record["test_loss"] == epochs[-1]["test_loss"]
    assert [epoch["train_loss"] for epoch in epochs] == pytest.approx(outcome.step_losses[11::12], abs=1e-6)


# Training is what it is said to be


def test_training_equals_an_independent_loop(outcome, script):
    """A loader process changes nothing (main_baseline.py has one), unless it is persistent."""
    if script in ("main_opt7.py", "main_opt8.py"):
        pytest.skip("its dropout draws its numbers otherwise: tests/long/test_limit.py has the loop for it")
    loading = {"workers": 1, "persistent": True} if script == "main_opt1.py" else {}
    if script not in WITH_LOADER:
        expected = reference_without_loader(LIMIT, EPOCHS, script)
    else:
        expected = reference(LIMIT, EPOCHS, **loading)
    assert outcome.numbers == pytest.approx(expected, rel=1e-4)


def test_another_seed_gives_other_numbers(run_here):
    found = run_here("main_opt2.py", "--workers", 0, *SMALL, "--seed", 2)
    assert same(found, reference(64, 2, seed=2))
    assert not same(found, reference(64, 2))


SMALL = ["--limit", 64, "--epochs", 2]
CHANGES = {
    "no zero_grad": ("optimizer.zero_grad()", "pass"),
    "no backward": ("loss.backward()", "pass"),
    "no optimizer.step": ("optimizer.step()", "pass"),
    "no scheduler.step": ("scheduler.step()", "pass"),
    "no model.train": ("model.train()", "pass"),
    "no model.eval": ("model.eval()", "pass"),
    "no shuffling": ("shuffle=True", "shuffle=False"),
    "another learning rate": ("lr=args.lr", "lr=0.9"),
    "another decay": ("gamma=args.gamma", "gamma=0.8"),
    "no seed": ("run = steps.Run(args)", "run = steps.Run(args); torch.seed()"),
    "mean of means": ('reduction="sum").item()', ").item()"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_the_comparison_notices_a_wrong_loop(run_here, change):
    expected = reference(64, 2)
    assert not same(run_here("main_baseline.py", "--workers", 0, *SMALL, change=change), expected)


@pytest.mark.parametrize("change", [("scaler.scale(loss).backward()", "pass"), ("scaler.step(optimizer)", "pass")])
def test_the_comparison_notices_a_wrong_loop_with_a_scaler(run_here, change):
    flags = ["--workers", 0, "--amp-dtype", "float32", *SMALL]
    assert not same(run_here("main_opt3.py", *flags, change=change), reference(64, 2))


def test_the_comparison_accepts_the_unchanged_loops(run_here):
    for script in ("main_baseline.py", "main_opt3.py"):
        flags = ["--amp-dtype", "float32"] if script == "main_opt3.py" else []
        assert same(run_here(script, "--workers", 0, *flags, *SMALL), reference(64, 2))


# Mixed precision


def test_fp16_with_loss_scaling_trains_as_it_is_started_without_flags(run_script):
    found = run_script("main_opt3.py", "--limit", 96, "--epochs", 2, "--workers", 0)
    assert found.record["arguments"]["amp_dtype"] == "float16" and found.record["arguments"]["grad_scaler"]
    assert 0 < found.record["extras"]["final_loss_scale"] <= 65536
    expected = reference(96, 2)
    assert found.step_losses[0] == pytest.approx(expected[0], rel=0.01)
    assert sum(found.step_losses) == pytest.approx(sum(expected[:12]), rel=0.25)
    assert sum(found.step_losses[6:]) < sum(found.step_losses[:6])


def test_bf16_is_close_to_fp32_without_a_scaler(run_here):
    found = run_here("main_opt3.py", "--limit", 48, "--epochs", 1, "--workers", 0, "--amp-dtype", "bfloat16")
    expected = reference(48, 1)
    assert found.step_losses == pytest.approx(expected[:3], rel=0.05)
    assert found.numbers != expected
    assert found.record["extras"]["final_loss_scale"] == 1.0, "a scaler that is switched off"


@pytest.mark.parametrize(
    ("flags", "dtype", "scale"),
    [
        ([], torch.float16, 65536.0),
        (["--no-grad-scaler"], torch.float16, 1.0),
        (["--amp-dtype", "bfloat16"], torch.bfloat16, 1.0),
        (["--amp-dtype", "float32"], torch.float32, 1.0),
    ],
)
def test_flags_choose_the_precision_of_training_and_of_the_test(run_here, monkeypatch, flags, dtype, scale):
    seen = set()

    def watched(model, images, forward=Net.forward):
        hook = model.conv2.register_forward_hook(lambda _, __, output: seen.add((model.training, output.dtype)))
        output = forward(model, images)
        hook.remove()
        return output

    monkeypatch.setattr(Net, "forward", watched)
    found = run_here("main_opt3.py", "--limit", 4, "--epochs", 1, "--workers", 0, *flags)
    assert seen == {(True, dtype), (False, dtype)}
    assert found.record["extras"]["final_loss_scale"] in (scale, scale / 2)


@pytest.mark.parametrize("tf32", [False, True])
def test_the_precision_of_fp32_is_set_for_convolutions_and_for_products(tf32):
    try:
        steps.set_fp32_precision(tf32)
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            precision = "tf32" if tf32 else "ieee"
            assert torch.backends.cuda.matmul.fp32_precision == precision
            assert torch.backends.cudnn.conv.fp32_precision == precision
        else:
            assert torch.backends.cuda.matmul.allow_tf32 is tf32
            assert torch.backends.cudnn.allow_tf32 is tf32
    finally:
        steps.set_fp32_precision(False)


def test_the_tf32_flag_reaches_the_setting(run_here, monkeypatch):
    asked = []
    monkeypatch.setattr(training_run, "set_fp32_precision", asked.append)
    run_here("main_opt3.py", "--limit", 4, "--epochs", 1, "--workers", 0, "--amp-dtype", "float32", "--tf32")
    run_here("main_opt3.py", "--limit", 4, "--epochs", 1, "--workers", 0, "--amp-dtype", "float32")
    run_here("main_baseline.py", "--limit", 4, "--epochs", 1, "--workers", 0)
    assert asked == [True, False, False]


# Copies


@pytest.mark.parametrize("script", WITH_LOADER)
def test_batches_are_copied_without_waiting_from_step_2_on(run_here, monkeypatch, script):
    """Each batch of training and test, images and labels; on a CPU a copy is none, and the question is the same."""
    asked = []

    def watched(tensor, *args, to=torch.Tensor.to, **options):
        if args and isinstance(args[0], torch.device) and not isinstance(tensor, nn.Parameter):
            asked.append(options.get("non_blocking", False))
        return to(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    run_here(script, *TWO_STEPS, *precision(script))
    assert asked == [script in ("main_opt2.py", "main_opt3.py")] * 2 * (2 + 1)


# Ranges for the profiler


@pytest.fixture
def ranges(monkeypatch):
    """What the scripts push and pop, in order; a pop is None."""
    events = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", events.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: events.append(None))
    return events


TWO_STEPS = ["--limit", 32, "--epochs", 1, "--workers", 0]


def precision(script: str) -> list[str]:
    return ["--amp-dtype", "float32"] if "--amp-dtype" in RUNS[script] else []


IN_GRAPHS = ("main_opt5.py", "main_opt6.py", "main_opt6_block.py", "main_opt7.py", "main_opt8.py")  # each is one piece


def test_a_timed_run_carries_no_ranges(run_here, ranges, script):
    run_here(script, *TWO_STEPS, *precision(script))
    assert ranges == []


def test_a_profiled_run_names_its_phases_in_order(run_here, ranges, script):
    found = run_here(script, *TWO_STEPS, *precision(script), "--profile")
    if script in IN_GRAPHS:
        before, inside = ["warm-up", None], ["graph launch", None, "shuffle", None]
    elif script in ("main_opt4.py", "main_shapes.py"):
        step = [event for name in ["gather", *PHASES[2:]] for event in (name, None)]
        before, inside = [], ["shuffle", None, *step, *step]
    else:
        step = [event for name in PHASES for event in (name, None)] if script != "main_baseline.py" else []
        before, inside = [], [*step, *step, *(["data loading", None] if step else [])]
    assert ranges == [*before, "training", *inside, None, "test", None]
    assert found.record["profiled"] is True


@pytest.mark.parametrize("script", [script for script in WITH_LOADER if script != "main_baseline.py"])
def test_each_range_holds_the_work_that_it_names(run_here, ranges, monkeypatch, script):
    work = {
        "zero grad": (torch.optim.Adadelta, "zero_grad"), "forward": (Net, "forward"), "loss": (F, "nll_loss"),
        "backward": (torch.Tensor, "backward"), "optimizer step": (torch.optim.Adadelta, "step"),
    }  # fmt: skip
    for name, (owner, function) in work.items():
        monkeypatch.setattr(owner, function, noted(name, getattr(owner, function), ranges))
    run_here(script, *TWO_STEPS, *precision(script), "--profile")
    open_ones, done = [], []
    for event in ranges:
        if isinstance(event, tuple) and open_ones[0] != "test":
            assert open_ones[-1] == event[0], f"{event[0]} within {open_ones}"
            done.append(event[0])
        elif event is None:
            open_ones.pop()
        elif isinstance(event, str):
            open_ones.append(event)
    assert done == list(work) * 2


def noted(name: str, do, events: list):
    """The function, which says by its name that it runs."""

    def doing(*args, **options):
        events.append((name,))
        return do(*args, **options)

    return doing


def test_ranges_change_no_result(run_here, ranges):
    flags = ["--workers", 0, *SMALL]
    assert same(run_here("main_baseline_nvtx.py", *flags, "--profile"), reference(64, 2))


def a_run(monkeypatch, epochs: int, profile: bool, profile_ops: bool = False) -> tuple[steps.Run, list]:
    """A Run that thinks it has a GPU, and the list in which it leaves what it asked of that GPU."""
    asked: list = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append("synchronize"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: asked.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: asked.append("stop"))
    run = steps.Run.__new__(steps.Run)
    run.args = SimpleNamespace(epochs=epochs, profile=profile, profile_ops=profile_ops, record=None)
    run.cuda, run.device, run.epoch_records = True, torch.device("cuda"), []
    return run, asked


@pytest.mark.parametrize(
    ("epochs", "profile", "expected"),
    [(3, True, [1, "start", 2, "stop", 3]), (1, True, ["start", 1, "stop"]), (2, False, [1, 2])],
)
def test_the_profiler_sees_the_second_epoch_only(monkeypatch, epochs, profile, expected):
    run, asked = a_run(monkeypatch, epochs, profile)
    for epoch in run.epochs():
        asked.append(epoch)
    assert asked == expected


def test_a_timed_part_waits_for_the_gpu_before_and_after(monkeypatch):
    run, asked = a_run(monkeypatch, 1, False)
    for _ in run.epochs():
        with run.timed("training"):
            asked.append("work")
    assert asked == ["synchronize", "work", "synchronize"]
    assert run.epoch_records[0]["training_s"] >= 0


@pytest.mark.parametrize(("profile_ops", "expected"), [(False, []), (True, ["on", "off"])])
def test_operators_are_ranged_in_the_profiled_training_only(monkeypatch, profile_ops, expected):
    run, _ = a_run(monkeypatch, 3, profile=True, profile_ops=profile_ops)
    switched = []

    @contextlib.contextmanager
    def emit_nvtx(record_shapes):
        assert record_shapes
        switched.append("on")
        yield
        switched.append("off")

    monkeypatch.setattr(torch.autograd.profiler, "emit_nvtx", emit_nvtx)
    for epoch in run.epochs():
        with run.timed("training"):
            assert (switched == ["on"]) == (profile_ops and epoch == 2)
        with run.timed("test"):
            pass
        if epoch != 2:
            assert switched in ([], expected)
    assert switched == expected


def test_operator_ranges_without_a_profile_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main_baseline.py", "--profile-ops"])
    with pytest.raises(SystemExit) as end:
        steps.parse_args("A step.")
    assert end.value.code == 2
    assert "--profile-ops: only with --profile" in capsys.readouterr().err


# The scripts as a text to read


def test_the_first_line_names_the_step_and_its_lab(script):
    first = ast.get_docstring(ast.parse((paths.script(script)).read_text())).splitlines()[0]
    numbered = "main_opt4.py" if script == "main_shapes.py" else script
    step = "0" if "baseline" in script else numbered.removeprefix("main_opt")[0]
    assert first.startswith(f"Step {step}")
    assert first.endswith(f"(lab {LABS[script]}).")


CHANGED_LINES = {"main_opt4.py": 32, "main_opt5.py": 60, "main_opt7.py": 75}  # another loop, a graph, own kernels
CHANGED_LINES |= {"main_shapes.py": 36, "main_opt8.py": 19}  # flags of its own, two kernels for four
NEIGHBOURS = [*itertools.pairwise(LADDER), *((step, own) for own, step in BESIDE.items())]


@pytest.mark.parametrize(("before", "after"), NEIGHBOURS)
def test_neighbours_differ_in_few_lines(before, after):
    """What ``diff -w`` shows: a line that only moved to the right, into a ``with`` block, has not changed."""
    texts = [[line.strip() for line in (paths.script(name)).read_text().splitlines()] for name in (before, after)]
    blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes()
    changed = sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in blocks if kind != "equal")
    assert 0 < changed <= CHANGED_LINES.get(after, 16)


def test_every_step_script_is_tested_here():
    """Those for several GPUs are tested in test_distributed.py."""
    assert sorted(path.name for path in SOURCE_CODE.glob("**/main_*.py")) == sorted([*SCRIPTS, *course.SEVERAL_GPUS])


def test_the_model_is_the_examples():
    assert sum(parameter.numel() for parameter in Net().parameters()) == sum(parameters().values()) == 1_199_882
    assert Net()(torch.zeros(2, 1, 28, 28)).exp().sum(1).tolist() == pytest.approx([1, 1], rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_computes_what_the_example_computes(training):
    """Written again from its description, dropout rates included: the same random numbers, the same values."""
    net, images = Net().train(training), torch.rand(3, 1, 28, 28)
    value = dict(net.named_parameters())

    def layer(function, name: str, x: torch.Tensor) -> torch.Tensor:
        return function(x, value[f"{name}.weight"], value[f"{name}.bias"])

    torch.manual_seed(7)
    x = F.relu(layer(F.conv2d, "conv2", F.relu(layer(F.conv2d, "conv1", images))))
    x = F.dropout(F.max_pool2d(x, 2), 0.25, training).flatten(1)
    x = F.dropout(F.relu(layer(F.linear, "fc1", x)), 0.5, training)
    expected = F.log_softmax(layer(F.linear, "fc2", x), dim=1)
    torch.manual_seed(7)
    assert torch.allclose(net(images), expected, atol=1e-6)


def test_the_count_of_operations_is_that_of_the_layers():
    """Two operations for each weight at each output position, from the shapes that the layers give."""
    counted = {}
    model = Net()
    for name in ("conv1", "conv2", "fc1", "fc2"):
        layer = getattr(model, name)

        def count(layer, _, output, name=name):
            positions = output[0].numel() // layer.weight.shape[0]
            counted[name] = 2 * positions * layer.weight.numel()

        layer.register_forward_hook(count)
    model(torch.zeros(1, 1, 28, 28))
    assert flops_per_sample() == counted
    assert training_flops_per_sample() == 3 * sum(counted.values()) - counted["conv1"]
