"""The exercises of lab 7: a bound for kernels of any speed, a step that a graph can hold, what holds up a launch."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from stepbudget.ask.budget import CAUSES, IDLE, budget
from stepbudget.report import Report

FULL, FEW = 1024, 16  # digits a step in bench_launches.py: ours, and next to no work for the GPU


def _ms(ways: pd.DataFrame, how: str, batch: int) -> float:
    return float(ways.set_index("batch")[how][batch])


LAUNCHES_BOUND = Number(
    BOUND,
    "The epoch, over what is left of it when the GPU has next to nothing to do and each kernel is still launched.",
    right=lambda ways: _ms(ways, "one by one", FULL) / _ms(ways, "one by one", FEW),
    wrong={
        "that is what the graph gains, with the kernels as they are": lambda ways: (
            _ms(ways, "one by one", FULL) / _ms(ways, "graph", FULL)
        ),
        "that has no launches either: each kernel is still launched by itself": lambda ways: (
            _ms(ways, "one by one", FULL) / _ms(ways, "graph", FEW)
        ),
        "that is what a graph gains where the GPU has next to nothing to do": lambda ways: (
            _ms(ways, "one by one", FEW) / _ms(ways, "graph", FEW)
        ),
        "that is the share that is left: how many times as fast is the epoch then?": lambda ways: (
            _ms(ways, "one by one", FEW) / _ms(ways, "one by one", FULL)
        ),
        "those are milliseconds: how many times as fast?": lambda ways: _ms(ways, "one by one", FEW),
    },
)

LIMIT = 1.0


def _try_clipped_step(clipped_step: Callable) -> str | None:
    import torch  # here: the recorded labs need none

    from labkit.pretend.graph import CaptureError, captured

    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(8, generator=generator)
    direction /= direction.norm()
    weight, gradient, rate = torch.ones(8), 10 * direction, torch.tensor(0.5)
    try:
        launch = captured(lambda: clipped_step(weight, gradient, rate, LIMIT))
    except CaptureError:
        return "a capture refuses it: it reads a number off a tensor (item, float, or an if over a tensor)"
    for norm, new_rate, wrong in (
        (10.0, 0.5, "a gradient of norm 10 is not clipped to 1"),
        (0.1, 0.5, "right for the gradient of the capture, wrong for a small one: its choice was made once"),
        (0.1, 0.25, "a new learning rate changes nothing: the number was fixed at the capture"),
        (5.0, 0.25, "wrong for another large gradient: its norm was fixed at the capture"),
    ):
        gradient.copy_(norm * direction)
        rate.fill_(new_rate)
        before = weight.clone()
        launch()
        if torch.equal(weight, before):
            return "the weights did not move: a graph has to change them in their place"
        if not torch.allclose(gradient, norm * direction):
            return "it changes the gradient itself: whoever reads it after the step finds another"
        if not torch.allclose(weight, before - new_rate * min(norm, LIMIT) * direction, atol=1e-6):
            return wrong
    return None


def _reads_a_number(weight, gradient, rate, limit):
    weight.sub_(rate * min(1.0, limit / gradient.norm().item()) * gradient)


def _always_clipped(weight, gradient, rate, limit):
    weight.sub_(rate * limit / gradient.norm() * gradient)


def _never_clipped(weight, gradient, rate, limit):
    weight.sub_(rate * gradient)


def _fixed_rate(weight, gradient, rate, limit):
    weight.sub_(0.5 * (limit / gradient.norm()).clamp(max=1.0) * gradient)


def _fixed_norm(weight, gradient, rate, limit):
    weight.sub_(rate * gradient * (limit / (gradient.norm() * 0 + 10)) ** (gradient.norm() > limit))


def _another_weight(weight, gradient, rate, limit):
    weight = weight - rate * (limit / gradient.norm()).clamp(max=1.0) * gradient


def _gradient_in_place(weight, gradient, rate, limit):
    gradient.mul_((limit / gradient.norm()).clamp(max=1.0))
    weight.sub_(rate * gradient)


CLIPPED_STEP = Code(
    "A factor that is 1 for small gradients: limit / norm, clamped to at most 1, and all of it stays a tensor.",
    _try_clipped_step,
    wrong={
        "a capture refuses it": _reads_a_number,
        "its choice was made once": _always_clipped,
        "is not clipped to 1": _never_clipped,
        "a new learning rate changes nothing": _fixed_rate,
        "its norm was fixed at the capture": _fixed_norm,
        "in their place": _another_weight,
        "it changes the gradient itself": _gradient_in_place,
    },
)


def _longest_idle(report: Report) -> str:
    found = budget(report)
    return CAUSES[max(IDLE, key=lambda cause: found.ms[cause])]


HELD_UP = Choice(
    READ,
    "Leave out what is work, kernels and copies. Of the other parts of opt4's bar, which is the longest?",
    right=_longest_idle,
    wrong={
        CAUSES["launch_overhead"]: "that is the calls themselves: what comes before each call takes longer",
        CAUSES["other_kernels"]: "that is work: while these kernels run, the GPU does not stand still",
        CAUSES["tensor_core_kernels"]: "that is work too, the kernels that use Tensor Cores",
        CAUSES["optimizer"]: "the optimizer is one phase of several: what all of them have in common takes longer",
        CAUSES["loader"]: "there is no loader in this step: the digits lie on the GPU",
    },
)

EXERCISES = {"7.1": LAUNCHES_BOUND, "7.2": CLIPPED_STEP, "7.3": HELD_UP}
