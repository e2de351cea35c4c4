"""What lab 9 asks its reader to predict, and what a wrong guess left out."""

from __future__ import annotations

from labkit.numbers import Quantity
from labkit.predictions import Guess
from labkit.subjects import bounds, floors
from labkit.subjects.roofline import Peaks
from stepbudget.show import answers


def _ms(what: str) -> Quantity:
    return Quantity(lambda peaks: float(floors.floor(peaks).set_index("what")["ms"][what]))


def _forward_ms(peaks: Peaks) -> float:
    flops = floors.EPOCHS * floors.SAMPLES * sum(floors.sizes.flops_per_sample().values())
    return flops / peaks.rate(peaks.narrow) / 1e9


def _longest(column: str) -> Quantity:
    return Quantity(lambda report: float(answers.kernels(report).frame[column].iloc[0]))


PREDICTIONS = {
    "floor": Guess(
        "ten epochs at the roofs",
        " ms",
        lambda peaks: 1e3 * floors.training_floor_s(peaks),
        wrong={
            "That's the forward pass alone. Backward takes about twice that on top.": _forward_ms,
            "That's arithmetic and traffic one after the other. A GPU does both at once, so the longer one counts.": (
                _ms("arithmetic") + _ms("traffic, ideally fused")
            ),
            "That's the traffic with one kernel an operator. Kernels can be fused, and then they move far less.": (
                _ms("traffic, unfused")
            ),
            "That's the arithmetic at FP32's rate. In 16 bits the Tensor Cores do it many times as fast.": (
                _ms("arithmetic") * Quantity(lambda peaks: peaks.rate(peaks.narrow) / peaks.rate("fp32"))
            ),
        },
    ),
    "shorter": Guess(
        "what the longest kernel could save",
        " % of the epoch",
        100 * _longest("GPU ms") / bounds.whole_ms,
        wrong={
            "That's its share of the GPU's time, and the GPU works for only a small part of the epoch.": (
                _longest("share %")
            ),
            "That's all kernels together. Only one of them is rewritten.": 100 - 100 * bounds.idle_ms / bounds.whole_ms,
        },
    ),
}
