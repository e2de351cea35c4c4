"""Every claim of a lab's module can fail: for what its lab gives it, altered, it does not hold."""

from __future__ import annotations

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor

import pytest

import broken
import in_one_process
from labkit import checks, course, labs
from labkit.errors import LabError

WITH_CHECKS = [lab for lab in course.LABS if labs.checks_of(lab.number)]


@pytest.mark.parametrize("lab", WITH_CHECKS, ids=lambda lab: lab.path.stem)
def test_every_claim_can_fail(lab):
    settings = {"initializer": in_one_process.begin, "initargs": (tempfile.mkdtemp(),)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **settings) as process:
        assert process.submit(broken.never_false, [lab.path]).result() == []


@pytest.mark.parametrize("lab", WITH_CHECKS, ids=lambda lab: lab.path.stem)
def test_every_check_is_asked_for_by_its_lab(lab):
    text = lab.path.read_text()
    assert [name for name in labs.checks_of(lab.number) if f'lab.check(\\"{name}\\"' not in text] == []


def test_a_check_that_there_is_not_is_named():
    labs.begin(2)
    with pytest.raises(LabError, match=r"lab 2 has no check called starvd\. Near it: starved"):
        labs.check("starvd")
    labs.begin(None)
    with pytest.raises(LabError, match="no lab has begun"):
        labs.check("starved")


def test_a_check_says_claims_and_conclusions_in_order(capsys):
    checks.check(
        iter(
            [
                "It is 2 ms.",
                checks.Note("So it is."),
                checks.Claim("one", True),
                checks.Claim("other", True, 1, "a", "b"),
            ]
        )
    )
    assert capsys.readouterr().out.splitlines() == ["→ It is 2 ms.", "So it is.", "✓ one", "✓ other"]
    with pytest.raises(checks.CheckFailed, match="does not hold here: one"):
        checks.check([checks.Claim("one", False)])
