"""The words for what may ail a patient, and who named it first: as tables."""

from __future__ import annotations

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.clinic import patients
from labkit.topics.diagnosis import answers


def words() -> Table:
    """The words that an answer may use, and what each stands for."""
    frame = pd.DataFrame(patients.CAUSES.items(), columns=["word", "what it stands for"])
    return table(frame, "What may ail a patient")


def rounds() -> pd.DataFrame:
    """One row a patient: ``patient``, ``cause`` (what was planted), ``advice`` (its first finding), ``right``.

    Of a healthy patient the advice is right where it finds nothing that is worth a tenth of the time.
    """
    rows = []
    for number in patients.numbers():
        answer = answers.of_advice(patients.report(number))
        rows.append((number, patients.cause(number), answer.first, answer.is_right(patients.case(number))))
    return pd.DataFrame(rows, columns=["patient", "cause", "advice", "right"])
