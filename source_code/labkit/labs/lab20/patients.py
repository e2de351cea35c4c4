"""Which patient is which? Reports under a number, and the words for what is wrong. Further down are the answers.

Patients 1 and 2 are examined in the lab, the others by the reader. Their reports come from the machine that the
lab's text is written from, whatever machine it is read on: they are exam papers, and a paper has one right answer.
"""

from __future__ import annotations

import pandas as pd

from labkit import cases
from labkit.display.listing import Listing
from labkit.errors import LabError
from labkit.subjects.diagnosis import answers
from labkit.subjects.unnamed import unnamed
from labkit.subjects.without_flags import source
from stepbudget.report import Report
from stepbudget.show.table import Table, table

CAUSES = {  # a word for the card → what it stands for
    "loader": "the data loader delivers too late",
    "cpu work": "the main process is busy with other work on the CPU",
    "copies": "batches reach the GPU from pageable memory",
    "waiting": "the program waits for results of the GPU, again and again",
    "launches": "the operations are small and many: the GPU waits for their launches",
    "precision": "matrix products run in FP32, without Tensor Cores",
    "sizes": "sizes that Tensor Cores do not like",
    "debugging": "a debugging aid was left on",
    "healthy": "nothing worth a tenth of the time",
}

EXAMINED = (1, 2)
SHOWN = {  # program → the functions that its owner brings
    "images.py": ("recoloured", "make_loader", "train"),
    "text.py": ("make", "train"),
    "digits.py": ("train",),
    "two_gpus.py": ("train",),
}
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


def ward() -> dict[int, Report]:
    """The reports of all patients, by number."""
    return {number: report(number) for number in numbers()}


def in_backward(own: Report, after_ms: float = 4, long_ms: float = 2) -> tuple[float, float]:
    """A piece of the second backward pass, as ``sb.timeline`` wants it: from where to where, in ms of the window."""
    passes = own.ranges[own.ranges["name"] == "backward"]
    begin_ms = (passes.iloc[1]["start"] - own.window().start) / 1e6 + after_ms
    return begin_ms, begin_ms + long_ms


def _known(number: int) -> tuple[str, str]:
    if number not in _CASES:
        raise LabError(f"there is no patient {number}: they have the numbers {min(_CASES)} to {max(_CASES)}.")
    return _CASES[number]


def script(number: int) -> Listing:
    """The relevant part of a patient's training script; LabError for a number that no patient has."""
    own = case(number)
    return Listing(f"patient {number}: train.py", source(own, SHOWN[own.script.partition("/")[2]]))


def words() -> Table:
    """The words that an answer may use, and what each stands for."""
    frame = pd.DataFrame(CAUSES.items(), columns=["word", "what it stands for"])
    return table(frame, "What can be wrong")


def rounds() -> Table:
    """One row a patient: ``patient``, ``cause`` (what was planted), ``advice`` (its first finding), ``right``.

    Of a healthy patient the advice is right where it finds nothing that is worth a tenth of the time.
    """
    rows = []
    for number in numbers():
        answer = answers.of_advice(report(number))
        rows.append((number, cause(number), answer.first, answer.is_right(case(number))))
    frame = pd.DataFrame(rows, columns=["patient", "cause", "advice", "right"])
    return table(frame, "What was wrong, and what the advice says first: a cause, and % of the time to gain at most")
