"""Does it hold, and where? Invariants and expectations of the labs, and what is concluded from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labkit import source
from labkit.errors import LabError
from labkit.lines import say
from stepbudget.signs import signed


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
        return signed(f"{self.claim}: {found}usually because {self.because}; what that means for you: {so}")


@dataclass(frozen=True)
class Claim:
    """Something that a lab says, and whether it holds for what was found.

    With ``because`` (the usual reason where it does not hold) and ``so`` (what follows for the reader) it is an
    expectation of a machine like the recorded one; without, an invariant.
    """

    text: str
    holds: bool
    found: object = None
    because: str = ""
    so: str = ""


class Note(str):
    """What was found, printed as it is: nothing is concluded from it."""


NO_NUMBER = re.compile(r"\bnan\b")
_differences: list[Difference] = []  # of this notebook, in order


def invariant(claim: str, holds: bool, found: object = None) -> None:
    """What holds on every machine: print ``✓ claim``; raise CheckFailed where it does not hold."""
    if not holds:
        raise CheckFailed(signed(f"does not hold here: {claim}" + (f" (found: {found})" if found is not None else "")))
    say(f"✓ {signed(claim)}")


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
    say(f"[differs here] {difference}")


def conclude(sentence: str) -> None:
    """Print a conclusion that was computed from what was found here, and may be another one on another machine.

    Where a number of it is missing, since nothing of the kind was measured here, that is said instead.
    """
    missing = "Nothing to conclude: this was not measured here."
    say(f"→ {missing if NO_NUMBER.search(sentence) else signed(sentence)}")


def check(found: Iterable[Claim | str]) -> None:
    """Print what a check of a lab found, a line each: claims as ``expect`` and ``invariant`` do, conclusions, notes."""
    for one in found:
        if isinstance(one, Note):
            say(signed(one))
        elif isinstance(one, str):
            conclude(one)
        elif one.because:
            expect(one.text, one.holds, one.found, because=one.because, so=one.so)
        else:
            invariant(one.text, one.holds, one.found)


def begin() -> None:
    """A notebook begins: nothing has differed yet."""
    _differences.clear()


def differences() -> list[Difference]:
    """What the recorded machine does and this one does not, of all that this notebook expected."""
    return list(_differences)


def finish() -> None:
    """At a lab's end: what was expected and differed here, a line each."""
    if not _differences:
        say("→ Everything this lab expects held here.")
    for difference in _differences:
        say(f"→ [differs here] {difference}")


def _shown(found: object) -> str:
    if isinstance(found, Mapping):
        return ", ".join(f"{name}: {_shown(one)}" for name, one in found.items())
    if isinstance(found, list | tuple):
        return ", ".join(map(_shown, found))
    text = f"{found:.3g}" if isinstance(found, float) else str(found)
    return "no number" if NO_NUMBER.search(text) else text
