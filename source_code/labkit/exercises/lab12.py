"""The exercises of lab 12: a padded size, what padding gains, and why an operation keeps off the Tensor Cores."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import shown
from labkit.topics.shapes.readings import half_type
from stepbudget.ask import ops
from stepbudget.report import Report

BYTES = 16  # where a row of a matrix should begin: at a multiple of so many


def _try_padded(padded: Callable) -> str | None:
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
        if not hasattr(found, "__index__") or isinstance(found, bool):
            return f"padded({size}, {name}) is {shown(found)}, not a whole number"
        if found < size:
            return f"padded({size}, {name}) is {found}: smaller than what has to fit"
        if found % numbers:
            return f"padded({size}, {name}) is {found}: {found * dtype.itemsize} bytes are no multiple of {BYTES}"
        if found - size == numbers:
            return f"padded({size}, {name}) is {found}: {size} fits already, and needs no padding"
        if found - size > numbers:
            return f"padded({size}, {name}) is {found}: a smaller one would do, {numbers} numbers are {BYTES} bytes"
    return None


def _up_to(multiple: Callable) -> Callable:
    return lambda size, dtype: -(-size // multiple(dtype)) * multiple(dtype)


PADDED = Code(
    "16 // dtype.itemsize numbers are 16 bytes; -(-a // b) rounds a / b up.",
    _try_padded,
    wrong={
        "bytes are no multiple of 16": _up_to(lambda dtype: 4),
        "is 50272: a smaller one would do": _up_to(lambda dtype: 16),
        "is 50304: a smaller one would do": _up_to(lambda dtype: 64),
        "smaller than what has to fit": lambda size, dtype: size // 8 * 8,
        "fits already": lambda size, dtype: size + 16 // dtype.itemsize - size % (16 // dtype.itemsize),
        "not a whole number": lambda size, dtype: float(_up_to(lambda one: 16 // one.itemsize)(size, dtype)),
        "is something of type NoneType": lambda size, dtype: None,
    },
)


def _us(products: pd.DataFrame, size: int, dtype: str | None = None) -> float:
    own = products[(products["part"] == "one") & (products["dtype"] == (dtype or half_type(products)))]
    found = own.loc[(own["varied"] == "n") & (own["n"] == size), "us"]
    return float(found.iloc[0]) if len(found) else float("nan")


WORTH_PADDING = Number(
    BOUND,
    "Microseconds of the row with n = 4097, over those of the row with n = 4104.",
    right=lambda products: _us(products, 4097) / _us(products, 4104),
    wrong={
        "that is turned over: how many times as fast is the padded one?": lambda p: _us(p, 4104) / _us(p, 4097),
        "that is in TF32: BF16 or FP16 is asked for": lambda p: _us(p, 4097, "tf32") / _us(p, 4104, "tf32"),
        "that is the share that is saved: how many times as fast?": lambda p: 1 - _us(p, 4104) / _us(p, 4097),
        "that is N = 4095 in the place of 4097": lambda p: _us(p, 4095) / _us(p, 4104) if _us(p, 4095) else 0.0,
    },
)


def _idle_reason(report: Report) -> str:
    idle = ops.eligible(report)
    idle = idle[idle["group"] == ops.NOT_USING]
    return "none" if idle.empty else idle.groupby("reason")["gpu_ms"].sum().idxmax()


IDLE_OPERATION = Choice(
    READ,
    "Of the rows that are 'not using', take the reason that costs most milliseconds; 'none' where no row is.",
    right=_idle_reason,
    wrong={
        "shape": "that is no reason that stands there: copy the text of the column",
        "none": "there are rows that are 'not using': look at the column 'group' again",
        "aten::convolution_backward": "that is the operation: which reason stands beside it?",
        "not using": "that is the group: which reason stands beside it?",
    },
)

EXERCISES = {"12.1": PADDED, "12.2": WORTH_PADDING, "12.3": IDLE_OPERATION}
