"""The exercises of lab 11."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labkit.checks import answer_choice, answer_function, answer_number

SCALE = 2.0**10


def _fixed_scale_step(number: str, answer: Callable | None) -> bool:
    def trial(step: Callable) -> str | None:
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
        if not torch.allclose(seen[0], SCALE * expected.weight.grad, rtol=1e-4):
            return "the backward pass starts from a loss that is not scaled by the factor given"
        moved = model.weight.detach() - (expected.weight - 0.5 * expected.weight.grad)
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

    return answer_function(number, answer, trial)


def smallest_scale(histogram: Sequence[float], first: int, keep: float = 0.99) -> float:
    """The smallest power of two at which at least the share ``keep`` of the gradients is no smaller than 2**-24.

    ``histogram``: shares of the gradients in [2**e, 2**(e+1)), e from ``first`` on. 1.0 where no scale is needed.
    """
    total, kept = sum(histogram), 0.0
    for place in reversed(range(len(histogram))):
        kept += histogram[place]
        if kept >= keep * total - 1e-12:
            return 2.0 ** max(0, -24 - (first + place))
    return 1.0


def _smallest_scale(number: str, answer: float | None, histogram: Sequence[float], first: int) -> bool:
    if isinstance(answer, int | float) and not isinstance(answer, bool) and answer < 0:
        return answer_number(number, answer, 1.0, "It is a factor, not an exponent.")
    hint = "Add the shares from the largest exponent downwards until 0.99 of their sum; move that exponent to -24."
    return answer_number(number, answer, smallest_scale(histogram, first), hint)


MANY_SKIPPED = 5  # steps in one window of 10 or 20
MANY_SMALL = 0.5  # of the gradients that are not zero


def diagnosis(windows: Sequence[dict]) -> str:
    """``"overflow"``, ``"underflow"`` or ``"healthy"``: what a monitor's windows say."""
    if any(window["skipped"] >= MANY_SKIPPED for window in windows):
        return "overflow"
    last = windows[-1]
    return "underflow" if last["subnormal_share"] > MANY_SMALL * (1 - last["zero_share"]) else "healthy"


HINTS = {
    "healthy": "is anything lost in large numbers, or skipped again and again?",
    "overflow": "what makes a scale fall again and again?",
    "underflow": "nothing is skipped, and where are the gradients?",
}


def _three_logs(number: str, answer: Sequence[str] | None, *logs: Sequence[dict]) -> bool:
    """``answer``: a diagnosis for each log in turn."""
    if answer is None:
        return answer_choice(number, None, "", "")
    if isinstance(answer, str) or len(answer) != len(logs):
        return answer_choice(number, str(answer), "a list", f"Name {len(logs)} diagnoses in a list, one for each log.")
    for name, given, windows in zip("ABC", answer, logs, strict=False):
        right = diagnosis(windows)
        if str(given).strip().casefold() != right:
            return answer_choice(number, str(given), right, f"Look at log {name} again: {HINTS[right]}")
    return answer_choice(number, "right", "right", "")


EXERCISES = {"11.1": _fixed_scale_step, "11.2": _smallest_scale, "11.3": _three_logs}
