"""The exercises of lab 9."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch

from labkit.checks import answer_choice, answer_function, answer_number
from labkit.pretend.triton import PretendError, launch


def _bias_relu(number: str, answer: Callable | None) -> bool:
    def trial(bias_relu: Callable) -> str | None:
        generator = torch.Generator().manual_seed(0)
        for rows, columns in ((8, 8), (7, 10), (1, 100), (33, 3)):
            x, bias = torch.randn(rows, columns, generator=generator), torch.randn(columns, generator=generator)
            y, count, block = torch.full_like(x, torch.nan), x.numel(), 16
            try:
                work = launch(bias_relu, (-(-count // block),), x, bias, y, count, columns, BLOCK=block)
            except PretendError as error:
                return str(error)
            right = torch.relu(x + bias)
            if y.isnan().any():
                return f"of {count} numbers of y, {int(y.isnan().sum())} were never written, or are not a number"
            if (y < 0).any():
                return "some results are negative: max(…, 0) is missing"
            if torch.allclose(y, torch.relu(x)):
                return "it never adds the bias"
            if not torch.allclose(y, right):
                return f"with {columns} columns some results are wrong: number i of x belongs to column i % columns"
            if work.loaded > 2 * count:
                return f"it reads {work.loaded} numbers where {2 * count} are enough: each of x once, and its bias"
        return None

    return answer_function(number, answer, trial)


def _first_time(number: str, answer: str | None, entries: pd.DataFrame) -> bool:
    cold = entries["cold_s"].astype(float)
    first_time = cold.fillna(entries["process_s"])
    hint = "Take the cold process where there is one, else the usual one, and compare the seconds."
    best = first_time.idxmin()
    shortest = entries.loc[best, "step"]
    reaches = cold.fillna(entries["process_high_s"])[best]  # what a rung's own runs differ by tells none apart
    alike = set(entries.loc[cold.fillna(entries["process_low_s"]) <= reaches, "step"])
    return answer_choice(number, answer, answer if answer in alike else shortest, hint)


def _at_the_floor(number: str, answer: float | None, entries: pd.DataFrame, floor_s: float) -> bool:
    last = entries.iloc[-1]
    right = last["process_s"] / (last["process_s"] - (last["training_s"] - floor_s))
    hint = "The process less what the loop saves; the rest stays as it is."
    return answer_number(number, answer, float(right), hint, within=0.005)


EXERCISES = {"9.1": _bias_relu, "9.2": _first_time, "9.3": _at_the_floor}
