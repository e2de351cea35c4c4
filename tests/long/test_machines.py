"""Every notebook, live on every machine that is recorded or pretended: no cell raises, and what it says holds."""

from __future__ import annotations

import re

import nbformat
import pytest

import pages
from labkit import course, lines
from labkit.pretend import machines
from labkit.source import recorded

everywhere = pytest.mark.parametrize(
    ("machine", "notebook"), [(machine, file.stem) for machine in machines.names() for file in pages.of(machine)]
)
on_recorded = pytest.mark.parametrize("machine", [course.DEFAULT_MACHINE])
each = pytest.mark.parametrize("notebook", list(pages.BY_NAME))


@everywhere
def test_no_cell_raises(ran_on, machine, notebook):
    result = ran_on(machine)[notebook]
    last = result["cells"][-1]
    assert result["status"] == "whole", f"cell {last['cell']}: {last['error']}\n{last['trace']}"


@each
@on_recorded
def test_on_the_recorded_machine_nothing_differs(ran_on, machine, notebook):
    assert ran_on(machine)[notebook]["differs"] == []


@each
@on_recorded
def test_live_on_the_recorded_machine_a_page_claims_what_is_stored(ran_on, machine, notebook):
    """It makes the same claims, and they hold: all that ``make test-gpu`` compares."""
    stored = nbformat.read(pages.BY_NAME[notebook], as_version=4).cells
    compared = [cell for cell in ran_on(machine)[notebook]["cells"] if "tags" not in stored[cell["cell"]].metadata]
    found = {cell["cell"]: pages.sanitized(cell["said"]).strip() for cell in compared}
    assert found == {number: pages.sanitized(pages.text_of(stored[number])).strip() for number in found}


# What it says there

GPU_SPOKEN_OF = r"\bthe GPU (?:works|stands|stood|idles|is busy|is idle)|\bkernels? (?:wait|run)s?\b|Tensor Cores work"
TF32_OR_BF16 = r"(?:TF32|BF16)(?! (?:came|takes|emulat))"

# Conclusions that would be false on a machine, whatever the numbers are. A sentence may quote what was recorded
# elsewhere if it names that machine, or says that it was recorded.
FALSE_ON = {
    "turing": [
        rf"faster than FP32[^:]*: .*{TF32_OR_BF16}",
        rf"{TF32_OR_BF16}[^.]*\bon Tensor Cores|Tensor Cores for [^,]*{TF32_OR_BF16}",
        r"stays TF32|(?:products|convolutions) in TF32|FP16 gains over TF32 in every epoch: 0",
        r"Tensor Active|counter.* differ",
    ],
    "no-counters": [r"Tensor Active|SMs Active \(", r"driver and Nsight differ"],
    "mig": [r"utilisation minus any work, in points: [^n]"],
    "h200-2cores": [r"(?<!not )(?<!nor )\b(?:more|enough) workers (?:gain|pay|help)", r"the workers get ahead"],
    "cpu": [GPU_SPOKEN_OF, r"launch-bound", r"utilisation minus any work, in points: [^n]", r"Tensor Active"],
}
FALSE_ON["no-nsys"] = [*FALSE_ON["turing"], r"The sleeps last 0|\bNsight counted|SMs Active \("]
NOT_TRUE = {  # claims that cannot hold on a machine: it has to say so
    "turing": [
        "in BF16, kernels run on Tensor Cores",
        "JAX computes them in TF32 as it comes",
        "this GPU is fast in BF16, in which the last steps multiply",
    ],
    "h200-2cores": [
        "the workers that the cores allow are at least three times as fast as one",
        "the whole process is at least twice as fast",
    ],
    "cpu": [
        "in FP16, more than half of the kernels in convolutions and matrix products use Tensor Cores",
        "in BF16, kernels run on Tensor Cores",
        "the GPU is busy for a larger part than in the profiles before",
        "no fix against idleness can make this epoch 1.3 times as fast",
        "the loop is over 20 times as fast as the baseline's, in every round",
    ],
}
NOT_TRUE["no-nsys"] = NOT_TRUE["turing"]
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
def test_what_is_concluded_can_be_read(ran_on, machine, notebook):
    """No sentence with a number that is none, nor one that takes itself back."""
    said = lines_of(ran_on(machine)[notebook], "→", "[differs here]")
    assert said or notebook == "start_here"
    assert not [line for line in said if re.search(r"\bnan\b|\bNone\b|never, not never", line)]


@pytest.mark.parametrize(
    ("machine", "notebook"), [(machine, file.stem) for machine in FALSE_ON for file in pages.of(machine)]
)
def test_nothing_is_concluded_that_is_false_there(ran_on, machine, notebook):
    said = [line for line in lines_of(ran_on(machine)[notebook], "→") if not line.startswith("→ [differs here]")]
    own = [line for line in said if not RECORDED_ONES.search(line)]
    assert not [line for line in own for false in FALSE_ON[machine] if re.search(false, line)]


@pytest.mark.parametrize("machine", NOT_TRUE)
def test_a_claim_that_cannot_hold_there_is_not_made(ran_on, machine):
    held = {line for result in ran_on(machine).values() for line in lines_of(result, "✓")}
    assert not [claim for claim in NOT_TRUE[machine] if f"✓ {claim}" in held]
    stored = "".join(file.read_text() for file in pages.FILES)
    assert not [claim for claim in NOT_TRUE[machine] if f"✓ {claim}" not in stored], "the labs have other words"


@everywhere
def test_cores_and_gpu_are_the_machines_own(ran_on, machine, notebook):
    facts = machines.live(machine).facts
    for line in lines_of(ran_on(machine)[notebook], "→", "[differs here]"):
        if not RECORDED_ONES.search(line) and not any(name in line for name in course.MACHINES.values()):
            assert all(int(cores) == facts.cores for cores in re.findall(r"\b(\d+) (?:CPU )?cores\b", line)), line
        named = set(re.findall(r"\b(?:NVIDIA [A-Z]+\d+\w*(?: MIG \S+)?|Tesla \w+)", line))
        own = {facts.gpu, facts.gpu.partition(" MIG")[0]} if facts.gpu else {RECORDED_GPU}
        counted_there = not facts.ncu and re.search(r"the counters are those of|^→ On the NVIDIA", line)
        own |= {RECORDED_GPU} if counted_there else set()
        assert named <= own, line


@each
@pytest.mark.parametrize("machine", ["cpu"])
def test_without_a_gpu_what_was_recorded_is_called_so(ran_on, machine, notebook):
    """A conclusion on a benchmark that needs a GPU stands below the line that says whence its numbers are."""
    is_recorded = False
    for cell in ran_on(machine)[notebook]["cells"]:
        for line in lines.joined(cell["said"]).splitlines():
            is_recorded |= line.startswith(("| recorded instead", "recorded ("))
            if line.startswith("→") and re.search(r"times the power|\bTFLOP/s|of cuBLAS's speed|To pin a new", line):
                assert is_recorded, line
