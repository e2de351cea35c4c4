"""The exercises of lab 15: the rule of a dynamic scale, the smallest scale that does, and three monitors' logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.exercises.kinds import BOUND, READ, Code, Number, quietly, say
from labkit.numbers import shown

INTERVAL = 3  # good steps in a row after which the scale doubles, in the trial
OVERFLOWS = "0000000000110010001000000001101"  # a digit a step, 1: some gradient is not finite


def _as_grad_scaler(overflows: str, interval: int, scale: float) -> list[float]:
    """The scale after each step, by PyTorch's own scaler on the CPU, whose gradients are set as ``overflows`` says."""
    import torch  # here: the recorded labs need none

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    found = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        weight.grad.fill_(math.inf if overflow == "1" else 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    return found


@quietly
def _try_next_scale(next_scale: Callable) -> str | None:
    for first in (8.0, 0.5):
        wanted = _as_grad_scaler(OVERFLOWS, INTERVAL, first)
        scale, good = first, 0
        for step, (overflow, right) in enumerate(zip(OVERFLOWS, wanted, strict=True)):
            before = scale
            answer = next_scale(scale, good, overflow == "1", INTERVAL)
            if not isinstance(answer, tuple | list) or len(answer) != 2:
                return "return both, the new scale and the number of good steps in a row so far"
            scale, good = answer
            if scale != right:
                last = OVERFLOWS[: step + 1][-2 * INTERVAL - 1 :]
                told = ", ".join("overflow" if one == "1" else "good" for one in last)
                return _why(before, scale, right, OVERFLOWS[: step + 1]) + f" (the last steps: {told})"
    return None


def _why(before: float, scale: float, right: float, steps: str) -> str:
    """What went wrong where the scale should have gone from ``before`` to ``right``."""
    if steps[-1] == "1":
        if scale == before:
            return "a step that overflows must halve the scale" + (", below 1 too" if before <= 1 else "")
        return f"the scale went from {before:g} to {scale:g} at an overflow: halve it"
    if right > before:
        if scale == before:
            return f"after {INTERVAL} good steps in a row the scale must double"
        return f"the scale went from {before:g} to {scale:g} after {INTERVAL} good steps: double it"
    if "1" in steps[-INTERVAL:]:
        return "the good steps are to be counted anew after an overflow: they must be in a row"
    if len(steps) > INTERVAL and scale == 2 * before:
        return "the good steps are to be counted anew after the scale was doubled"
    return f"the scale went from {before:g} to {scale:g} at a good step: it must stay as it is"


def _rule(
    halved: Callable = lambda scale: scale / 2,
    doubled: Callable = lambda scale: 2 * scale,
    after_overflow: Callable = lambda good: 0,
    after_doubling: Callable = lambda good: 0,
    early: int = 0,
    at_good: Callable = lambda scale: scale,
) -> Callable:
    """The rule with all that belongs to it, but for what is said otherwise."""

    def next_scale(scale, good_steps, overflow, interval):
        if overflow:
            return halved(scale), after_overflow(good_steps)
        good_steps += 1
        if good_steps >= interval - early:
            return doubled(scale), after_doubling(good_steps)
        return at_good(scale), good_steps

    return next_scale


NEXT_SCALE = Code(
    "An overflow halves and counts from zero; a good step counts, and at the interval doubles and counts from zero.",
    _try_next_scale,
    wrong={
        "return both, the new scale and the number of good steps": lambda scale, *others: scale / 2,
        "a step that overflows must halve the scale (": _rule(halved=lambda scale: scale),
        "a step that overflows must halve the scale, below 1 too": _rule(halved=lambda scale: max(1.0, scale / 2)),
        "at an overflow: halve it": _rule(halved=lambda scale: 1.0),
        "good steps in a row the scale must double": _rule(doubled=lambda scale: scale),
        "good steps: double it": _rule(doubled=lambda scale: scale + 1),
        "counted anew after an overflow": _rule(after_overflow=lambda good: good),
        "counted anew after the scale was doubled": _rule(after_doubling=lambda good: good),
        "at a good step: it must stay as it is": _rule(early=1),
        "good step: it must stay": _rule(at_good=lambda scale: scale * 1.01),
    },
)


def smallest_scale(histogram: Sequence[float], first: int, keep: float = 0.99) -> float:
    """The smallest power of two at which at least the share ``keep`` of the gradients is no smaller than 2**-24.

    ``histogram``: shares of the gradients in [2**e, 2**(e+1)), e from ``first`` on. 1.0 where no scale is needed.
    """
    return 2.0 ** max(0, -24 - _exponent(histogram, first, keep))


def _exponent(histogram: Sequence[float], first: int, keep: float) -> int:
    """The largest exponent at or above which the share ``keep`` of the gradients lies."""
    total, kept = sum(histogram), 0.0
    for place in reversed(range(len(histogram))):
        kept += histogram[place]
        if kept >= keep * total - 1e-12:
            return first + place
    return first


SMALLEST_SCALE = Number(
    BOUND,
    "Add the shares from the largest exponent downwards until 0.99 of their sum; move that exponent to -24.",
    right=smallest_scale,
    wrong={
        "that is the exponent: the scale is two to that power": lambda h, first: math.log2(smallest_scale(h, first)),
        "that is the exponent, below zero: the scale is a factor": lambda h, first: (
            -math.log2(smallest_scale(h, first))
        ),
        "that is GradScaler's first one: less would do": lambda h, first: 65536.0,
        "that moves them to -14, into the normal numbers: the subnormal ones reach down to -24": lambda h, first: (
            1024 * smallest_scale(h, first)
        ),
        "that saves half of the gradients: 99 % are asked for": lambda h, first: smallest_scale(h, first, 0.5),
    },
)
MANY_SKIPPED = 5  # steps in one window of 10 or 20
MANY_SMALL = 0.5  # of the gradients that are not zero


def diagnosis(windows: Sequence[dict]) -> str:
    """``"overflow"``, ``"underflow"`` or ``"healthy"``: what a monitor's windows say."""
    if any(window["skipped"] >= MANY_SKIPPED for window in windows):
        return "overflow"
    last = windows[-1]
    return "underflow" if last["subnormal_share"] > MANY_SMALL * (1 - last["zero_share"]) else "healthy"


@dataclass(frozen=True)
class Diagnoses:
    """Asks for a list of words, a diagnosis for each log in turn; a wrong one is told by what to look for."""

    hint: str
    wrong: dict[str, str]  # the diagnosis that it should have been → what was overlooked
    kind: str = field(default=READ, init=False)

    def check(self, exercise: str, given: object, *logs: Sequence[dict]) -> bool:
        if given is None:
            return say(exercise, None)
        if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != len(logs):
            return say(exercise, f"name {len(logs)} diagnoses in a list, one for each log")
        for name, word, windows in zip("ABC", given, logs, strict=False):
            right, said = diagnosis(windows), str(word).strip().casefold()
            if said not in self.wrong:
                return say(exercise, f"{shown(word)} is none of the diagnoses: {', '.join(self.wrong)}")
            if said != right:
                return say(exercise, f"look at log {name} again: {self.wrong[right]}")
        return say(exercise, "")

    def usual(self, *logs: Sequence[dict]) -> dict[str, object]:
        """What is said → a list in which one diagnosis is wrong, and answers of another kind."""
        right, found = [diagnosis(windows) for windows in logs], {}
        for place, own in enumerate(right):
            other = next(word for word in self.wrong if word != own)
            found[f"log {'ABC'[place]} again: {self.wrong[own]}"] = [*right[:place], other, *right[place + 1 :]]
        found[f"name {len(logs)} diagnoses in a list"] = right[0]
        return found | {"is none of the diagnoses": ["ill", *right[1:]]}


THREE_LOGS = Diagnoses(
    "Skipped steps tell of overflow; gradients that are zero or subnormal, with nothing skipped, of underflow.",
    wrong={
        "healthy": "is anything lost in large numbers, or skipped again and again?",
        "overflow": "what makes a scale fall again and again?",
        "underflow": "nothing is skipped, and where are the gradients?",
    },
)
EXERCISES = {"15.1": NEXT_SCALE, "15.2": SMALLEST_SCALE, "15.3": THREE_LOGS}
