"""The exercises of lab 9: an intensity, the roof above a product, what fusing saves, what a higher roof is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number
from labkit.numbers import Quantity, shown
from labkit.subjects.roofline import BYTES, MEMORY, Peaks, Point, matmul_flops

FC1 = (1024, 128, 9216)


def matmul_point(rows: int, columns: int, inner: int, seconds: float, dtype: str = "bf16", name: str = "") -> Point:
    """A matrix product as a point; its bytes: each factor read once, the result written once."""
    moved = BYTES[dtype] * (rows * inner + inner * columns + rows * columns)
    return Point(name or f"{rows} × {columns} × {inner}", dtype, matmul_flops(rows, columns, inner), moved, seconds)


def _flop_per_byte(rows: int, columns: int, inner: int, operations: float = 2, byte: float = 2) -> float:
    moved = byte * (rows * inner + inner * columns + rows * columns)
    return operations * rows * columns * inner / moved


INTENSITY = Number(
    BOUND,
    "Two operations for each row, column and inner number; three matrices, two bytes a number.",
    right=lambda: matmul_point(*FC1, 1.0).intensity,
    wrong={
        "that is half of it: each product is added, too, and a number in BF16 has two bytes, not four": (
            lambda: _flop_per_byte(*FC1, operations=1)
        ),
        "that is with FP32's four bytes, and without the additions": lambda: _flop_per_byte(*FC1, 1, 4),
        "those are operations for each number: a number has two bytes": lambda: _flop_per_byte(*FC1, byte=1),
        "the result moves, too: three matrices": lambda: 2 * 1024 * 128 * 9216 / (2 * (1024 * 9216 + 9216 * 128)),
        "the weights move, too: three matrices": lambda: 2 * 1024 * 128 * 9216 / (2 * (1024 * 9216 + 1024 * 128)),
        "that is turned over: bytes for each operation": lambda: 1 / _flop_per_byte(*FC1),
    },
    within=0.01,  # the smallest matrix is little beside the others
)

# Peaks of GPUs that nobody has, and sizes on either side of their ridges, so that no answer fits by chance.
TRIED = [
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (1024, 128, 9216)),
    (Peaks("high ridge", {"bf16": 800.0, "fp32": 50.0}, 4.0, {}), "bf16", (128, 1024, 9216)),
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
NAMES = ("memory", "arithmetic")


def _rule(operations: float = 2, byte: float = 1, dtype: str | None = None, turned: bool = False) -> Callable:
    """The rule, with so many operations and as many bytes as a number really has; ``dtype`` in the place of its own."""

    def roof_above(rows, columns, inner, own, peaks):
        own = dtype or own
        size = byte * {"bf16": 2, "fp32": 4}[own]
        above = _flop_per_byte(rows, columns, inner, operations, size) >= peaks.ridge(own)
        return NAMES[above != turned]

    return roof_above


MISTAKES = {
    "it counts one operation where a product is also added": _rule(operations=1),
    "it counts half of the bytes": _rule(byte=0.5),
    "it takes BF16's bytes and roof for every type": _rule(dtype="bf16"),
    "it names the other roof: few operations for each byte, and memory binds": _rule(turned=True),
    "it says so of every product": lambda *_: "memory",
    "it says the same of every product": lambda *_: "arithmetic",
}


def _try_roof_above(roof_above: Callable) -> str | None:
    said = [roof_above(*size, dtype, peaks) for peaks, dtype, size in TRIED]
    for one in said:
        if not isinstance(one, str) or one not in NAMES:
            return f"it returns {shown(one)}: 'memory' or 'arithmetic' is wanted"
    right = [matmul_point(*size, 1.0, dtype).bound(peaks) for peaks, dtype, size in TRIED]
    if said == right:
        return None
    (peaks, dtype, (rows, columns, inner)), one = next(
        (tried, one) for tried, one, other in zip(TRIED, said, right, strict=True) if one != other
    )
    where = (
        f"({rows}, {inner}) by ({inner}, {columns}) in {dtype} has "
        f"{matmul_point(rows, columns, inner, 1.0, dtype).intensity:.3g} FLOP/byte, the roofs meet at "
        f"{peaks.ridge(dtype):.3g}, and it says '{one}'"
    )
    for why, mistake in MISTAKES.items():
        if said == [mistake(*size, dtype, peaks) for peaks, dtype, size in TRIED]:
            return f"{where}: {why}"
    return where


ROOF_ABOVE = Code(
    "Operations over bytes is the intensity; left of the ridge, peak over bandwidth, memory is the roof.",
    _try_roof_above,
    wrong=MISTAKES | {"'memory' or 'arithmetic' is wanted": lambda *_: "both"},
)


def _us_of_most(kernels: pd.DataFrame) -> float:
    return float(kernels.loc[kernels["mb"].idxmax(), "us"])


@Quantity
def _most_us(limits: pd.DataFrame) -> float:
    bound = limits[limits["limit"] == MEMORY]
    if bound.empty:
        raise NothingToAnswer("memory limits none of the kernels counted here")
    return _us_of_most(bound)


def _limited(column: str, how: str) -> Quantity:
    return Quantity(lambda limits: float(limits.loc[limits["limit"] == MEMORY, column].agg(how)))


FUSED = Number(
    BOUND,
    "Where memory limits, time is in proportion to bytes; look only at kernels that it limits.",
    right=_most_us / 2,
    wrong={
        "that is all of its time: half of the bytes still move": _most_us,
        "that is a kernel that something else limits: fewer bytes save it nothing": Quantity(_us_of_most) / 2,
        "that is half of the longest kernel that memory limits: another moves more": _limited("us", "max") / 2,
        "those are its bytes, in MB: how many microseconds do they take?": _limited("mb", "max"),
        "that is half of all kernels that memory limits: one of them is asked for": _limited("us", "sum") / 2,
    },
)


@Quantity
def _higher(points: Sequence[Point], peaks: Peaks, fewer_bytes: float = 1) -> float:
    """By what factor the roof above the baseline rises in 16 bits, where each byte does so many times the work."""
    point = next((one for one in points if one.dtype == "fp32"), None)
    if point is None or peaks.narrow == "fp32":
        raise NothingToAnswer("nothing here computes in FP32 that could do so in 16 bits")
    return peaks.roof(fewer_bytes * point.intensity, peaks.narrow) / peaks.roof(point.intensity, "fp32")


HIGHER_ROOF = Number(
    READ,
    "Its operations and bytes stay, so it stays above its place on the lower axis: go straight up to the next line.",
    right=_higher,
    wrong={
        "so far the level roofs are apart: with these bytes it meets another line before the upper one": (
            lambda points, peaks: peaks.rate(peaks.narrow) / peaks.rate("fp32")
        ),
        "that is with half of the bytes: here they stay as they are": lambda points, peaks: _higher(points, peaks, 2),
        "that is turned over: the new roof over the old one": 1 / _higher,
        "that is the new roof, in TFLOP/s: how many times the old one?": lambda points, peaks: peaks.roof(
            points[0].intensity, peaks.narrow
        ),
        "so far the point lies below its roof: how much higher is the other roof?": lambda points, peaks: (
            1 / points[0].share(peaks)
        ),
    },
    within=0.1,  # read off axes that are logarithmic
)

EXERCISES = {"9.1": INTENSITY, "9.2": ROOF_ABOVE, "9.3": FUSED, "9.4": HIGHER_ROOF}
