"""Does it hold, and where? Invariants and expectations of the labs, predictions, and answers to the exercises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from labkit import source
from labkit.display.spread import MEASURED
from labkit.errors import LabError


class CheckFailed(LabError):
    """A claim of the text does not hold for the numbers at hand."""


@dataclass(frozen=True)
class Difference:
    """A claim that holds on the recorded machine and not here: what was found, why as a rule, what follows."""

    claim: str
    found: object
    because: str
    so: str

    def __str__(self) -> str:
        found = "" if self.found is None else f"found {_shown(self.found)}; "
        so = "nothing of it was measured here" if NO_NUMBER.search(self.so) else self.so
        return f"{self.claim}: {found}usually because {self.because}; what that means for you: {so}"


NO_NUMBER = re.compile(r"\bnan\b")
_differences: list[Difference] = []  # of this notebook, in order


def invariant(claim: str, holds: bool, found: object = None) -> None:
    """What holds on every machine: print ``[ok] claim``; raise CheckFailed where it does not hold."""
    if not holds:
        raise CheckFailed(f"does not hold here: {claim}" + (f" (found: {found})" if found is not None else ""))
    print(f"[ok] {claim}")


def expect(claim: str, holds: bool, found: object = None, *, because: str, so: str) -> None:
    """What holds on a machine like the recorded one, and may not hold here.

    On the course's own recordings it is as strict as ``invariant``. Live, or on another machine's recordings, it prints
    ``[differs here]`` with what was ``found``, the usual reason (``because``) and what follows for the reader (``so``),
    and the notebook goes on.
    """
    if holds or source.current().is_strict:
        invariant(claim, holds, found)
        return
    difference = Difference(claim, found, because, so)
    _differences.append(difference)
    print(f"[differs here] {difference}")


def conclude(sentence: str) -> None:
    """Print a conclusion that was computed from what was found here, and may be another one on another machine.

    Where a number of it is missing, since nothing of the kind was measured here, that is said instead.
    """
    print("→ Nothing to conclude: this was not measured here." if NO_NUMBER.search(sentence) else f"→ {sentence}")


def begin() -> None:
    """A notebook begins: nothing has differed yet."""
    _differences.clear()


def differences() -> list[Difference]:
    """What the recorded machine does and this one does not, of all that this notebook expected."""
    return list(_differences)


def finish() -> None:
    """At a lab's end: what was expected and differed here, a line each."""
    if not _differences:
        print("→ What this lab expects of a machine held here.")
    for difference in _differences:
        print(f"→ [differs here] {difference}")


def _shown(found: object) -> str:
    text = f"{MEASURED}{found:.3g}" if isinstance(found, float) else str(found)
    return "no number" if NO_NUMBER.search(text) else text


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
