"""The command line, asked in this process, each answer held against the written schema; a report to be made."""

import pytest

from asking import ask, every_answer_conforms  # noqa: F401  (fixtures)
from synthetic import SyntheticReport


@pytest.fixture
def made(tmp_path):
    """An empty report, which a test fills."""
    return SyntheticReport(tmp_path / "made.sqlite")
