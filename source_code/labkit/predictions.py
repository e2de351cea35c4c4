"""What did the reader predict, how far off was it, and is she getting better? Her own ledger, over all labs.

It lies in ``reports/predictions.jsonl``, which git ignores: a JSON object a line, so that two notebooks can add to it
at once, and so that a line that breaks off costs no other. Only the first prediction of a thing is kept: who has seen
its score predicts no more. ``LAB_PREDICTIONS=off`` keeps and shows none.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit import course, paths
from labkit.lines import say
from labkit.numbers import NotANumber, number, shown
from stepbudget.signs import signed

FILE = "predictions.jsonl"
FEW = 6  # predictions, with fewer of which no trend is read
RIGHT = 1.25  # a factor by which one may be off and still be right
ALIKE = 0.03  # a mistake so near to the answer is not told apart from it
RATIOS = ("×", "times")  # "as fast as before": what counts is how far it lies from 1
LONGEST = 80  # characters of what was predicted
ASKED = "no prediction made (next time, write one into its cell first: a miss teaches, too)"


@dataclass(frozen=True)
class Prediction:
    """Of what, in which lab; what was said before, and what was measured: two numbers in ``unit``, or two words."""

    lab: int
    of: str
    predicted: float | str
    measured: float | str
    unit: str = ""

    @property
    def off(self) -> float | None:
        """By what factor it is off, at least 1; None for a word, and where no factor leads from one to the other."""
        if isinstance(self.predicted, str) or isinstance(self.measured, str):
            return None
        if not (0 < self.predicted < math.inf and 0 < self.measured < math.inf):
            return None
        return max(self.predicted / self.measured, self.measured / self.predicted)

    @property
    def is_right(self) -> bool:
        """The word itself, or a number within a factor of ``RIGHT``; of a ratio, what it gains or loses (or a 20th)."""
        if self.off is not None and self.unit.strip() in RATIOS:
            return abs(self.predicted - self.measured) <= max(0.05, (RIGHT - 1) * abs(self.measured - 1))
        if self.off is not None:
            return self.off <= RIGHT
        return str(self.predicted).casefold() == str(self.measured).casefold()

    def score(self) -> str:
        """``over by a factor of 1.85``"""
        if self.off is None:
            return "right" if self.is_right else "not so"
        return f"{'over' if self.predicted > self.measured else 'under'} by a factor of {self.off:.2f}"

    def __str__(self) -> str:
        return f"{self.of}: you predicted {_said(self.predicted, self.unit)}; answer: " + (
            f"{_said(self.measured, self.unit)} – {self.score()}"
        )


@dataclass(frozen=True)
class Guess:
    """What a lab asks its reader to predict: of what, in which unit, and how the answer is read from the context.

    ``wrong``: what a wrong guess left out → the number that it leads to, from the same context.
    """

    of: str
    unit: str
    measured: Callable[..., float | str | tuple[float, float]]
    wrong: Mapping[str, Callable[..., float]] = field(default_factory=dict)

    def why(self, said: float, *context: object) -> str:
        """What a guess left out that lies nearest to a usual mistake, and nearer than to the answer; or nothing."""
        right, off = self.measured(*context), {}
        if isinstance(right, str):
            return ""
        edges = right if isinstance(right, tuple) else (right,)
        for words, mistake in self.wrong.items():
            with suppress(ZeroDivisionError):
                value = float(mistake(*context))
                if not any(math.isclose(value, edge, rel_tol=ALIKE) for edge in edges):
                    off[words] = abs(value - said)
        nearest = min(off, key=off.__getitem__, default="")
        near = nearest and off[nearest] <= (RIGHT - 1) * abs(said) and off[nearest] < min(abs(e - said) for e in edges)
        return nearest if near else ""


_lab: int | None = None  # the notebook that runs
_asked = False  # was a reader without a prediction asked for one?
_here: dict[str, Prediction] = {}  # of this notebook: the first of each thing
_trouble: list[str] = []  # why they could not be kept, a sentence each


def begin(lab: int | None) -> None:
    """A notebook begins: nothing has been predicted in it yet."""
    global _lab, _asked
    _lab, _asked = lab, False
    _here.clear()
    _trouble.clear()


def predict(guess: Guess, predicted: object, *context: object) -> None:
    """Print the reader's prediction beside what was measured and, where it is a usual mistake, what it left out."""
    compare(predicted, guess.measured(*context), guess.unit, guess.of)
    with suppress(NotANumber, TypeError):
        made = None if predicted is None else number(predicted)
        if made is not None and (why := guess.why(made, *context)):
            say(f"{_said(made, guess.unit)}? {why}")


def compare(predicted: object, measured: float | str | tuple[float, float], unit: str = "", of: str = "") -> None:
    """Print the reader's prediction beside what was measured, and keep it in her ledger as that ``of`` something.

    ``None`` means that none was made; what is no number where one is wanted is told so. Nothing raises. The first line
    holds no answer, since it is what JupyterLab shows of an output that is folded. Two numbers are bounds, the lower
    one first: between them a prediction is right, outside it is compared with the nearer one.
    """
    global _asked
    if of:
        say(f"Prediction: {of}")
    words = isinstance(measured, str)
    bounds = measured if isinstance(measured, tuple) else (measured, measured)
    nothing = not words and any(map(math.isnan, bounds))
    least, most = (_said(one, unit) for one in bounds)
    between = f"between {least} and {most}" if isinstance(measured, tuple) else least
    answer = "not measured here" if nothing else f"answer: {between}"
    if predicted is None:
        say(f"{'no prediction made' if _asked else ASKED}; {answer}")
        _asked = True
        return
    try:
        made = _word(predicted) if words else number(predicted)
    except NotANumber as wrong:
        say(f"{wrong}; {answer}")
        return
    if nothing:
        say(f"you predicted {_said(made, unit)}; {answer}")
        return
    if not words:
        measured = float(min(max(made, bounds[0]), bounds[1]))
    now = Prediction(_lab or 0, of, made, measured, unit)
    first = _keep(now) if of and made != math.inf != measured else now
    again = "" if first.predicted == made else f" (your first, {_said(first.predicted, unit)}, is the one that counts)"
    score = "right, between the bounds" if bounds[0] != bounds[1] and made == measured else now.score()
    say(f"you predicted {_said(made, unit)}; {answer} – {score}{again}")


def finish() -> None:
    """At a lab's end, for a reader who predicted something in it: how far off, and over all labs, better or not."""
    if not _here or not is_kept():
        return
    everything, trouble = everything_kept()
    say("→ Your predictions in this lab:")
    for one in _here.values():
        say(f"→ {one}")
    if _lab in {course.part(part)[-1].number for part in course.PARTS}:
        for line in by_lab(everything):
            say(f"→ {line}")
    say(f"→ {trend(everything)}")
    for sentence in [*_trouble, *trouble]:
        say(f"→ {sentence}")


def is_kept() -> bool:
    """Is there to be a ledger? Not where pages are made or tested."""
    return os.environ.get("LAB_PREDICTIONS", "").strip().lower() != "off"


def file() -> Path:
    return paths.REPORTS / FILE


def everything_kept() -> tuple[list[Prediction], list[str]]:
    """The first prediction of each thing, in the order in which they were made, and what is wrong with the file."""
    kept, lines, trouble = {}, [], []
    where = file()
    try:
        if where.exists() and not where.is_file():
            trouble.append(f"{shown_path(where)} is not a file, so no earlier predictions are read.")
        elif where.exists():
            lines = [line for line in where.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    except OSError as error:
        trouble.append(f"{shown_path(where)} cannot be read ({error.strerror}): these are this lab's alone.")
    damaged = 0
    for line in lines:
        if (one := _parsed(line)) is None:
            damaged += 1
        else:
            kept.setdefault((one.lab, one.of), one)
    if damaged:
        what = f"{damaged} line{'' if damaged == 1 else 's'} of {shown_path(where)}"
        trouble.append(f"{what} cannot be read and stay out; delete the file to begin anew.")
    for one in _here.values():
        kept.setdefault((one.lab, one.of), one)
    return list(kept.values()), trouble


def by_lab(predictions: Sequence[Prediction]) -> list[str]:
    """A line a lab: how many predictions, how many right, off by what factor."""
    lines = []
    for lab in sorted({one.lab for one in predictions}):
        own = [one for one in predictions if one.lab == lab]
        right = sum(one.is_right for one in own)
        off = [one.off for one in own if one.off is not None]
        factor = f", off by a factor of {statistics.median(off):.2f} (median)" if off else ""
        lines.append(f"lab {lab}: {right} of {len(own)} right{factor}")
    return lines


def trend(predictions: Sequence[Prediction]) -> str:
    """In one sentence: are the later predictions closer than the earlier ones? By medians, of at least ``FEW``.

    Ratios are left out: most lie near 1, and the later labs ask for more of them.
    """
    off = [one.off for one in predictions if one.off is not None and one.unit.strip() not in RATIOS]
    right = sum(one.is_right for one in predictions)
    count = f"{len(predictions)} prediction{'' if len(predictions) == 1 else 's'}"
    so_far = f"Over all labs: {count}, {right} of them right (within {100 * (RIGHT - 1):.0f} %, or the right word)"
    if len(off) < FEW:
        return f"{so_far}. From {FEW} numbers on, this line says whether you are getting better."
    half = len(off) // 2
    early, late = statistics.median(off[:half]), statistics.median(off[-half:])
    verdict = "no better yet" if late > 0.95 * early else "you are getting better"
    if late > early / 0.95:
        verdict = "further off than before: the later labs are harder, or you dare more"
    return (
        f"{so_far}. Off by a factor of {early:.2f} in the first {half}, {late:.2f} in the "
        f"last {half} (medians): {verdict}."
    )


def shown_path(path: Path) -> str:
    return path.relative_to(paths.ROOT).as_posix() if path.is_relative_to(paths.ROOT) else path.name


def _keep(now: Prediction) -> Prediction:
    """Keep it, unless the same thing was predicted before; the one that counts."""
    if not is_kept():
        return now
    before = {(one.lab, one.of): one for one in everything_kept()[0]}
    first = before.get((now.lab, now.of))
    if first is None:
        first = now
        _append(now)
    _here.setdefault(now.of, first)
    return first


def _append(one: Prediction) -> None:
    """One write at the file's end, whole or not at all as far as a reader can see; a sentence where it fails."""
    where = file()
    try:
        if where.exists() and not where.is_file():
            raise OSError(0, "it is not a file")
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.open("ab") as end:  # it begins a line of its own, too: the one before may be broken off
            end.write(b"\n" + json.dumps(asdict(one)).encode() + b"\n")
    except OSError as error:
        _trouble[:] = [f"{shown_path(where)} cannot be written ({error.strerror}): your predictions are not kept."]


def _parsed(line: str) -> Prediction | None:
    """A line of the file; None where it is none of ours."""
    try:
        found = Prediction(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    numbers = [found.predicted, found.measured]
    words = all(isinstance(one, str) for one in numbers)
    if not words and not all(type(one) in (int, float) and math.isfinite(one) for one in numbers):
        return None
    texts = [found.of, found.unit, *(numbers if words else [])]
    plain = all(isinstance(text, str) and text.isprintable() and len(text) <= LONGEST for text in texts)
    return found if plain and type(found.lab) is int else None


def _word(given: object) -> str:
    if not isinstance(given, str):
        raise NotANumber(f"a word in quotes is wanted here, not {shown(given)}")
    return "".join(filter(str.isprintable, given)).strip()[:LONGEST]


def _said(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    return signed(f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}") + unit
