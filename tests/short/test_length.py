"""A lab is one sitting: its cells and words are counted, and its minutes come of them."""

from __future__ import annotations

import re

import nbformat
import pytest

from labkit import course
from labkit.exercises import exercises_of
from labkit.paths import ROOT

MOST_WORDS, MOST_CELLS = 1_800, 45
OF_PART_1 = 1_500, 40  # and of the sitting that goes on with it
OF_THE_CLINIC = 2_200, 60

# How long a lab takes, in minutes: an assumption, said in the page for teachers.
WORDS_A_MINUTE = 200
A_CELL = 1 / 4  # to read a code cell and look at what it shows
AN_EXERCISE = 2


def words(cells: list) -> int:
    """Of the text as it is read: the bars at both ends are not, nor a link's address and title."""
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown" and not is_bar(cell))
    return len(re.sub(r"<[^>]+>", " ", re.sub(r"(\[[^]]*\])\([^)]*\)", r"\1", text)).split())


def is_bar(cell: nbformat.NotebookNode) -> bool:
    """Links to every lab, in one line: the more labs there are, the longer."""
    return cell.source.startswith("[← Previous](") and "\n" not in cell.source.strip()


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_a_lab_is_one_sitting(lab):
    cells = nbformat.read(lab.path, as_version=4).cells
    of_others = OF_THE_CLINIC if lab.name == "20_clinic" else (MOST_WORDS, MOST_CELLS)
    most_words, most_cells = OF_PART_1 if lab.part == 1 or lab.name == "25_own_model" else of_others
    assert words(cells) <= most_words
    assert len(cells) <= most_cells


@pytest.mark.parametrize("lab", course.LABS, ids=lambda lab: lab.name)
def test_its_minutes_are_those_of_its_words_cells_and_exercises(lab):
    cells = nbformat.read(lab.path, as_version=4).cells
    code = sum(cell.cell_type == "code" for cell in cells)
    takes = words(cells) / WORDS_A_MINUTE + code * A_CELL + len(exercises_of(lab.number)) * AN_EXERCISE
    assert abs(lab.minutes - takes) <= 3


def test_the_page_for_teachers_says_how_minutes_are_counted():
    said = "at 200 words a minute, a quarter of a minute for a code cell and what it shows, two minutes for an exercise"
    assert said in (ROOT / "labs" / "for_teachers.md").read_text()
