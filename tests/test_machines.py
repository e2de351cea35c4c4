"""Every notebook, live on every machine that is recorded or pretended: no cell raises, and what it says holds."""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbval.plugin import get_sanitize_patterns

import in_one_process
from labkit import course, lines
from labkit.paths import ROOT
from labkit.pretend import machines
from labkit.source import recorded

NOTEBOOKS = ["start_here", *(lab.name for lab in course.LABS)]
FILES = [ROOT / f"{name}.ipynb" if name == "start_here" else ROOT / "labs" / f"{name}.ipynb" for name in NOTEBOOKS]
PATTERNS = get_sanitize_patterns((ROOT / "tests" / "live_sanitizer.cfg").read_text())

# What a machine that was recorded in part has of its own: of parts 1 and 2. The rest is the default machine's.
IN_PART = {"start_here", *(lab.name for lab in course.LABS if lab.part <= 2)}


def notebooks_of(machine: str) -> list[str]:
    """The notebooks that a machine has results of its own for."""
    in_part = machine in course.MACHINES and machine != course.DEFAULT_MACHINE
    return [name for name in NOTEBOOKS if name in IN_PART or not in_part]


def files_of(machine: str) -> list[Path]:
    return [FILES[NOTEBOOKS.index(name)] for name in notebooks_of(machine)]


everywhere = pytest.mark.parametrize(
    ("machine", "notebook"), [(machine, name) for machine in machines.names() for name in notebooks_of(machine)]
)
on_recorded = pytest.mark.parametrize("machine", [course.DEFAULT_MACHINE])
each = pytest.mark.parametrize("notebook", NOTEBOOKS)


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """What became of each notebook on a machine, by its name; all machines that are asked for share one process."""
    settings = {"initializer": in_one_process.begin, "initargs": (str(tmp_path_factory.mktemp("machines")),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        yield cache(lambda machine: process.submit(in_one_process.run, machine, files_of(machine)).result())


@everywhere
def test_no_cell_raises(ran, machine, notebook):
    result = ran(machine)[notebook]
    last = result["cells"][-1]
    assert result["status"] == "whole", f"cell {last['cell']}: {last['error']}\n{last['trace']}"


@each
@on_recorded
def test_on_the_recorded_machine_nothing_differs(ran, machine, notebook):
    assert ran(machine)[notebook]["differs"] == []


@each
@on_recorded
def test_live_on_the_recorded_machine_a_page_says_what_is_stored(ran, machine, notebook):
    """But for what the sanitizer of ``make test-gpu`` masks: measured numbers, conclusions, where a run came from."""
    stored = nbformat.read(FILES[NOTEBOOKS.index(notebook)], as_version=4).cells
    compared = [cell for cell in ran(machine)[notebook]["cells"] if "tags" not in stored[cell["cell"]].metadata]
    found = {cell["cell"]: sanitized(cell["said"]).strip() for cell in compared}
    assert found == {number: sanitized(text_of(stored[number])).strip() for number in found}


def text_of(cell) -> str:
    """What a cell printed and showed, as text."""
    return "".join(out.get("text") or out.data.get("text/plain", "") + "\n" for out in cell.outputs)


def sanitized(text: str) -> str:
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


# What it says there

GPU_SPOKEN_OF = r"\bthe GPU (?:works|stands|stood|idles|is busy|is idle)|\bkernels? (?:wait|run)s?\b|Tensor Cores work"
TF32_OR_BF16 = r"(?:TF32|BF16)(?! (?:came|takes|emulat))"

# Conclusions that would be false on a machine, whatever the numbers are. A sentence may quote what was recorded
# elsewhere if it names that machine, or says that it was recorded.
FALSE_ON = {
    "turing": [
        rf"faster than FP32[^:]*: .*{TF32_OR_BF16}",
        rf"{TF32_OR_BF16}[^.]*\bon Tensor Cores|Tensor Cores for [^,]*{TF32_OR_BF16}",
        r"stays TF32|(?:products|convolutions) in TF32|FP16 gains over TF32 in every epoch: ~0",
        r"Tensor Active|counter.* differ",
    ],
    "no-counters": [r"Tensor Active|SMs Active \(", r"driver and Nsight differ"],
    "mig": [r"utilisation less any work, in points: [^n]"],
    "h200-2cores": [r"(?<!not )(?<!nor )\b(?:more|enough) workers (?:gain|pay|help)", r"the workers get ahead"],
    "cpu": [GPU_SPOKEN_OF, r"launch-bound", r"utilisation less any work, in points: [^n]", r"Tensor Active"],
}
NOT_TRUE = {  # claims that cannot hold on a machine: it has to say so
    "turing": [
        "in BF16, kernels run on Tensor Cores",
        "TF32 is faster than FP32",
        "NVIDIA_TF32_OVERRIDE=1 makes all products TF32",
        "JAX computes them in TF32 as it comes",
        "this GPU is fast in BF16, in which the last rungs multiply",
    ],
    "h200-2cores": [
        "the workers that the cores allow are at least three times as fast as one",
        "the whole process is at least twice as fast",
        "with all three fixes the process is at least twice as fast as the baseline",
    ],
    "cpu": [
        "in FP16, more than half of the eligible operations use Tensor Cores",
        "in BF16, kernels run on Tensor Cores",
        "no GPU, however fast, can make the baseline's epoch 1.5 times as fast",
        "the GPU is busy for a larger part than in the profiles before",
        "no fix against idleness can make this epoch 1.3 times as fast",
        "the loop is over 20 times as fast as the baseline's, in every round",
    ],
}
RECORDED_GPU = recorded.provenance(recorded.RECORDED / course.DEFAULT_MACHINE)["gpu"]
RECORDED_ONES = re.compile(r"recorded|recordings|\bNVIDIA H\d00\b")


def lines_of(result: dict, *beginnings: str) -> list[str]:
    return [
        line
        for cell in result["cells"]
        for line in lines.joined(cell["said"]).splitlines()
        if line.startswith(beginnings)
    ]


@everywhere
def test_what_is_concluded_can_be_read(ran, machine, notebook):
    """No sentence with a number that is none, nor one that takes itself back."""
    said = lines_of(ran(machine)[notebook], "→", "[differs here]")
    assert said or notebook == "start_here"
    assert not [line for line in said if re.search(r"\bnan\b|\bNone\b|never, not never", line)]


@pytest.mark.parametrize(
    ("machine", "notebook"), [(machine, name) for machine in FALSE_ON for name in notebooks_of(machine)]
)
def test_nothing_is_concluded_that_is_false_there(ran, machine, notebook):
    said = [line for line in lines_of(ran(machine)[notebook], "→") if not line.startswith("→ [differs here]")]
    own = [line for line in said if not RECORDED_ONES.search(line)]
    assert not [line for line in own for false in FALSE_ON[machine] if re.search(false, line)]


@pytest.mark.parametrize("machine", NOT_TRUE)
def test_a_claim_that_cannot_hold_there_is_not_made(ran, machine):
    held = {line for result in ran(machine).values() for line in lines_of(result, "[ok]")}
    assert not [claim for claim in NOT_TRUE[machine] if f"[ok] {claim}" in held]
    stored = "".join(file.read_text() for file in FILES)
    assert not [claim for claim in NOT_TRUE[machine] if f"[ok] {claim}" not in stored], "the labs have other words"


@everywhere
def test_cores_and_gpu_are_the_machines_own(ran, machine, notebook):
    facts = machines.live(machine).facts
    for line in lines_of(ran(machine)[notebook], "→", "[differs here]"):
        if not RECORDED_ONES.search(line) and not any(name in line for name in course.MACHINES.values()):
            assert all(int(cores) == facts.cores for cores in re.findall(r"\b(\d+) (?:CPU )?cores\b", line)), line
        named = set(re.findall(r"\b(?:NVIDIA [A-Z]+\d+\w*(?: MIG \S+)?|Tesla \w+)", line))
        own = {facts.gpu, facts.gpu.partition(" MIG")[0]} if facts.gpu else {RECORDED_GPU}
        assert named <= own, line


@each
@pytest.mark.parametrize("machine", ["cpu"])
def test_without_a_gpu_what_was_recorded_is_called_so(ran, machine, notebook):
    """A conclusion on a benchmark that needs a GPU stands below the line that says whence its numbers are."""
    is_recorded = False
    for cell in ran(machine)[notebook]["cells"]:
        for line in lines.joined(cell["said"]).splitlines():
            is_recorded |= line.startswith(("| recorded instead", "recorded ("))
            if line.startswith("→") and re.search(r"times the power|\bTFLOP/s|of cuBLAS's speed|To pin a new", line):
                assert is_recorded, line
