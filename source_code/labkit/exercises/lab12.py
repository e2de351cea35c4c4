"""The exercises of lab 12."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from labkit.checks import answer_choice, answer_function

CHANNELS, SIDE, OUTPUTS = 3, 4, 5  # a small fc1


def _fc1_for_keras(number: str, answer: Callable | None) -> bool:
    def trial(fc1_for_keras: Callable) -> str | None:
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

    return answer_function(number, answer, trial)


def _scale_after(number: str, answer: Callable | None) -> bool:
    def trial(scale_after: Callable) -> str | None:
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
            found = scale_after(1024.0, list(overflowed), 3)
            if found != _keras_scale(1024.0, overflowed, 3):
                return f"{wrong} (it says {found!r} for {overflowed}, from 1024.0, with 3 growth steps)"
        return None

    return answer_function(number, answer, trial)


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


def _which_compile(number: str, answer: str | None, compiled: pd.DataFrame) -> bool:
    right = compiled.loc[compiled["fixed_scale"].notna(), "way"]  # one, unless this Keras keeps what ours drops
    hint = "What was asked for is not what compile left: look for a row that has a fixed scale."
    chosen = right[right.str.casefold() == str(answer).strip().casefold()]
    return answer_choice(number, answer, next(iter([*chosen, *right]), "none of them"), hint)


def _pause_bounds(number: str, answer: Callable | None) -> bool:
    def trial(pause_bounds: Callable) -> str | None:
        for samples, least, most in (
            ([0, 100], 0.5, 0.5),
            ([50, 50, 50], 0.0, 0.5),
            ([0, 0, 0, 20], 0.75, 0.95),
            ([100] * 4, 0.0, 0.0),
        ):
            found = np.asarray(pause_bounds(list(samples)), dtype=float)
            if found.shape != (2,):
                return f"it returns {found.tolist()!r}: two shares are wanted, the least and the most"
            if not np.isclose(found[0], least):
                return f"the least is {found[0]:g} for {samples}: no kernel ran for certain only where a sample reads 0"
            if not np.isclose(found[1], most):
                return f"the most is {found[1]:g} for {samples}: kernels take the least time if all SMs work at once"
        return None

    return answer_function(number, answer, trial)


EXERCISES = {"12.1": _fc1_for_keras, "12.2": _scale_after, "12.3": _which_compile, "12.4": _pause_bounds}
