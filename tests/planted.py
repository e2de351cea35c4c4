"""Defects that can happen by mistake, and the test that must catch each: planted alone, in a copy.

python3 tests/planted.py                 all of them
python3 tests/planted.py dropout tf32    those with this in their name
python3 tests/planted.py --third 0       every third, from the first on (0, 1 or 2)
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT, LONG = "short", "long"  # the tier of the test: make test, or make test-all alone
PARTS = ("source_code", "labs", "images", "reports", "tests")
FILES = ("conftest.py", "pyproject.toml", "start_here.ipynb", "README.md")


@dataclass(frozen=True)
class Defect:
    """In ``file``, ``was`` (which stands there) becomes ``becomes``; then ``test``, of ``tier``, must fail."""

    name: str
    file: str
    was: str
    becomes: str
    test: str
    tier: str


DEFECTS = (
    Defect(
        "dropout's scale in the Triton head", "source_code/labkit/kernels/head.py",
        "        slope = 2.0", "        slope = 1.6667",
        "tests/long/test_limit.py::test_the_kernels_in_tritons_interpreter", LONG,
    ),
    Defect(
        "the share that dropout keeps", "source_code/labkit/kernels/head.py",
        "KEPT = 0.5", "KEPT = 0.6", "tests/long/test_limit.py", LONG,
    ),
    Defect(
        "TF32 by cudnn's switch", "source_code/main_baseline.py",
        "def train(", "torch.backends.cudnn.allow_tf32 = True\n\n\ndef train(",
        "tests/short/test_house.py::test_only_one_place_switches_tf32_for_what_the_steps_train", SHORT,
    ),
    Defect(
        "TF32 by the precision of products", "source_code/labkit/training/model.py",
        "import torch\n", "import torch\n\ntorch.set_float32_matmul_precision(\"high\")\n",
        "tests/short/test_house.py::test_only_one_place_switches_tf32_for_what_the_steps_train", SHORT,
    ),
    Defect(
        "a missing run tells the others as all", "source_code/labkit/source/originals.py",
        "    if gone:", "    if False:",
        "tests/short/test_originals.py::test_a_run_that_is_gone_is_named_and_the_others_are_not_told_as_all", SHORT,
    ),
    Defect(
        "a checksum that nobody compares", "source_code/labkit/source/originals.py",
        "    if known != checksum(file):", "    if False:", "tests/short/test_originals.py", SHORT,
    ),
    Defect(
        "a page's number that no cell computes", "labs/01_introduction.ipynb",
        "recorded (NVIDIA H200", "recorded (NVIDIA H300", "tests/short/test_pages_as_stored.py", SHORT,
    ),
)  # fmt: skip


def caught(defect: Defect, copy: Path) -> tuple[bool, str]:
    """Plant a defect in a copy of the checkout: does its test fail there? And what pytest said last."""
    file = copy / defect.file
    whole = file.read_text(encoding="utf-8")
    if defect.was not in whole:
        return False, f"'{defect.was.strip()}' is not in {defect.file}"
    file.write_text(whole.replace(defect.was, defect.becomes, 1), encoding="utf-8")
    try:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", defect.test]
        variables = os.environ | {"PYTHONPATH": str(copy / "source_code")}
        done = subprocess.run(words, cwd=copy, env=variables, capture_output=True, text=True)
    finally:
        file.write_text(whole, encoding="utf-8")
    return done.returncode == 1, (done.stdout.strip().splitlines() or ["nothing"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant defects in a copy, and see that a test catches each.")
    parser.add_argument("names", nargs="*", help="those with this in their name (default: all)")
    parser.add_argument("--third", type=int, choices=(0, 1, 2), help="every third only, from this one on")
    args = parser.parse_args()
    chosen = DEFECTS if args.third is None else DEFECTS[args.third :: 3]
    chosen = [one for one in chosen if not args.names or any(name in one.name for name in args.names)]
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
