"""What lab 10 asks its reader to predict: a Triton kernel's share of cuBLAS, and what the order of its tiles gains."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.labs.lab10.products import by_size, by_tile, by_type, gain_of_order_pct
from labkit.predictions import Guess

LARGE = (4096, 4096, 4096)


def _of_cublas_pct(tflops: float, records: Sequence[dict]) -> float:
    """A rate as a share of cuBLAS's for the large product, in per cent."""
    return float(100 * tflops / by_size(records)["cublas_tflops"][LARGE])


def _share_pct(records: Sequence[dict], size: tuple[int, int, int] = LARGE) -> float:
    row = by_size(records).loc[size]
    return float(100 * row["triton_tflops"] / row["cublas_tflops"])


PREDICTIONS = {
    "share": Guess(
        "Triton's share of cuBLAS",
        " %",
        _share_pct,
        wrong={
            "That's the speed in FP32, without Tensor Cores. tl.dot uses them for 16-bit numbers.": lambda records: (
                _of_cublas_pct(by_type(records)["triton_tflops"]["fp32"], records)
            ),
            "That's the smallest tile. A larger one uses each number that it loads more often.": lambda records: (
                _of_cublas_pct(by_tile(records)["triton_tflops"].min(), records)
            ),
            "That's the share at 1,000, where the rows don't begin at multiples of 16 numbers.": lambda records: (
                _share_pct(records, (1000, 1000, 1000))
            ),
        },
    ),
    "order": Guess(
        "what 8 rows of tiles together gain",
        " %",
        lambda records: gain_of_order_pct(by_tile(records)),
        wrong={"That's the tutorial's gain, of another GPU. Count what 132 programs read here.": lambda records: 10.0},
    ),
}
