"""What lab 23 asks its reader to predict: what BF16 weights cost a training, what FP8 gains, what an odd size costs."""

from __future__ import annotations

import pandas as pd

from labkit.labs.lab23.fp8 import NAN, bounds, speedup
from labkit.labs.lab23.sequences import around, narrow
from labkit.predictions import Guess

WIDTH = 8192


def _more_pct(found: pd.DataFrame, variant: str) -> float:
    own = found.set_index("variant")["more_pct"]
    return float(own.get(variant, NAN))


def _bound(record: dict, row: int) -> float:
    return float(bounds(record, WIDTH).frame["times as fast"][row])


def _longer_pct(cases: pd.DataFrame, part: str = "us") -> float:
    own = around(cases, "hidden", narrow(cases["dtype"])).set_index("size")
    return float(100 * (own[f"relative_{part}"][1023] - 1))


PREDICTIONS = {
    "worse": Guess(
        "distance to the least loss, BF16 weights", " %", lambda found: _more_pct(found, "bf16 nearest"),
        wrong={
            "That's what BF16 products cost. Here small updates of the weights are lost, too.": (
                lambda found: _more_pct(found, "bf16 autocast")
            ),
            "That's what FP8 products cost. Products forgive more than weights do.": (
                lambda found: _more_pct(found, "fp8 linear")
            ),
        },
    ),
    "gain": Guess(
        "FP8 against BF16, layers of width 8,192", "×", lambda record: speedup(record, WIDTH),
        wrong={
            "That's the ratio of the data sheet's rates. Making FP8 numbers takes time, too.": (
                lambda record: _bound(record, 0)
            ),
            "That's the gain of the products alone. Making FP8 numbers takes time, too.": (
                lambda record: _bound(record, 1)
            ),
            "That's the gain without torch.compile, which fuses the kernels that make FP8 numbers.": (
                lambda record: speedup(record, WIDTH, "")
            ),
        },
    ),
    "longer": Guess(
        "a hidden size of 1,023 instead of 1,024", " %", _longer_pct,
        wrong={
            "That's the LSTM alone. The layer to the vocabulary has an odd size, too.": (
                lambda cases: _longer_pct(cases, "lstm_us")
            ),
            "That counts operations. An odd size gets other kernels.": lambda cases: 0.0,
        },
    ),
}  # fmt: skip
