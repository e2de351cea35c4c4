"""The exercises of lab 14: a step with a fixed scale, the smallest scale that does, and three monitors' logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.exercises.kinds import BOUND, READ, Code, Number, say
from labkit.numbers import shown

SCALE = 2.0**10


def _try_fixed_scale_step(step: Callable) -> str | None:
    import torch  # here: the recorded labs need none
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    model.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    data = torch.randn(8, 4)
    expected = nn.Linear(4, 1)
    expected.load_state_dict(model.state_dict())
    expected(data).square().mean().backward()
    step(model, model(data).square().mean(), optimizer, SCALE)
    if not seen:
        return "there is no backward pass"
    if torch.allclose(seen[0], expected.weight.grad / SCALE, rtol=1e-4):
        return "the loss is divided by the factor: multiply it"
    if not torch.allclose(seen[0], SCALE * expected.weight.grad, rtol=1e-4):
        return "the backward pass starts from a loss that is not scaled by the factor given"
    moved = model.weight.detach() - (expected.weight - 0.5 * expected.weight.grad)
    if torch.equal(model.weight, expected.weight):
        return "the weights do not move at all: the optimizer's step is missing"
    if moved.abs().max() > 1e-5:
        return "the weights do not move as they would without scaling: are the gradients divided before the step?"
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    step(model, model(data).square().mean() * math.inf, optimizer, SCALE)
    if not torch.equal(before, model.weight):
        return "a step with gradients that are not finite must be left out"
    optimizer.zero_grad()
    step(model, model(data).square().mean(), optimizer, SCALE)
    if torch.equal(before, model.weight):
        return "after a step that was left out, the next one must be taken again"
    return None


def _fixed_scale(
    scaled: Callable = lambda loss, scale: loss * scale,
    unscaled: Callable = lambda gradient, scale: gradient / scale,
    looks: bool = True,
    steps: bool = True,
) -> Callable:
    """A step with all that belongs to it, but for what is said otherwise."""

    def step(model, loss, optimizer, scale):
        scaled(loss, scale).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        if looks and not all(one.isfinite().all() for one in gradients):
            return
        for one in gradients:
            one.copy_(unscaled(one, scale))
        if steps:
            optimizer.step()

    return step


def _gives_up(model, loss, optimizer, scale):
    """Once a step was left out, none is taken any more."""
    model.gave_up = getattr(model, "gave_up", False) or not loss.isfinite()
    _fixed_scale(steps=not model.gave_up)(model, loss, optimizer, scale)


FIXED_SCALE_STEP = Code(
    "Scale the loss, go backward, divide every gradient by the scale, and step only where all of them are finite.",
    _try_fixed_scale_step,
    wrong={
        "there is no backward pass": lambda model, loss, optimizer, scale: optimizer.step(),
        "the loss is divided by the factor": _fixed_scale(scaled=lambda loss, scale: loss / scale),
        "not scaled by the factor given": _fixed_scale(scaled=lambda loss, scale: loss),
        "are the gradients divided before the step?": _fixed_scale(unscaled=lambda gradient, scale: gradient),
        "must be left out": _fixed_scale(looks=False),
        "the optimizer's step is missing": _fixed_scale(steps=False),
        "the next one must be taken again": _gives_up,
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

EXERCISES = {"14.1": FIXED_SCALE_STEP, "14.2": SMALLEST_SCALE, "14.3": THREE_LOGS}
