"""The exercises of lab 16: weights for Keras, the rule of a loss scale, the one that is left, and what it allows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Code, Number
from labkit.numbers import number, shown

CHANNELS, SIDE, OUTPUTS = 3, 4, 5  # a small fc1


def _try_fc1_for_keras(fc1_for_keras: Callable) -> str | None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, CHANNELS, SIDE, SIDE))
    weight = rng.standard_normal((OUTPUTS, CHANNELS * SIDE * SIDE))
    expected = images.reshape(2, -1) @ weight.T
    kernel = np.asarray(fc1_for_keras(weight.copy(), CHANNELS, SIDE, SIDE))
    if kernel.shape != (CHANNELS * SIDE * SIDE, OUTPUTS):
        return f"its shape is {kernel.shape}: Keras wants a row for each input and a column for each output"
    if np.allclose(images.transpose(0, 2, 3, 1).reshape(2, -1) @ kernel, expected):
        return None
    if np.allclose(images.reshape(2, -1) @ kernel, expected):
        return "transposed, but its rows still come channel by channel; Keras flattens pixel by pixel"
    return "the products differ: go from (out, channel, row, column) to (row, column, channel, out)"


def _try_scale_after(scale_after: Callable) -> str | None:
    for overflowed, wrong in (
        ([], "with no step at all the scale stays as it was"),
        ([False, False], "two good steps of three are not enough to double it"),
        ([False, False, False], "the third good step in a row doubles it"),
        ([True], "a step that overflows halves it"),
        ([True, True, True, True], "each overflow halves it again"),
        ([False, False, True, False, False], "an overflow starts the count of good steps anew"),
        ([False] * 6, "after a doubling, the count starts anew"),
        ([False] * 3 + [True] + [False] * 3, "wrong for three good steps, an overflow and three good ones"),
    ):
        given = scale_after(1024.0, list(overflowed), 3)
        if given is None or number(given) != _keras_scale(1024.0, overflowed, 3):
            return f"{wrong} (it says {shown(given)} for {overflowed}, from 1024.0, with 3 growth steps)"
    return None


def _keras_scale(scale: float, overflowed: list[bool], growth_steps: int) -> float:
    """The rule of ``keras.optimizers.LossScaleOptimizer``: halve at an overflow, double after so many good steps."""
    good = 0
    for one in overflowed:
        if one:
            scale, good = scale / 2, 0
        elif good == growth_steps - 1:
            scale, good = scale * 2, 0
        else:
            good += 1
    return scale


def _weights(order: tuple[int, ...] | None, transposed: bool = True) -> Callable:
    """The conversion with the four axes in another order, and transposed or not."""

    def fc1_for_keras(weight, channels, rows, columns):
        if order is None:
            return weight.T if transposed else weight
        moved = weight.reshape(-1, channels, rows, columns).transpose(order)
        return moved.reshape(-1, len(weight)) if transposed else moved.reshape(len(weight), -1)

    return fc1_for_keras


FC1_FOR_KERAS = Code(
    "Give the matrix its four axes with reshape, put them in Keras's order with transpose, and reshape again.",
    _try_fc1_for_keras,
    wrong={
        "its shape is (5, 48): Keras wants": _weights(None, transposed=False),
        "its rows still come channel by channel": _weights(None),
        "the products differ": _weights((3, 2, 1, 0)),
        "its shape is (5, 48)": _weights((0, 2, 3, 1), transposed=False),
    },
)


def _never_grows(scale, overflowed, growth_steps):
    return scale / 2 ** sum(overflowed)


def _counts_all_good_steps(scale, overflowed, growth_steps):
    return _never_grows(scale, overflowed, growth_steps) * 2 ** (overflowed.count(False) // growth_steps)


def _grows_once(scale, overflowed, growth_steps):
    good = 0
    for one in overflowed:
        good = 0 if one else good + 1
        scale = scale / 2 if one else scale * 2 if good == growth_steps else scale
    return scale


def _grows_too_early(scale, overflowed, growth_steps):
    return _keras_scale(scale, overflowed, growth_steps - 1)


def _never_falls(scale, overflowed, growth_steps):
    return scale * 2 ** ("".join("x" if one else "." for one in overflowed).count("." * growth_steps))


def _falls_once(scale, overflowed, growth_steps):
    anew = [one for last, one in pairwise([False, *overflowed]) if not (one and last)]
    return _keras_scale(scale, anew, growth_steps)


SCALE_AFTER = Code(
    "Keep two things from step to step: the scale, and how many good steps there were in a row.",
    _try_scale_after,
    wrong={
        "the third good step in a row doubles it": _never_grows,
        "an overflow starts the count of good steps anew": _counts_all_good_steps,
        "after a doubling, the count starts anew": _grows_once,
        "two good steps of three are not enough": _grows_too_early,
        "a step that overflows halves it": _never_falls,
        "each overflow halves it again": _falls_once,
        "with no step at all the scale stays": lambda scale, overflowed, growth_steps: None,
    },
)


ASKED, STEPS = "mixed_float16, loss_scale_factor=1024", 4500  # what the colleague does


def _last_scale(compiled: pd.DataFrame, steps: int = STEPS) -> float:
    """By what the loss is multiplied in the last step: the fixed scale where this Keras keeps it, else what grew."""
    row = compiled.set_index("way").loc[ASKED]
    if pd.notna(row["fixed_scale"]):
        return float(row["fixed_scale"])
    if pd.isna(row["initial_scale"]):
        return 1.0
    return float(row["initial_scale"] * 2 ** ((steps - 1) // row["growth_steps"]))


LAST_SCALE = Number(
    READ,
    "In the row for what the colleague asks: what trains, what does it begin with, and how often does it double?",
    right=_last_scale,
    wrong={
        "that is what was asked for: look in its row at what trains": lambda compiled: 1024.0,
        "with that it begins: does it stay so, for so many good steps?": lambda compiled: _last_scale(compiled, 1),
        "it doubled once more: after how many good steps in a row does it?": lambda compiled: _last_scale(
            compiled, STEPS // 2
        ),
        "it has not doubled that often yet: count whole runs of good steps": lambda compiled: 2 * _last_scale(compiled),
        "a doubling is not added, it multiplies": lambda compiled: 3 * _last_scale(compiled, 1),
        "nothing is what a model under float32 gets: which row is this?": lambda compiled: 1.0,
    },
    within=0.0,
)


FP16_LARGEST, FP16_SMALLEST = 65504.0, 2.0**-24

LARGEST_BEFORE_SCALING = Number(
    BOUND,
    "Scaled, a number may be FP16's largest at most. Before it was multiplied, it was smaller by the scale.",
    right=lambda run: FP16_LARGEST / run["last_scale"],
    wrong={
        "that is by the scale at the beginning, which was halved since": lambda run: (
            FP16_LARGEST / (run["last_scale"] * 2 ** run["skipped_steps"])
        ),
        "that is upside down: the number times the scale is FP16's largest": lambda run: (
            run["last_scale"] / FP16_LARGEST
        ),
        "that is the bound after scaling: before it, the number was smaller": lambda run: FP16_LARGEST,
        "that multiplies by the scale once more: go back from what is scaled": lambda run: (
            FP16_LARGEST * run["last_scale"]
        ),
        "that is the smallest number that is kept, not the largest": lambda run: FP16_SMALLEST / run["last_scale"],
    },
)

EXERCISES = {
    "16.1": FC1_FOR_KERAS,
    "16.2": SCALE_AFTER,
    "16.3": LAST_SCALE,
    "16.4": LARGEST_BEFORE_SCALING,
}
