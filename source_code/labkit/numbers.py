"""What counts as a number where the reader is asked for one? Python's, NumPy's, pandas' and PyTorch's; else a word why.

A value that holds a single number counts, whatever its type: ``np.int64(7)``, ``Fraction(3, 2)``, a frame's one cell.
"""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real

from labkit.errors import LabError

LONGEST = 40  # characters of an answer that are shown back


class NotANumber(LabError):
    """What was given is no number; the message says what it is instead."""


def number(given: object) -> float:
    """``given`` as a float, infinities included; NotANumber where it is none, or more than one."""
    if isinstance(given, str | bytes):
        raise NotANumber(f"{shown(given)} is text: write the number alone, without quotes and without its unit")
    if callable(given):
        raise NotANumber("this is a function, not the number that it returns: call it")
    if isinstance(given, list | tuple | set | dict):
        raise NotANumber(f"{shown(given)} is not one number")
    value = given
    if not isinstance(given, Real) and hasattr(given, "item"):  # an array, a Series, a tensor
        with suppress(ValueError, TypeError, RuntimeError):  # it holds more than one
            value = given.item()
    if isinstance(value, bool | str | bytes):
        raise NotANumber(f"{shown(value)} is not a number")
    try:
        found = float(value)
    except OverflowError:
        raise NotANumber("this number is larger than any measured one can be") from None
    except (TypeError, ValueError):
        raise NotANumber(f"{shown(given)} is not one number") from None
    if math.isnan(found):
        raise NotANumber("nan is not a number: something that it was worked out from is missing")
    return found


def shown(given: object) -> str:
    """What the reader gave, named in a sentence: short text as it is, all else by its type."""
    if isinstance(given, str | bytes | int | float):
        try:
            text = repr(given)
        except ValueError:  # an integer of thousands of digits
            text = ""
        if 0 < len(text) <= LONGEST:
            return text
    return f"something of type {type(given).__name__}"
