"""What lab 9 asks its reader to predict, and what a wrong guess left out."""

from __future__ import annotations

from collections.abc import Callable

from labkit.predictions import Guess
from labkit.subjects import floors
from labkit.subjects.roofline import Peaks
from stepbudget.ask.budget import budget
from stepbudget.report import Report
from stepbudget.show import answers


def _ms(what: str) -> Callable[[Peaks], float]:
    return lambda peaks: float(floors.floor(peaks).set_index("what")["ms"][what])


def _forward_ms(peaks: Peaks) -> float:
    flops = floors.EPOCHS * floors.SAMPLES * sum(floors.sizes.flops_per_sample().values())
    return flops / peaks.rate(peaks.narrow) / 1e9


def _longest(report: Report, column: str) -> float:
    return float(answers.kernels(report).frame[column].iloc[0])


def _share_of_epoch(report: Report) -> float:
    return 100 * _longest(report, "GPU ms") / report.window().duration_ms


def _all_kernels(report: Report) -> float:
    found = budget(report)
    return 100 * (1 - found.idle_ms / found.window.duration_ms)


PREDICTIONS = {
    "floor": Guess(
        "ten epochs at the roofs",
        " ms",
        lambda peaks: 1e3 * floors.training_floor_s(peaks),
        wrong={
            "That's the forward pass alone. Backward takes about twice that on top.": _forward_ms,
            "That's arithmetic and traffic one after the other. A GPU does both at once, so the longer one counts.": (
                lambda peaks: _ms("arithmetic")(peaks) + _ms("traffic, ideally fused")(peaks)
            ),
            "That's the traffic with one kernel an operator. Kernels can be fused, and then they move far less.": (
                _ms("traffic, unfused")
            ),
            "That's the arithmetic at FP32's rate. In 16 bits the Tensor Cores do it many times as fast.": (
                lambda peaks: _ms("arithmetic")(peaks) * peaks.rate(peaks.narrow) / peaks.rate("fp32")
            ),
        },
    ),
    "shorter": Guess(
        "what the longest kernel could save",
        " % of the epoch",
        _share_of_epoch,
        wrong={
            "That's its share of the GPU's time, and the GPU works for only a small part of the epoch.": (
                lambda report: _longest(report, "share %")
            ),
            "That's all kernels together. Only one of them is rewritten.": _all_kernels,
        },
    ),
}
