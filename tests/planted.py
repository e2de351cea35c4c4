"""Defects that can happen by mistake, and the test that must catch each: planted alone, in a copy.

python3 tests/planted.py                 all of them
python3 tests/planted.py dropout tf32    those with this in their name
python3 tests/planted.py --third 0       every third, from the first on (0, 1 or 2)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT, LONG, GPU = "short", "long", "gpu"  # the tier of the test: make test, make test-all alone, or on a Hopper
PARTS = ("source_code", "labs", "images", "reports", "tests")
FILES = ("conftest.py", "pyproject.toml", "start_here.ipynb", "README.md")


@dataclass(frozen=True)
class Defect:
    """In ``file``, ``was`` (which stands there) becomes ``becomes``; then ``test``, of ``tier``, must fail.

    A recording that is changed gets its new checksum into the list, as one that somebody measured would.
    """

    name: str
    file: str
    was: str
    becomes: str
    test: str
    tier: str


KERNELS, TRAINING, READER = "source_code/labkit/kernels", "source_code/labkit/training", "source_code/stepbudget"
SCRIPTS, DISTRIBUTED = "tests/short/test_scripts.py", "tests/long/test_distributed.py"
LIMIT, NSIGHT = "tests/long/test_limit.py", "tests/short/stepbudget/test_nsight.py"
HOPPER = "tests/long/test_hopper.py::test_values_and_gradients_are_those_of_the_same_arithmetic"
PAGES = "tests/short/test_pages_as_stored.py"
TF32 = "tests/short/test_house.py::test_only_one_place_switches_tf32_for_what_the_steps_train"
SCALER = f"{SCRIPTS}::test_fp16_with_loss_scaling_trains_as_it_is_started_without_flags"
LOOPS = f"{SCRIPTS}::test_training_equals_an_independent_loop"

DEFECTS = (
    # A step trains otherwise than it says.
    Defect(
        "gradients that nobody empties", "source_code/main_baseline.py",
        "        optimizer.zero_grad()\n", "", LOOPS, SHORT,
    ),
    Defect(
        "digits in the same order each time", "source_code/main_baseline.py",
        "shuffle=True", "shuffle=False", LOOPS, SHORT,
    ),
    Defect(
        "a copy that waits", "source_code/main_opt2.py",
        "data.to(device, non_blocking=True)", "data.to(device)",
        f"{SCRIPTS}::test_batches_are_copied_without_waiting_from_step_2_on", SHORT,
    ),
    Defect(
        "a loss that is not scaled", "source_code/main_opt3.py",
        "scaler.scale(loss).backward()", "loss.backward()", SCALER, SHORT,
    ),
    Defect(
        "a step past the scaler", "source_code/main_opt3.py",
        "scaler.step(optimizer)", "optimizer.step()", SCALER, SHORT,
    ),
    Defect(
        "a scale that never changes", "source_code/main_opt3.py",
        "            scaler.update()\n", "", SCALER, SHORT,
    ),
    Defect(
        "dropout in the test", "source_code/main_opt1.py",
        "    model.eval()\n", "", LOOPS, SHORT,
    ),
    Defect(
        "a learning rate that falls otherwise", f"{TRAINING}/cli.py",
        "default=0.7", "default=0.8", LOOPS, SHORT,
    ),
    Defect(
        "pixels that are shifted otherwise", f"{TRAINING}/data.py",
        "MEAN, STD = 0.1307", "MEAN, STD = 0.1407", 
        "tests/short/test_data.py::test_mnist_is_read_as_it_lies_in_the_files", SHORT,
    ),
    Defect(
        "a network with another share of dropout", f"{TRAINING}/model.py",
        "nn.Dropout(0.25)", "nn.Dropout(0.2)", f"{SCRIPTS}::test_the_model_computes_what_the_example_computes", SHORT,
    ),
    Defect(
        "an epoch that is timed short", f"{TRAINING}/run.py",
        "yield\n            self.synchronize()\n        self.epoch_records", "yield\n        self.epoch_records",
        f"{SCRIPTS}::test_a_timed_part_waits_for_the_gpu_before_and_after", SHORT,
    ),
    Defect("TF32 by cudnn's switch", "source_code/main_baseline.py",
        "def train(", "torch.backends.cudnn.allow_tf32 = True\n\n\ndef train(", TF32, SHORT,
    ),
    Defect(
        "TF32 by the precision of products", f"{TRAINING}/model.py",
        "import torch\n", 'import torch\n\ntorch.set_float32_matmul_precision("high")\n', TF32, SHORT,
    ),
    Defect(
        "TF32 for convolutions alone", f"{TRAINING}/devices.py",
        "cudnn.conv.fp32_precision = precision", 'cudnn.conv.fp32_precision = "tf32"',
        f"{SCRIPTS}::test_the_precision_of_fp32_is_set_for_convolutions_and_for_products", SHORT,
    ),
    Defect(
        "ranks whose gradients are not averaged", "source_code/main_ddp_on_gpu.py",
        "train(run, parallel,", "train(run, model,", f"{DISTRIBUTED}::test_two_ranks_come_to_the_weights_of_one", LONG,
    ),
    # A kernel computes something else.
    Defect(
        "dropout's scale in the Triton head", f"{KERNELS}/head.py",
        "        slope = 2.0", "        slope = 1.6667", f"{LIMIT}::test_the_kernels_in_tritons_interpreter", LONG,
    ),
    Defect(
        "the share that dropout keeps", f"{KERNELS}/head.py",
        "KEPT = 0.5", "KEPT = 0.6", LIMIT, LONG,
    ),
    Defect(
        "Adadelta's small number", f"{KERNELS}/adadelta.py",
        "EPS = 0.9, 1e-6", "EPS = 0.9, 1e-5", f"{LIMIT}::test_own_kernels_on_the_cpu_equal_an_independent_loop", LONG,
    ),
    Defect(
        "opt8's values a thousandth too large", f"{KERNELS}/hopper_forward.cu",
        "fmaxf(upper, lower) + bias[h]", "fmaxf(upper, lower) * 1.001f + bias[h]", HOPPER, GPU,
    ),
    Defect(
        "opt8's gradients a thousandth too large", f"{KERNELS}/hopper.py",
        "winner, *out, count, 1 / kept", "winner, *out, count, 1.001 / kept", HOPPER, GPU,
    ),
    Defect(
        "opt8's pixels a thousandth too bright", f"{KERNELS}/hopper.cuh",
        "k % 4 + c] * SCALE", "k % 4 + c] * SCALE * 1.001f", HOPPER, GPU,
    ),
    # The reader of reports tells something else.
    Defect(
        "a first gap that is not idle", f"{READER}/intervals.py",
        "edges = np.concatenate([[start], busy.ravel(), [end]]).reshape(-1, 2)\n    return edges",
        "edges = np.concatenate([[start], busy.ravel(), [end]]).reshape(-1, 2)[1:]\n    return edges",
        f"{NSIGHT}::test_idle_time_is_what_no_kernel_copy_or_fill_covers", SHORT,
    ),
    Defect(
        "pinned and pageable memory exchanged", f"{READER}/export/kinds.py",
        '(0, "pageable")', '(0, "pinned")', f"{NSIGHT}::test_copies_by_direction_and_kind_of_host_memory", SHORT,
    ),
    Defect(
        "what overlaps counts twice", f"{READER}/ask/budget.py",
        "spans[kind] = intervals.subtract(times, taken)", "spans[kind] = times",
        "tests/short/stepbudget/test_budget.py::test_work_is_told_by_kind_and_what_overlaps_counts_once", SHORT,
    ),
    Defect(
        "the GPU of another rank", f"{READER}/ask/idle.py",
        "own = [work_of(table, asked.gpu) for table in tables]", "own = tables",
        f"{NSIGHT}::test_the_work_of_another_gpu_does_not_make_this_one_busy", SHORT,
    ),
    # A page, or what stands behind it.
    Defect(
        "a page's number that no cell computes", "labs/01_introduction.ipynb",
        "recorded (NVIDIA H200", "recorded (NVIDIA H300", PAGES, SHORT,
    ),
    Defect(
        "a run that took a tenth less", "reports/recorded/h200/runs/main_baseline-02.json",
        '"process_s": 73.', '"process_s": 65.', PAGES, SHORT,
    ),
    Defect(
        "a missing run tells the others as all", "source_code/labkit/source/originals.py",
        "    if gone:", "    if False:",
        "tests/short/test_originals.py::test_a_run_that_is_gone_is_named_and_the_others_are_not_told_as_all", SHORT,
    ),
    Defect(
        "a checksum that nobody compares", "source_code/labkit/source/originals.py",
        "    if known != _checksum(file, *_state(file)):", "    if False:", "tests/short/test_originals.py", SHORT,
    ),
    Defect(
        "an outdated recording without a word", "source_code/labkit/source/recorded.py",
        'if any(map(manifest.is_outdated, records)) else ""', 'if False else ""', PAGES, SHORT,
    ),
    Defect(
        "a flag's default that no recording keeps", f"{TRAINING}/manifest.py",
        'if one.arg == "default"', 'if one.arg == "defaults"', "tests/long/test_manifest.py", LONG,
    ),
    Defect(
        "an exercise that accepts all", "source_code/labkit/exercises/kinds.py",
        "return math.isclose(said, right", "return True or math.isclose(said, right",
        "tests/short/test_exercises.py", SHORT,
    ),
    Defect(
        "a link that leads nowhere", "labs/02_pytorch_mnist.ipynb",
        "(03_data_transfer.ipynb", "(03_data_transfers.ipynb", "tests/short/test_notebooks.py", SHORT,
    ),
    Defect(
        "cores that a container may not use", f"{TRAINING}/machine.py",
        "cores = len(os.sched_getaffinity(0))", "cores = os.cpu_count()", "tests/long/test_command_line.py", LONG,
    ),
    Defect(
        "a pretended machine that nobody runs", "source_code/labkit/pretend/machines.py",
        '    "turing": Turing,\n', "", "tests/short/test_pretended.py", SHORT,
    ),
)  # fmt: skip


def caught(defect: Defect, copy: Path) -> tuple[bool, str]:
    """Plant a defect in a copy of the checkout: does its test fail there? And what pytest said last."""
    file = copy / defect.file
    whole = file.read_text(encoding="utf-8")
    if defect.was not in whole:
        return False, f"'{defect.was.strip()}' is not in {defect.file}"
    listed = file.parents[1] / "provenance.json" if "recorded" in file.parts else file
    before = listed.read_text(encoding="utf-8")
    file.write_text(whole.replace(defect.was, defect.becomes, 1), encoding="utf-8")
    if listed != file:
        sums = [hashlib.sha256(text).hexdigest() for text in (whole.encode(), file.read_bytes())]
        listed.write_text(before.replace(*sums), encoding="utf-8")
    try:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", defect.test]
        words += ["--noconftest"] if defect.tier == GPU else []  # such a machine may lack what the others need
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (copy / "source_code", copy / "tests/support")))
        }
        done = subprocess.run(words, cwd=copy, env=variables, capture_output=True, text=True)
    finally:
        listed.write_text(before, encoding="utf-8")
        file.write_text(whole, encoding="utf-8")
    return done.returncode == 1, (done.stdout.strip().splitlines() or ["nothing"])[-1]


def has_hopper() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant defects in a copy, and see that a test catches each.")
    parser.add_argument("names", nargs="*", help="those with this in their name (default: all)")
    parser.add_argument("--third", type=int, choices=(0, 1, 2), help="every third only, from this one on")
    args = parser.parse_args()
    chosen = DEFECTS if args.third is None else DEFECTS[args.third :: 3]
    chosen = [one for one in chosen if not args.names or any(name in one.name for name in args.names)]
    if not has_hopper():
        left = [one.name for one in chosen if one.tier == GPU]
        chosen = [one for one in chosen if one.tier != GPU]
        print(f"no Hopper here, so not planted: {', '.join(left)}" if left else "", end="\n" * bool(left))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "gpu-performance-lab"
        for part in PARTS:
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in FILES:
            shutil.copyfile(ROOT / file, copy / file)
        for defect in chosen:
            start = time.monotonic()
            is_caught, said = caught(defect, copy)
            missed += not is_caught
            verdict = "caught" if is_caught else "NOT CAUGHT"
            print(f"{verdict} ({defect.tier}, {time.monotonic() - start:.0f} s): {defect.name}: {said}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    sys.exit(1 if missed or not chosen else 0)


if __name__ == "__main__":
    main()
