"""The exercises of lab 14: a step with a fixed scale, the scale that a mean allows, a layer read off a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, quietly
from labkit.labs.lab14.cubic import FP16_MAX
from labkit.subjects.loss_scaling import FIRST_SCALE

SCALE = 2.0**10
POINTS = 2000  # over which the cubic's loss is a sum


@quietly
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


def largest_scale(first_steps: pd.DataFrame, points: int = POINTS) -> float:
    """The largest power of two by which the *mean* loss may be multiplied: no seed's first gradient overflows FP16.

    ``first_steps``: a row a seed, with ``largest gradient``, that of the loss summed over ``points`` points.
    """
    return 2.0 ** math.floor(math.log2(_room(first_steps, points)))


def _room(first_steps: pd.DataFrame, points: int) -> float:
    """By which factor the largest of all first gradients may grow before FP16 overflows."""
    return FP16_MAX / (first_steps["largest gradient"].max() / points)


LARGEST_SCALE = Number(
    BOUND,
    "Divide the largest gradient of any seed by the number of points; what may it be multiplied by, up to 65,504?",
    right=largest_scale,
    wrong={
        "that is for the sum: the mean's gradients are smaller by the number of points": lambda first: largest_scale(
            first, 1
        ),
        "that is the next power of two: one seed's gradient overflows there": lambda first: 2 * largest_scale(first),
        "that is the factor itself: which power of two is not above it?": lambda first: _room(first, POINTS),
        "that is the exponent: the scale is two to that power": lambda first: math.log2(largest_scale(first)),
        "that is right for the seed with the smallest gradient, and the others overflow": lambda first: largest_scale(
            first.nsmallest(1, "largest gradient")
        ),
        "that is GradScaler's first one: it overflows": lambda first: FIRST_SCALE,
    },
)


def _zeros(rows: Sequence[dict], scale: float) -> dict[str, float]:
    """Layer → share of its gradients that are zero at this scale, after the last epoch."""
    last = max(row["epoch"] for row in rows)
    return {row["layer"]: row["zero_share"] for row in rows if (row["epoch"], row["scale"]) == (last, scale)}


def neediest(rows: Sequence[dict], scale: float = FIRST_SCALE) -> str:
    """The layer at whose output this scale leaves the largest share of the gradients zero, after the last epoch."""
    shares = _zeros(rows, scale)
    return max(shares, key=shares.__getitem__)


NOT_THE_HIGHEST = "its line for × 65,536 is not the highest at the right end"
NEEDIEST_LAYER = Choice(
    READ,
    "Compare one line from panel to panel, that for × 65,536, at its right end.",
    right=neediest,
    wrong={
        "conv1": f"it loses most without scaling, but here {NOT_THE_HIGHEST}",
        "conv2": f"look at its panel again: {NOT_THE_HIGHEST}",
        "fc1": f"it loses least of all four: {NOT_THE_HIGHEST}",
        "fc2": f"it is next to the loss, but here {NOT_THE_HIGHEST}",
    },
)
EXERCISES = {"14.1": FIXED_SCALE_STEP, "14.2": LARGEST_SCALE, "14.3": NEEDIEST_LAYER}
