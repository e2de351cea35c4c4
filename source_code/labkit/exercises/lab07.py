"""The exercises of lab 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from labkit.checks import answer_function, answer_number
from labkit.pretend.graph import CaptureError, captured
from labkit.topics.break_even import cost, epochs_until_even


def _cold_break_even(number: str, answer: float | None, runs: Sequence[dict], cold: dict | None) -> bool:
    if cold is None:
        print(f"exercise {number}: there is no run with a cold cache here, so there is nothing to work out")
        return False
    right = epochs_until_even(cost(runs), cost([cold]))
    hint = "What it takes longer before and beside the epochs, over what it saves in each."
    return answer_number(number, answer, right, hint, within=0.03)  # whole epochs are an answer too


def _clipped_step(number: str, answer: Callable | None) -> bool:
    limit = 1.0

    def trial(clipped_step: Callable) -> str | None:
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(8, generator=generator)
        direction /= direction.norm()
        weight, gradient, rate = torch.ones(8), 10 * direction, torch.tensor(0.5)
        try:
            launch = captured(lambda: clipped_step(weight, gradient, rate, limit))
        except CaptureError:
            return "a capture refuses it: it reads a number off a tensor (item, float, or an if over a tensor)"
        for norm, new_rate, wrong in (
            (10.0, 0.5, "a gradient of norm 10 is not clipped to 1"),
            (
                0.1,
                0.5,
                "right for the gradient of the capture, wrong for a small one: its choice was made once",
            ),
            (0.1, 0.25, "a new learning rate changes nothing: the number was fixed at the capture"),
            (5.0, 0.25, "wrong for another large gradient: its norm was fixed at the capture"),
        ):
            gradient.copy_(norm * direction)
            rate.fill_(new_rate)
            before = weight.clone()
            launch()
            if torch.equal(weight, before):
                return "the weights did not move: a graph has to change them in their place"
            if not torch.allclose(weight, before - new_rate * min(norm, limit) * direction, atol=1e-6):
                return wrong
        return None

    return answer_function(number, answer, trial)


EXERCISES = {"7.1": _cold_break_even, "7.2": _clipped_step}
