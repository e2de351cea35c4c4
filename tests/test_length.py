"""A lab is one sitting: its cells and words are counted."""

from __future__ import annotations

import re

import nbformat
import pytest

from labkit import course

MOST_CELLS = 60
MOST_WORDS = 2_500


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_a_lab_is_one_sitting(lab):
    cells = nbformat.read(lab.path, as_version=4).cells
    text = [re.sub(r"<[^>]+>", " ", cell.source) for cell in cells if cell.cell_type == "markdown"]
    assert len(cells) <= MOST_CELLS
    assert sum(len(cell.split()) for cell in text) <= MOST_WORDS
