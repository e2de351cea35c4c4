"""The exercises of lab 7: when a compiler has paid for itself, a step that a graph can hold, and the lowest line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.topics.break_even import Cost, cost, epochs_until_even


def _lines(runs: Sequence[dict], cold: dict | None) -> tuple[Cost, Cost]:
    if cold is None:
        raise NothingToAnswer("there is no run with a cold cache here")
    return cost(runs), cost([cold])


def _ahead_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return compiled.fixed_s - plain.fixed_s


def _gained_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return plain.epoch_s - compiled.epoch_s


COLD_BREAK_EVEN = Number(
    BOUND,
    "What it takes longer before and beside the epochs, over what it saves in each.",
    right=lambda runs, cold: epochs_until_even(*_lines(runs, cold)),
    wrong={
        "the whole processes differ by their epochs, too: compare what they cost without any": lambda runs, cold: (
            (_ahead_s(runs, cold) - 10 * _gained_s(runs, cold)) / _gained_s(runs, cold)
        ),
        "that is over what a compiled epoch takes, not over what it saves": lambda runs, cold: (
            _ahead_s(runs, cold) / cost([cold]).epoch_s
        ),
        "that is over what an epoch took before, not over what it saves": lambda runs, cold: (
            _ahead_s(runs, cold) / cost(runs).epoch_s
        ),
        "those are the seconds that it begins later: how many epochs make up for them?": _ahead_s,
    },
    within=0.03,  # whole epochs are an answer too
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

MANY_EPOCHS = 200


def _lowest(costs: Mapping[str, Cost]) -> str:
    return min(costs, key=lambda name: costs[name].fixed_s + MANY_EPOCHS * costs[name].epoch_s)


LOWEST_LINE = Choice(
    READ,
    f"Go up from {MANY_EPOCHS} on the lower axis: which line do you meet first?",
    right=_lowest,
    wrong={
        "opt4: data on the GPU": "it begins low and rises the most: at 200 epochs another line lies below it",
        "opt5: one launch": "it begins low, and pays for each epoch: at 200 another line lies below it",
        "opt6: compiled": "its epochs are short, and its start is not paid for yet at 200",
        "opt6, cache cold": "its start is not paid for yet at 200: another line still lies below it",
    },
)

EXERCISES = {"7.1": COLD_BREAK_EVEN, "7.2": CLIPPED_STEP, "7.3": LOWEST_LINE}
