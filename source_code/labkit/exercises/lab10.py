"""The exercises of lab 10."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.checks import answer_choice, answer_function, answer_number
from labkit.topics.shapes.readings import half_type
from stepbudget.ask import ops
from stepbudget.report import Report

BYTES = 16  # where a row of a matrix should begin: at a multiple of so many


def _padded(number: str, answer: Callable | None) -> bool:
    def trial(padded: Callable) -> str | None:
        import torch  # here: the recorded labs need none

        for size, dtype in (
            (127, torch.bfloat16),
            (128, torch.bfloat16),
            (50_257, torch.float16),
            (10, torch.float32),
            (10, torch.float8_e4m3fn),
            (1, torch.float16),
        ):
            found, name = padded(size, dtype), str(dtype).removeprefix("torch.")
            numbers = BYTES // dtype.itemsize  # in so many bytes
            if not isinstance(found, int) or isinstance(found, bool):
                return f"padded({size}, {name}) is {found!r}, not a whole number"
            if found < size:
                return f"padded({size}, {name}) is {found}: smaller than what has to fit"
            if found % numbers:
                return f"padded({size}, {name}) is {found}: {found * dtype.itemsize} bytes are no multiple of {BYTES}"
            if found - size >= numbers:
                return f"padded({size}, {name}) is {found}: a smaller one would do"
        return None

    return answer_function(number, answer, trial)


def _worth_padding(number: str, answer: float | None, products: pd.DataFrame) -> bool:
    own = products[(products["part"] == "one") & (products["dtype"] == half_type(products))]
    odd, padded = (float(own.loc[(own["varied"] == "n") & (own["n"] == size), "us"].iloc[0]) for size in (4097, 4104))
    hint = "Microseconds of the row with n = 4097, over those of the row with n = 4104."
    return answer_number(number, answer, odd / padded, hint)


def _idle_operation(number: str, answer: str | None, report: Report) -> bool:
    idle = ops.eligible(report)
    idle = idle[idle["group"] == ops.NOT_USING]
    if idle.empty:
        return answer_choice(number, answer, "none", "No operation here is 'not using': the answer is 'none'.")
    right = idle.groupby("reason")["gpu_ms"].sum().idxmax()
    hint = "Of the rows that are 'not using', take the reason that costs most milliseconds."
    return answer_choice(number, answer, right, hint)


EXERCISES = {"10.1": _padded, "10.2": _worth_padding, "10.3": _idle_operation}
