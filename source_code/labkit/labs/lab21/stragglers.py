"""Four runs of one program on two GPUs, without their names: in three of them one rank is late. Who reads on reads why.

Their reports come from the machine that the lab's text is written from, whatever machine it is read on.
"""

from __future__ import annotations

import pandas as pd

from labkit import cases
from labkit.errors import LabError
from labkit.subjects.unnamed import unnamed
from stepbudget.ask import ranks
from stepbudget.ask.ranks import Ranks
from stepbudget.show.table import Table, table

REASONS = {  # a word for the answer → what it stands for
    "loader": "its batches come too late",
    "cpu": "its main process does other work on the CPU, in every step",
    "computation": "its GPU has more to compute than the other one",
    "link": "its transfers take longer than the other one's",
    "launches": "it launches far more and smaller kernels",
}
_CASES = {"A": ("two_backward", "computation"), "B": ("two_log", "cpu"), "C": ("two_loader", "loader")}
HEALTHY = {"D": "two_good"}  # with nothing planted


def letters() -> list[str]:
    """All runs, in the lab's order; the last has nothing planted."""
    return [*_CASES, *HEALTHY]


def case(letter: str) -> cases.Case:
    """The program and what was planted in it; LabError for a letter that no run has."""
    names = {letter: name for letter, (name, _) in _CASES.items()} | HEALTHY
    if letter not in names:
        raise LabError(f"there is no run {letter}: they are called {', '.join(names)}.")
    return cases.case(names[letter])


def reason(letter: str) -> str:
    """Why a rank of a run is late: a word of REASONS. LabError for a run in which nothing is planted."""
    if letter not in _CASES:
        raise LabError(f"nothing was planted in a run {letter}.")
    return _CASES[letter][1]


def run(letter: str) -> Ranks:
    """The ranks of a run, from its report, which tells no more of itself than ``run_A``."""
    return ranks.together([unnamed(case(letter).report, f"run_{letter}")])


def reasons() -> Table:
    """The words for why a rank is late, and what each stands for."""
    return table(pd.DataFrame(REASONS.items(), columns=["word", "what it stands for"]), "Why a rank is late")
