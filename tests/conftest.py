"""What several tests stand on lies in tests/support; property tests have no deadline, since a machine can be busy."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

settings.register_profile("course", deadline=None)
settings.load_profile("course")


@pytest.fixture
def unbroken_lines(monkeypatch):
    """For tests of what is said: a line is a line, however long. Where lines break is for test_lines.py."""
    from labkit import lines

    monkeypatch.setattr(lines, "WIDE", 10_000)
