"""A lab is one sitting: its cells and words are counted."""

from __future__ import annotations

import re

import nbformat
import pytest

from labkit import course

MOST_CELLS = 60
MOST_WORDS = 2_500


def words(cells: list) -> int:
    """Of the text as it is shown: a link's address and title are not."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return len(re.sub(r"<[^>]+>", " ", re.sub(r"(\[[^]]*\])\([^)]*\)", r"\1", text)).split())


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_a_lab_is_one_sitting(lab):
    cells = nbformat.read(lab.path, as_version=4).cells
    assert len(cells) <= MOST_CELLS
    assert words(cells) <= MOST_WORDS
