"""Does it hold? The ``[ok]`` lines of the labs, the reader's predictions, and the answers to the exercises."""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.errors import LabError
from labkit.timing import MEASURED


class CheckFailed(LabError):
    """A claim of the text does not hold for the numbers at hand."""


def check(claim: str, holds: bool, found: object = None) -> None:
    """Print ``[ok] claim``; raise CheckFailed, saying what was found instead, where it does not hold."""
    if not holds:
        raise CheckFailed(f"does not hold here: {claim}" + (f" (found: {found})" if found is not None else ""))
    print(f"[ok] {claim}")


def compare_prediction(predicted: float | str | None, measured: float | str, unit: str = "") -> None:
    """Print the reader's prediction beside what was measured; ``None`` means that none was made."""
    if isinstance(measured, str):
        said = "no prediction made" if predicted is None else f"you predicted {predicted!r}"
        right = "" if predicted is None else (" – right" if predicted == measured else " – not so")
        print(f"{said}; measured: {MEASURED}{measured}{right}")
        return
    if predicted is not None and not isinstance(predicted, (int, float)):
        raise CheckFailed(f"a prediction here is a number, not {predicted!r}.")
    said = "no prediction made" if predicted is None else f"you predicted {predicted:g}{unit}"
    off = ""
    if isinstance(predicted, (int, float)) and predicted > 0 and measured > 0:
        ratio = predicted / measured
        off = f" – {'over' if ratio > 1 else 'under'} by a factor of {MEASURED}{max(ratio, 1 / ratio):.2f}"
    print(f"{said}; measured: {MEASURED}{measured:.3g}{unit}{off}")


def answer_number(exercise: str, given: float | None, right: float, hint: str, within: float = 0.02) -> bool:
    """Check a number of the reader's, to a share ``within`` of the right one; the answer itself is never printed."""
    if given is None:
        return _say(exercise, None, "")
    if not isinstance(given, (int, float)) or isinstance(given, bool) or math.isnan(given):
        return _say(exercise, False, f"{given!r} is not a number")
    if math.isclose(given, right, rel_tol=within, abs_tol=1e-12):
        return _say(exercise, True, "")
    for factor, what in (
        (1e3, "a thousand times"),
        (1e-3, "a thousandth of"),
        (100, "a hundred times"),
        (0.01, "1 % of"),
    ):
        if math.isclose(given, right * factor, rel_tol=within):
            return _say(exercise, False, f"{given:g} is {what} the answer: look at the units")
    return _say(exercise, False, f"{given:g} is too {'large' if given > right else 'small'}. {hint}")


def answer_choice(exercise: str, given: str | None, right: str, hint: str) -> bool:
    """Check a word of the reader's, whatever its case."""
    if given is None:
        return _say(exercise, None, "")
    same = str(given).strip().casefold() == right.casefold()
    return _say(exercise, same, "" if same else f"{given!r} is not it. {hint}")


def answer_function(exercise: str, given: Callable | None, trial: Callable[[Callable], str | None]) -> bool:
    """Check a function of the reader's by trying it: ``trial`` returns what is wrong, or None."""
    if given is None:
        return _say(exercise, None, "")
    try:
        wrong = trial(given)
    except NotImplementedError:
        return _say(exercise, None, "")
    except Exception as error:
        wrong = f"it raises {type(error).__name__}: {error}"
    return _say(exercise, wrong is None, wrong or "")


def _say(exercise: str, right: bool | None, wrong: str) -> bool:
    if right is None:
        print(f"exercise {exercise}: no answer yet")
    elif right:
        print(f"[ok] exercise {exercise}")
    else:
        print(f"exercise {exercise}: not yet – {wrong}")
    return bool(right)
