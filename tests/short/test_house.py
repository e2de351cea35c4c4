"""The house: who may import whom, that nothing goes round in a circle, and that its face is small and quick to open."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from labkit import course, lab
from labkit.paths import SOURCE_CODE
from labkit.recording.live_check import code_cells

FILES = {
    ".".join(path.relative_to(SOURCE_CODE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE_CODE.rglob("*.py")
}

SCRIPTS = {step.name for step in course.STEPS} | {Path(script).stem for script in course.SEVERAL_GPUS}

# From the ground up: a room imports from its own floor and from those below.
FLOORS = (
    {"stepbudget"},
    {
        "labkit",
        "labkit.paths",
        "labkit.scripts",
        "labkit.lines",
        "labkit.errors",
        "labkit.numbers",
        "labkit.course",
        "labkit.versions",
        "labkit.cases",
        "labkit.without_torch",
        "labkit.lazily",
    },
    {"labkit.training", "labkit.kernels", "labkit.speedrun"},
    {"labkit.display", "labkit.source", "labkit.recording", "labkit.pretend", "labkit.checks", "labkit.predictions"},
    {"labkit.exercises", "labkit.subjects", "labkit.labs"},
    {
        "labkit.lab",
        "labkit.images",
        "labkit.screens",
        "labkit.doctor",
        "labkit.classroom",
        "labkit.site",
        "benchmarks",
        "speedrun",
        *SCRIPTS,
    },
)
IN_A_STEP = {"labkit.training", "labkit.kernels"}
THROUGH_A_STEP = {"benchmarks.bench_launches": "times the step's own training function, piece by piece"}
VERBS = 16  # of the face: a new one takes the place of another


def imported(path: Path) -> set[str]:
    """Our modules that a module imports anywhere in it, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: an import says the whole name"
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in FILES else node.module for name in names}
    return found & FILES.keys()


IMPORTS = {name: imported(path) for name, path in FILES.items()}


def room(module: str) -> str:
    """``labkit.subjects`` of ``labkit.subjects.scaling.charts``"""
    names = module.split(".")
    return ".".join(names[: 2 if names[0] == "labkit" else 1])


def floor(module: str) -> int:
    found = [number for number, rooms in enumerate(FLOORS) if room(module) in rooms]
    assert len(found) == 1, f"{module} stands on no floor: say in FLOORS where its room belongs"
    return found[0]


def test_imports_point_down():
    assert not [(one, other) for one, others in IMPORTS.items() for other in others if floor(other) > floor(one)]


def test_no_module_imports_itself_by_way_of_others():
    order = TopologicalSorter({name: others - {name} for name, others in IMPORTS.items()})
    assert {*order.static_order()} == {*FILES}, "graphlib raises CycleError, which names the circle"


@pytest.mark.parametrize("depth", [2, 3], ids=["rooms", "folders in them"])
def test_no_room_imports_itself_by_way_of_others(depth):
    """Of labkit: rooms, then the modules and folders in them."""
    order = TopologicalSorter()
    for name, others in IMPORTS.items():
        if name.startswith("labkit."):
            here, *there = (".".join(one.split(".")[:depth]) for one in (name, *others) if one.startswith("labkit."))
            order.add(here, *{*there} - {here})
    assert {room(name) for name in order.static_order()} == {room(name) for name in FILES if name.startswith("labkit.")}


def test_a_step_stands_on_training_and_kernels_alone_and_nothing_imports_a_step():
    for name in SCRIPTS:
        assert {room(other) for other in IMPORTS[name]} <= IN_A_STEP, name
    for name, others in IMPORTS.items():
        assert not others & SCRIPTS or name in THROUGH_A_STEP, f"{name} imports a step"


def test_the_face_stays_small():
    assert len(lab.__all__) <= VERBS and sorted(lab.__all__) == lab.__all__
    assert all(callable(getattr(lab, name)) for name in lab.__all__)


def first_cells(notebook: Path) -> str:
    """A notebook's code up to the cell in which it says where its numbers come from."""
    sources = [source for _, source in code_cells(notebook)]
    last = next(number for number, source in enumerate(sources) if "lab.start(" in source)
    return "\n".join(sources[: last + 1])


OPENED = """
import json, sys
for source in json.loads(sys.argv[1]):
    exec(source, {"__name__": "__main__"})
    heavy = {"torch", "triton", "keras", "jax", "scipy.stats"} & {*sys.modules}
    assert not heavy, (heavy, source)
"""


def test_opening_the_course_imports_no_torch():
    programs = ["from labkit import lab", *(first_cells(one.path) for one in course.part(1))]
    environment = {**os.environ, "LAB_MODE": "recorded"}
    words = [sys.executable, "-c", OPENED, json.dumps(programs)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=SOURCE_CODE.parent / "labs")
    assert done.returncode == 0, done.stderr


TF32_SWITCHES = re.compile(r"\.allow_tf32 *=|fp32_precision *=|set_float32_matmul_precision\(|TF32_OVERRIDE\W+ *[=:]")


def test_only_one_place_switches_tf32_for_what_the_steps_train():
    """A step that computed in another FP32 than its flags say would be faster for a reason that no page tells."""
    folders = (SOURCE_CODE, SOURCE_CODE / "labkit" / "training", SOURCE_CODE / "labkit" / "kernels")
    trains = [file for folder in folders for file in folder.glob("*.py")]
    switch = {file.name for file in trains if TF32_SWITCHES.search(file.read_text())}
    assert switch == {"devices.py"}
