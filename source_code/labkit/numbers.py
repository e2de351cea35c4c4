"""What counts as a number where the reader is asked for one? Python's, NumPy's, pandas' and PyTorch's; else a word why.

A value that holds a single number counts, whatever its type: ``np.int64(7)``, ``Fraction(3, 2)``, a frame's one cell.
A ``Quantity`` is how such a number is read off what the question is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from operator import add, mul, sub, truediv

from labkit.errors import LabError

LONGEST = 40  # characters of an answer that are shown back


class NotANumber(LabError):
    """What was given is no number; the message says what it is instead."""


def _with(other: object, operate: Callable[[float, float], float], one: Quantity) -> Quantity:
    return Quantity(lambda *about: operate(one(*about), other(*about) if callable(other) else other))


@dataclass(frozen=True)
class Quantity:
    """A number of what a question is about, such as a report: ``read`` gets it from there.

    Arithmetic with numbers, and with quantities of the same thing, gives another quantity: the usual wrong answers to
    a question are 1 / right, right / 100 and the like.
    """

    read: Callable[..., float]

    def __call__(self, *about: object) -> float:
        return self.read(*about)

    def __add__(self, other: object) -> Quantity:
        return _with(other, add, self)

    def __sub__(self, other: object) -> Quantity:
        return _with(other, sub, self)

    def __rsub__(self, other: object) -> Quantity:
        return _with(other, lambda own, whole: whole - own, self)

    def __mul__(self, other: object) -> Quantity:
        return _with(other, mul, self)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Quantity:
        return _with(other, truediv, self)

    def __rtruediv__(self, other: object) -> Quantity:
        return _with(other, lambda own, whole: whole / own, self)


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
