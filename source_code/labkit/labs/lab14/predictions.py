"""What lab 14 asks its reader to predict, and what the usual wrong guesses leave out."""

from __future__ import annotations

import math

from labkit.labs.lab14.cubic import ALPHA, FP16_MAX, overflow
from labkit.labs.lab14.exercises import POINTS
from labkit.labs.lab14.network import zeros_pct
from labkit.predictions import Guess
from labkit.subjects.loss_scaling import FIRST_SCALE

PREDICTIONS = {
    "zero": Guess(
        "gradients of conv1 that FP16 makes zero", " %", lambda rows: zeros_pct(rows)[1],
        wrong={
            "That's before training. Gradients shrink as the network gets better.": (
                lambda rows: zeros_pct(rows, first=True)[1]
            ),
            "That's next to the loss. conv1 is the layer farthest from it.": lambda rows: zeros_pct(rows, "fc2")[1],
            "That's what is still lost with a scale of 65,536.": lambda rows: zeros_pct(rows)[FIRST_SCALE],
        },
    ),
    "skipped": Guess(
        "steps skipped at first", " steps", lambda fits: float(overflow(fits).frame["steps O1 skips"].median()),
        wrong={
            "One halving makes room for a factor of two. This loss is a sum over 2,000 points.": lambda fits: 1,
            "That counts the points alone. The inputs are large as well: x³ reaches 31.": (
                lambda fits: round(math.log2(POINTS))
            ),
            "That would bring the scale down to 1. These gradients don't fit even then.": (
                lambda fits: round(math.log2(FIRST_SCALE))
            ),
        },
    ),
    "largest": Guess(
        "the largest first gradient of RMSprop in FP16", "", lambda: math.sqrt(FP16_MAX / (1 - ALPHA)),
        wrong={
            "That's the largest gradient that FP16 holds, but RMSprop stores a square.": lambda: FP16_MAX,
            "That's the root of 65,504. The first step stores only a hundredth of the square.": (
                lambda: math.sqrt(FP16_MAX)
            ),
        },
    ),
}  # fmt: skip
