"""Which patient is which? Reports under a number, and the words for what ails them. Who reads on reads the answers.

Patients 1 and 2 are examined in the lab, the others by the reader. Their reports come from the machine that the
lab's text is written from, whatever machine it is read on: they are exam papers, and a paper has one right answer.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from labkit import cases, course
from labkit.errors import LabError
from labkit.paths import RECORDED
from labkit.source import originals
from stepbudget.report import Report, open_report

CAUSES = {  # a word for the card → what it stands for
    "loader": "the data loader delivers too late",
    "cpu work": "the main process is busy with other work on the CPU",
    "copies": "batches reach the GPU from pageable memory",
    "waiting": "the program waits for results of the GPU, again and again",
    "launches": "too many small operations: the GPU waits for their launches",
    "precision": "matrix products run in FP32, without Tensor Cores",
    "sizes": "sizes that Tensor Cores do not like",
    "debugging": "a debugging aid was left on",
    "healthy": "nothing worth a tenth of the time",
}

EXAMINED = (1, 2)
_CASES = {  # patient → case of labkit.cases, and its cause in the words above
    1: ("digits_pageable", "copies"),
    2: ("text_item", "waiting"),
    3: ("text_fp32", "precision"),
    4: ("images_good", "healthy"),
    5: ("text_optimizer", "launches"),
    6: ("images_augmentation", "cpu work"),
    7: ("two_loader", "loader"),
    8: ("text_anomaly", "debugging"),
    9: ("text_compiled", "healthy"),
    10: ("text_odd", "sizes"),
}


def numbers() -> list[int]:
    """All patients, in the lab's order."""
    return list(_CASES)


def case(number: int) -> cases.Case:
    """The program and what was planted in it; LabError for a number that no patient has."""
    return cases.case(_known(number)[0])


def cause(number: int) -> str:
    """What ails a patient: a word of CAUSES; LabError for a number that no patient has."""
    return _known(number)[1]


def report(number: int) -> Report:
    """A patient's report, under the name ``patient_3``, which is all that it tells of itself.

    LabError for a number that no patient has.
    """
    return unnamed(case(number).report, f"patient_{number}")


@cache
def unnamed(recorded: str, name: str) -> Report:
    """A report that the default machine recorded, under another name."""
    file = RECORDED / course.DEFAULT_MACHINE / "profiles" / f"{recorded}.sqlite.xz"
    with tempfile.TemporaryDirectory(prefix="labkit-clinic-") as scratch:
        copy = Path(scratch) / f"{name}.sqlite.xz"
        shutil.copyfile(originals.original(file), copy)
        return open_report(copy)  # unpacked, and open: it needs the copy no more


def _known(number: int) -> tuple[str, str]:
    if number not in _CASES:
        raise LabError(f"there is no patient {number}: they have the numbers {min(_CASES)} to {max(_CASES)}.")
    return _CASES[number]
