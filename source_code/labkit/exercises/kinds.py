"""What is an exercise? A question with a number, a word or a function for an answer, its hint, and its usual mistakes.

Mistakes are data beside the exercise: what went wrong → the answer that it leads to. So the check can say the word to
whoever gives that answer, and the tests can try each of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps

from labkit import lines
from labkit.numbers import NotANumber, number, shown

READ, BOUND, CODE = "read", "bound", "code"  # a picture, table or log; what is possible, or was; write or mend code
KINDS = (READ, BOUND, CODE)
UNITS = {1e3: "a thousand times", 1e-3: "a thousandth of", 100: "a hundred times", 0.01: "1 % of"}


class NotWanted(Exception):
    """What the reader's function returns is of another kind than what is wanted; the message says so."""


class NothingToAnswer(Exception):
    """What the exercise asks about is not there on this machine; the message says what."""


@dataclass(frozen=True)
class Number:
    """Asks for a number, of what the exercise is about (its context): right to a share ``within``.

    ``wrong``: what went wrong → the number that it gives, from the same context; a context may lack what it needs.
    """

    kind: str
    hint: str
    right: Callable[..., float]
    wrong: Mapping[str, Callable[..., float]]
    within: float = 0.02

    def check(self, exercise: str, given: object, *context: object) -> bool:
        """Print one line; the answer itself is never printed."""
        try:
            right = self.right(*context)
        except NothingToAnswer as why:
            lines.say(f"exercise {exercise}: {why}, so there is nothing to work out")
            return False
        if given is None:
            return say(exercise, None)
        try:
            said = number(given)
        except NotANumber as wrong:
            return say(exercise, str(wrong))
        return say(exercise, "" if self._same(said, right) else self._word(said, right, context))

    def usual(self, *context: object) -> dict[str, float]:
        """What went wrong → the number, for this context; without those that are right here, or that do not exist."""
        right, found = self.right(*context), {}
        for why, answer in self.wrong.items():
            with suppress(ZeroDivisionError):
                value = float(answer(*context))
                if math.isfinite(value) and not self._same(value, right):
                    found[why] = value
        return found

    def _same(self, said: float, right: float) -> bool:
        return math.isclose(said, right, rel_tol=self.within, abs_tol=0.0 if right else 1e-12)

    def _word(self, said: float, right: float, context: tuple) -> str:
        near = {why: abs(value - said) for why, value in self.usual(*context).items() if self._same(said, value)}
        if near:
            return min(near, key=near.__getitem__)
        for factor, what in UNITS.items():
            if self._same(said, right * factor):
                return f"{said:g} is {what} the answer: look at the units"
        return f"{said:g} is too {'large' if said > right else 'small'}. {self.hint}"


@dataclass(frozen=True)
class Choice:
    """Asks for a word, whatever its case, with blanks, hyphens or underscores.

    ``right``: the word, or several, of what the exercise is about.

    ``wrong``: a word → what went wrong with it, where it is not right.
    """

    kind: str
    hint: str
    right: Callable[..., str | Collection[str]]
    wrong: Mapping[str, str]

    def check(self, exercise: str, given: object, *context: object) -> bool:
        if given is None:
            return say(exercise, None)
        if not isinstance(given, str):
            return say(exercise, f"a word in quotes is wanted, not {shown(given)}")
        same = _plain(given)
        if same in self._right(*context):
            return say(exercise, "")
        why = {_plain(word): why for word, why in self.wrong.items()}
        return say(exercise, why.get(same) or f"{shown(given)} is not it. {self.hint}")

    def usual(self, *context: object) -> dict[str, str]:
        """What went wrong → the word, for this context."""
        return {why: word for word, why in self.wrong.items() if _plain(word) not in self._right(*context)}

    def _right(self, *context: object) -> set[str]:
        right = self.right(*context)
        return {_plain(word) for word in ([right] if isinstance(right, str) else right)}


@dataclass(frozen=True)
class Code:
    """Asks for a function, which ``trial`` runs: it returns what is wrong, or None.

    ``wrong``: what the trial says → a function that it says it of.
    """

    hint: str
    trial: Callable[[Callable], str | None]
    wrong: Mapping[str, Callable]
    kind: str = field(default=CODE, init=False)

    def check(self, exercise: str, given: object, *context: object) -> bool:
        if given is None:
            return say(exercise, None)
        if not callable(given):
            return say(exercise, f"the function itself is wanted, not {shown(given)}")
        try:
            return say(exercise, self.trial(given) or "")
        except NotImplementedError as error:  # what an exercise raises says nothing; PyTorch's says what it lacks
            return say(exercise, f"it raises NotImplementedError: {error}" if str(error) else None)
        except (NotWanted, NotANumber) as wrong:
            return say(exercise, str(wrong))
        except ModuleNotFoundError as error:
            return say(exercise, f"to try it takes {error.name}, which is not installed here: `make lab` installs it")
        except Exception as error:
            return say(exercise, f"it raises {type(error).__name__}: {error}")

    def usual(self, *context: object) -> dict[str, Callable]:
        return dict(self.wrong)


Exercise = Number | Choice | Code


def each_of(given: object, wanted: str) -> list:
    """What the reader's function returned, part by part; NotWanted, with what is ``wanted``, where it has none."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise NotWanted(f"{wanted} wanted, not {shown(given)}")
    return list(given)


def quietly(trial: Callable) -> Callable:
    """The trial without PyTorch's warnings about a GPU that is not there, or has too old a driver."""

    @wraps(trial)
    def quiet(given: Callable) -> str | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return trial(given)

    return quiet


def say(exercise: str, wrong: str | None) -> bool:
    """Print one line: ``wrong`` with it, right where that is empty, or not answered yet (None); True if it is right."""
    if wrong is None:
        lines.say(f'exercise {exercise}: no answer yet (answer "hint" for a hint)')
    elif wrong:
        lines.say(f"exercise {exercise}: not yet – {wrong}")
    else:
        lines.say(f"✓ exercise {exercise}")
    return wrong == ""


def _plain(word: str) -> str:
    return word.strip().casefold().replace(" ", "_").replace("-", "_")
