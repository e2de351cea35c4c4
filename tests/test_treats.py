"""The labs that the reader's advice names in the course: every fix has one, and it exists."""

from __future__ import annotations

from labkit.paths import ROOT
from labkit.treats import LABS
from stepbudget.ask.predict import FIXES


def test_every_fix_has_a_lab_that_exists():
    assert LABS.keys() == FIXES.keys()
    assert {*LABS.values()} <= {path.stem for path in (ROOT / "labs").glob("*.ipynb")}
