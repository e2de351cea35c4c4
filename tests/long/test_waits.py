"""How long a reader waits, live and quick: by what was recorded, and by how this compared where the labs last ran live.

The seconds of each thing that a lab runs are those of the recorded machine; the last live run says how many times as
long they took there, and how long a lab takes by itself, without anything that it runs.
"""

from __future__ import annotations

import json
import re
import statistics

import pytest

import waits
from labkit import course
from labkit.paths import RECORDED
from labkit.recording import live_check
from labkit.source import pace

# What may be waited for on 16 cores: a lesson, the three parts about the trainer, and all with what is beyond it.
PART_1_S, TRAINER_S, ALL_S = 10 * 60, 40 * 60, 50 * 60
ANNOUNCED = re.compile(r"^\| .*recorded machine(?: took|:) (?:(\d+) min )?(\d+) s", re.MULTILINE)


on_recorded = pytest.mark.parametrize("machine", [course.DEFAULT_MACHINE])


@pytest.fixture
def asked(ran_on, machine) -> dict:
    """By lab, the cells that wait, as ``waits.waits`` gives them."""
    return waits.waits(ran_on(machine))


@pytest.fixture(scope="module")
def ran() -> dict[str, list[dict]]:
    """By lab, the cells that the last live run on the recorded machine ran."""
    labs = json.loads((RECORDED / course.DEFAULT_MACHINE / live_check.NAME).read_text())["labs"]
    return {name: lab["cells"] for name, lab in labs.items()}


def slower(ran: dict[str, list[dict]], kind: str = "") -> float:
    """How many times as long as announced the cells took that announced how long; of one kind, where any did."""
    pairs = [
        (waits.kind_of(cell["said"]), cell["seconds"], sum(60 * int(min_ or 0) + int(s) for min_, s in told))
        for cells in ran.values()
        for cell in cells
        if (told := ANNOUNCED.findall(cell["said"])) and "error" not in cell
    ]
    same = [pair for pair in pairs if pair[0] == kind] or pairs
    return sum(here for _, here, _ in same) / sum(there for *_, there in same)


def own_s(ran: dict[str, list[dict]]) -> dict[str, float]:
    """By lab, seconds of its cells that run nothing: imports, reading, drawing."""
    return {
        name: sum(cell["seconds"] for cell in cells if not waits.kind_of(cell["said"]) and "| " not in cell["said"][:2])
        for name, cells in ran.items()
    }


def expected_s(asked: dict, ran: dict[str, list[dict]], labs: list[str]) -> float:
    """Of a lab that did not run there, the cells that run nothing are taken to last as long as on average."""
    waited_s = sum(slower(ran, kind) * sum(each) for name in labs for _, kind, each in asked[name])
    own = own_s(ran)
    return waited_s + sum(own.get(name, statistics.mean(own.values())) for name in labs)


@on_recorded
def test_every_wait_is_known_beforehand(asked):
    """So that a cell says how long; nothing that a lab runs is without a recorded time."""
    assert list(asked) == live_check.names()
    assert not [(name, cell) for name, cells in asked.items() for cell, _, each in cells if None in each]
    assert pace.LONG_S <= 5


@on_recorded
def test_part_1_waits_ten_minutes_at_most(asked, ran):
    assert 60 < expected_s(asked, ran, ["start_here", *(lab.name for lab in course.part(1))]) <= PART_1_S


@on_recorded
def test_the_labs_on_the_trainer_wait_forty_minutes_at_most_and_all_labs_fifty(asked, ran):
    trainer = ["start_here", *(lab.name for lab in course.LABS if lab.part < 4)]
    assert 600 < expected_s(asked, ran, trainer) <= TRAINER_S
    assert expected_s(asked, ran, live_check.names()) <= ALL_S


@on_recorded
def test_nothing_is_measured_twice(asked):
    """The baseline is a part of six labs: two runs of it are made, in all."""
    baseline_s = pace.recorded_s("runs", "main_baseline.py --epochs 3")
    assert sum(seconds == baseline_s for cells in asked.values() for *_, each in cells for seconds in each) == 2
    assert not asked["05_summary"]


def test_a_live_run_is_compared_with_what_it_announced():
    said = "$ time a\n| the recorded machine took 50 s\n| run 1 of 1\n"
    more = "$ nsys\n| about 2 min (recorded machine: 1 min 40 s; this one has been 1.2 times as slow so far)\n"
    cells = [{"said": said, "seconds": 60.0}, {"said": more, "seconds": 120.0}, {"said": "x\n", "seconds": 3.0}]
    ran = {"a": cells, "b": [{"said": "| about 20 s (recorded machine: 20 s)", "seconds": 20.0}]}
    assert slower({"a": cells}) == slower({"a": cells}, "ncu") == pytest.approx(180 / 150)
    assert (slower(ran, "time"), slower(ran, "nsys")) == (1.2, 1.2)
    assert own_s(ran) == {"a": 3.0, "b": 0.0}
    assert expected_s({"c": [(1, "time", [10.0])]}, ran, ["c"]) == pytest.approx(10 * 1.2 + 1.5)
