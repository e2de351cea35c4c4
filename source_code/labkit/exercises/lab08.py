"""The exercises of lab 8."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.checks import answer_function, answer_number
from labkit.topics.roofline.readings import MEMORY, Peaks, matmul_point


def _intensity(number: str, answer: float | None) -> bool:
    hint = "Two operations for each row, column and inner number; three matrices, two bytes a number."
    return answer_number(number, answer, matmul_point(1024, 128, 9216, 1.0).intensity, hint)


# Peaks of GPUs that nobody has, and sizes on either side of their ridges, so that no answer fits by chance.
TRIED = [
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (1024, 128, 9216)),
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (4096, 4096, 4096)),
    (Peaks("low ridge", {"bf16": 200.0, "fp32": 50.0}, 4.0, {}), "bf16", (1024, 128, 9216)),
    (Peaks("low ridge", {"bf16": 200.0, "fp32": 50.0}, 4.0, {}), "fp32", (64, 64, 64)),
    (Peaks("low ridge", {"bf16": 200.0, "fp32": 60.0}, 4.0, {}), "fp32", (80, 80, 80)),
    (Peaks("thin", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (100_000, 1, 100_000)),
    (Peaks("edge", {"bf16": 300.0, "fp32": 50.0}, 4.0, {}), "bf16", (4096, 64, 4096)),
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (700, 700, 700)),
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (500, 500, 500)),
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (4096, 4096, 64)),
    (Peaks("low ridge", {"bf16": 200.0, "fp32": 50.0}, 4.0, {}), "fp32", (100, 100, 100)),
]


def _roof_above(number: str, answer: Callable | None) -> bool:
    def trial(roof_above: Callable) -> str | None:
        for peaks, dtype, (rows, columns, inner) in TRIED:
            right = matmul_point(rows, columns, inner, 1.0, dtype).bound(peaks)
            said = roof_above(rows, columns, inner, dtype, peaks)
            if said not in ("memory", "arithmetic"):
                return f"it returns {said!r}: 'memory' or 'arithmetic' is wanted"
            if said != right:
                point = matmul_point(rows, columns, inner, 1.0, dtype)
                return (
                    f"({rows}, {inner}) by ({inner}, {columns}) in {dtype} has {point.intensity:.3g} FLOP/byte, the "
                    f"roofs meet at {peaks.ridge(dtype):.3g}, and it says {said!r}"
                )
        return None

    return answer_function(number, answer, trial)


def _fused(number: str, answer: float | None, limits: pd.DataFrame) -> bool:
    bound = limits[limits["limit"] == MEMORY]
    if bound.empty:
        print(f"exercise {number}: memory limits none of the kernels counted here, so there is nothing to work out")
        return False
    right = float(bound.loc[bound["mb"].idxmax(), "us"]) / 2
    hint = "Where memory limits, time is in proportion to bytes; look only at kernels that it limits."
    return answer_number(number, answer, right, hint)


EXERCISES = {"8.1": _intensity, "8.2": _roof_above, "8.3": _fused}
