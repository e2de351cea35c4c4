"""What lab 17 asks before it shows: an epoch's gain, and for how long no kernel runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from labkit.display.spread import paired
from labkit.labs.lab17.epochs import faster
from labkit.labs.lab17.reports import Counted
from labkit.predictions import Guess

Runs = Mapping[str, Sequence[dict]]  # records by FP32, TF32, FP16 and BF16


def _pauses(counted: Mapping[str, Counted]) -> tuple[float, float] | float:
    """Per cent of FP16's steps on JAX without a kernel, at least and at most; nan where the counter was not read."""
    fp16 = counted["FP16 on JAX"]
    return math.nan if fp16.least is None else (100 * fp16.least, 100 * fp16.most)


def _ran_pct(counted: Mapping[str, Counted]) -> float:
    return 100 * (1 - counted["FP16 on JAX"].most)


PREDICTIONS = {
    "times": Guess(
        "an epoch in FP16 on JAX", "×", lambda runs: faster(runs, "FP32")["FP16"].median,
        wrong={
            "That's the whole process. In the later epochs nothing is compiled.": (
                lambda runs: paired(runs["FP32"], runs["FP16"]).median
            ),
            "Half the bytes would gain that, if the GPU never waited.": lambda runs: 2.0,
            "FP16 gains something, because FP32 keeps the GPU busy.": lambda runs: 1.0,
        },
    ),
    "pause_pct": Guess(
        "time without a kernel", " %", _pauses,
        wrong={
            "That's FP32, at most. FP16's kernels are shorter, and the pauses stay.": (
                lambda counted: 100 * counted["FP32 on JAX"].most
            ),
            "For so long kernels run at the least. The question was about the rest.": _ran_pct,
            "For so long the Tensor Cores don't work, on average. Other kernels run in that time, too.": (
                lambda counted: 100 - counted["FP16 on JAX"].tensor.mean_pct
            ),
        },
    ),
}  # fmt: skip
