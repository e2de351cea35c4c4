"""The exercises of lab 11: the first run on a new machine, what the last factor is worth, a gradient by hand."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, quietly
from labkit.numbers import shown


def _first_times(entries: pd.DataFrame) -> set[str]:
    """The rung of the shortest first process, and those whose own runs reach as low: nothing tells these apart."""
    cold = entries["cold_s"].astype(float)
    best = cold.fillna(entries["process_s"]).idxmin()
    reaches = cold.fillna(entries["process_high_s"])[best]
    return {entries.loc[best, "step"], *entries.loc[cold.fillna(entries["process_low_s"]) <= reaches, "step"]}


FIRST_TIME = Choice(
    READ,
    "Take the cold process where there is one, else the usual one, and compare the seconds.",
    right=_first_times,
    wrong={
        "main_opt7.py": "its kernels are compiled in the first process: look at its cold seconds",
        "main_opt6.py": "it is compiled in the first process: look at its cold seconds",
        "main_baseline.py": "nothing is compiled, and it takes the longest all the same: compare the seconds",
        "main_opt3.py": "nothing is compiled, but the loader is still there: a later rung has none",
    },
)


def _at_the_floor(entries: pd.DataFrame, floor_s: float) -> tuple[float, float]:
    """Seconds of the last rung's process, and what would be left of them with its loop at the floor."""
    last = entries.iloc[-1]
    return float(last["process_s"]), float(last["process_s"] - (last["training_s"] - floor_s))


AT_THE_FLOOR = Number(
    BOUND,
    "The process less what the loop saves; the rest stays as it is.",
    right=lambda entries, floor_s: _at_the_floor(entries, floor_s)[0] / _at_the_floor(entries, floor_s)[1],
    wrong={
        "that is how many times as fast the loop becomes: the process holds more than the loop": lambda e, floor_s: (
            e.iloc[-1]["training_s"] / floor_s
        ),
        "that is the process without any training: the floor stays": lambda e, floor_s: (
            e.iloc[-1]["process_s"] / (e.iloc[-1]["process_s"] - e.iloc[-1]["training_s"])
        ),
        "that is as if the whole process came down to the floor": lambda e, floor_s: e.iloc[-1]["process_s"] / floor_s,
        "that is turned over: the share of the process that is left": lambda e, floor_s: (
            _at_the_floor(e, floor_s)[1] / _at_the_floor(e, floor_s)[0]
        ),
    },
    within=0.005,
)


@quietly
def _try_spread(spread: Callable) -> str | None:
    import torch  # here and below: the recorded labs need none
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    for count, high, wide, channels in ((2, 3, 4, 5), (3, 2, 2, 8), (1, 1, 1, 1)):
        output = torch.randn(count, 2 * high, 2 * wide, channels, generator=generator).requires_grad_()
        gradient = torch.randn(count, high, wide, channels, generator=generator)
        windows = output.detach().view(count, high, 2, wide, 2, channels).permute(0, 1, 3, 5, 2, 4).flatten(4)
        best, place = windows.max(dim=4)
        winner = torch.where(best > 0, place, 4).to(torch.uint8)
        pooled = F.max_pool2d(output.permute(0, 3, 1, 2), 2).relu().permute(0, 2, 3, 1)
        [right] = torch.autograd.grad(pooled, output, gradient)
        found = spread(gradient.clone(), winner.clone())
        if not isinstance(found, torch.Tensor) or found.shape != right.shape:
            size = tuple(found.shape) if isinstance(found, torch.Tensor) else shown(found)
            return f"it returns {size}: the convolution's output is {tuple(right.shape)}"
        if torch.equal(found, right):
            continue
        if torch.equal(found.flatten().sort()[0], right.flatten().sort()[0]):
            swapped = torch.equal(found, _laid_out(_by_place(gradient, winner, (0, 2, 1, 3))))
            upper = "0 and 1 are the window's upper two outputs, 2 and 3 its lower two"
            return f"1 and 2 are swapped: {upper}" if swapped else "the right numbers, at the wrong places"
        if torch.equal(found, _laid_out(gradient[..., None].expand(*gradient.shape, 4))):
            return "all four get the gradient: only the winner was passed on, so only the winner gets it"
        if torch.equal(found, _laid_out(gradient[..., None].expand(*gradient.shape, 4) / 4)):
            return "each gets a quarter, as of a mean: of a maximum, the winner gets all"
        if found[_laid_out((winner == 4)[..., None].expand(*gradient.shape, 4))].any():
            return "where the winner is 4, ReLU put all four out: nothing flows back"
        return "some gradients are not those of autograd"
    return None


def _by_place(gradient, winner, places=(0, 1, 2, 3)):
    """The gradient of each of a window's four outputs: ``(N, H, W, C, 4)``."""
    import torch

    return torch.where(winner[..., None] == torch.tensor(places), gradient[..., None], 0.0)


def _laid_out(windows):
    """``(N, H, W, C, 4)`` → ``(N, 2 H, 2 W, C)``: the four of each window side by side."""
    count, high, wide, channels, _ = windows.shape
    rows = windows.unflatten(4, (2, 2)).permute(0, 1, 4, 2, 5, 3)
    return rows.reshape(count, 2 * high, 2 * wide, channels)


SPREAD = Code(
    "For each place 0 to 3: gradient * (winner == place) goes to every other row and every other column.",
    _try_spread,
    wrong={
        "only the winner gets it": lambda gradient, _: gradient.repeat_interleave(2, 1).repeat_interleave(2, 2),
        "of a maximum, the winner gets all": lambda gradient, _: (
            gradient.repeat_interleave(2, 1).repeat_interleave(2, 2) / 4
        ),
        "nothing flows back": lambda gradient, winner: _laid_out(_by_place(gradient, winner.clamp(max=3))),
        "1 and 2 are swapped": lambda gradient, winner: _laid_out(_by_place(gradient, winner, (0, 2, 1, 3))),
        "the convolution's output is": _by_place,
        "at the wrong places": lambda gradient, winner: _by_place(gradient, winner).reshape(
            len(gradient), 2 * gradient.shape[1], 2 * gradient.shape[2], -1
        ),
        "not those of autograd": lambda gradient, winner: -_laid_out(_by_place(gradient, winner)),
    },
)

EXERCISES = {"11.1": FIRST_TIME, "11.2": AT_THE_FLOOR, "11.3": SPREAD}
