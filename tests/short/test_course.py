"""The catalogue names what there is, and all of it."""

from __future__ import annotations

import pytest

from labkit import course
from labkit.paths import RECORDED, ROOT, SOURCE_CODE
from stepbudget.ask.advice import SIZES
from stepbudget.ask.predict import FIXES


def test_every_step_has_its_script_and_every_ladder_script_its_step():
    scripts = {step.script for step in course.STEPS} | set(course.SEVERAL_GPUS)
    assert scripts == {path.name for path in SOURCE_CODE.glob("main_*.py")}
    assert [step.lab for step in course.ladder()] == sorted(step.lab for step in course.ladder())
    assert course.step("main_opt1") is course.step("main_opt1.py")
    with pytest.raises(KeyError):
        course.step("main_opt99")


def test_every_lab_has_its_notebook_and_every_notebook_its_lab():
    assert [lab.path.name for lab in course.LABS] == sorted(path.name for path in (ROOT / "labs").glob("*.ipynb"))
    assert [lab.number for lab in course.LABS] == list(range(1, len(course.LABS) + 1))
    assert [lab.part for lab in course.LABS] == sorted(lab.part for lab in course.LABS)
    assert {lab.part for lab in course.LABS} == set(course.PARTS)


def test_every_fix_that_the_reader_advises_is_treated_in_one_lab():
    assert set(course.TREATED_IN) == {*FIXES, SIZES}
    assert len(course.TREATED_IN) == sum(len(lab.treats) for lab in course.LABS)


def test_every_recorded_machine_is_in_the_catalogue():
    recorded = {file.parent.name for file in RECORDED.glob("*/provenance.json")}
    assert {*course.MACHINES, *course.HOSTS} == recorded
    assert course.DEFAULT_MACHINE in course.MACHINES
