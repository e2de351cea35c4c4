"""The exercises of lab 12: a padded size, what padding gains, and which product an odd size slows down most."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import shown
from labkit.topics.shapes.readings import half_type

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
        if isinstance(found, bool) or not isinstance(found, Integral):
            return f"padded({size}, {name}) is {shown(found)}, not a whole number"
        if found < size:
            return f"padded({size}, {name}) is {found}: smaller than what has to fit"
        if found % numbers:
            return f"padded({size}, {name}) is {found}: {found * dtype.itemsize} bytes are no multiple of {BYTES}"
        if found - size == numbers:
            return f"padded({size}, {name}) is {found}: {size} fits already, and needs no padding"
        if found - size > numbers:
            what = f"padded({size}, {name}) is {shown(int(found))}"
            return f"{what}: a smaller one would do, {numbers} numbers are {BYTES} bytes"
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


def _slowed_most(linear: pd.DataFrame) -> str:
    """The product whose time grows by most microseconds; its columns are ``product``, then 127 and 128 units."""
    grown = (linear.iloc[:, 1] - linear.iloc[:, 2]).astype(float)
    return "none" if linear.empty else str(linear.loc[grown.idxmax(), "product"])


SLOWED_MOST = Choice(
    READ,
    "Take the column of 128 units from that of 127, row by row; 'none' where the table has no rows.",
    right=_slowed_most,
    wrong={
        "fc2 weight gradient": "that one grows by the largest factor, of a short time: microseconds are asked for",
        "fc1 input gradient": "that is the second: take the difference of each row, not the time alone",
        "fc1 weight gradient": "it is near the others as a factor: take the difference in microseconds",
        "fc1": "that is the layer: it has three products, copy the words of the column",
    },
)

EXERCISES = {"12.1": PADDED, "12.2": WORTH_PADDING, "12.3": SLOWED_MOST}
