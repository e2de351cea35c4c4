"""What lab 10 claims: a Triton kernel is right within its bound, near cuBLAS at most sizes, and on Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.labs.lab10.products import fp16_over_bf16, gain_of_order_pct, instructions


def tiles_reuse(tried: pd.DataFrame) -> Iterator[Claim | str]:
    """The pretend GPU's products, a row a tile, small to large: all are right, and larger tiles read less."""
    yield Claim("every result is within its bound", bool((tried["error / bound"] <= 1).all()))
    fewer = tried["numbers read"].iloc[0] / tried["numbers read"].iloc[-1]
    yield Claim("tiles four times as wide read less than a third of the numbers", fewer > 3, fewer)


def near_cublas(sizes: pd.DataFrame) -> Iterator[Claim | str]:
    """Every product is right, a large one nearly as fast as cuBLAS's, another not; ``sizes``: by ``by_size``."""
    share = sizes["triton_tflops"] / sizes["cublas_tflops"]
    large = share[(4096, 4096, 4096)]
    yield Claim("every product keeps its error bound", bool((sizes["triton_error_of_bound"] <= 1).all()))
    yield Claim(
        "at 4,096 the Triton kernel has over 85 % of cuBLAS's speed", large > 0.85, large,
        because="the tiles were chosen on an H200, and another Triton or cuBLAS makes other code",
        so=f"a kernel like this one is worth {100 * large:.0f} % of the library to you: tune its tiles",
    )  # fmt: skip
    yield Claim(
        "and somewhere it has less than 60 %", share.min() < 0.6, share.min(),
        because="a slower GPU forgives more: its memory and its few multiprocessors keep up",
        so=f"even at its worst size the kernel has {100 * share.min():.0f} % here",
    )  # fmt: skip
    by_size = {" × ".join(map(str, size)): value for size, value in share.items()}
    worst, best = min(by_size, key=by_size.__getitem__), max(by_size, key=by_size.__getitem__)
    yield (
        f"Of cuBLAS's speed the kernel has {100 * by_size[worst]:.0f} % at its worst size "
        f"({worst}), {100 * by_size[best]:.0f} % at its best ({best})."
    )


def tile_matters(by_tile: pd.DataFrame) -> Iterator[Claim | str]:
    """The tile's size decides, the tiles' order hardly; ``by_tile``: a row a ``tile`` and ``group`` of its rows."""
    rate = by_tile[by_tile["group"] == 8]["triton_tflops"]
    spread = rate.max() / rate.min()
    yield Claim(
        "the fastest tile is over twice as fast as the slowest", spread > 2, spread,
        because="large tiles do not fit into this GPU, or its arithmetic is slower than its caches",
        so=f"the choice of tile is worth a factor of {spread:.1f} here",
    )  # fmt: skip
    yield f"8 rows of tiles together, against row by row: {gain_of_order_pct(by_tile):+.1f} %."


def matrix_instructions(told: Mapping[str, str], tflops: Mapping[str, float]) -> Iterator[Claim | str]:
    """In 16 bits Tensor Cores multiply, and faster; by type: the kernel's multiplying instructions, its TFLOP/s."""
    narrow = {name: text for name, text in told.items() if name != "fp32"}
    ordinary = [name.upper() for name, text in narrow.items() if "mma" not in text or "fma" in text]
    yield Claim(
        "in 16 bits, all multiplications are matrix instructions", not ordinary, narrow,
        because="this version of Triton has no matrix instructions for a GPU of this generation",
        so=f"in {', '.join(ordinary)} tl.dot uses the ordinary cores: expect no more than FP32's speed",
    )  # fmt: skip
    yield Claim("in FP32 there are none", "mma" not in told["fp32"], told["fp32"])
    speedup = max(rate for name, rate in tflops.items() if name != "fp32") / tflops["fp32"]
    yield Claim(
        "the same source in 16 bits is over 1.5 times as fast as in FP32", speedup > 1.5, speedup,
        because="the GPU has no Tensor Cores for this type, or so small a tile cannot feed them",
        so=f"16 bits are worth a factor of {speedup:.1f} here",
    )  # fmt: skip


def ways_in_cuda(ways: pd.DataFrame, records: Sequence[dict]) -> Iterator[Claim | str]:
    """What tiles in shared memory gain in CUDA C++; ``records`` of ``bench_wmma.py``, and ``ways`` from ``by_way``."""
    by_way = ways.set_index("way")
    rate, error = by_way["product_tflops"], by_way["product_error_of_bound"]
    yield Claim("all of them keep the error bound", bool((error <= 1).all()))
    one, *_, best = rate[rate.index.str.startswith("WMMA")]
    yield Claim(
        "tiles in shared memory, fetched ahead, more than double the speed", best > 2 * one, best / one,
        because="this GPU's caches make up for what the first kernel loads again and again",
        so=f"here tiles gain a factor of {best / one:.1f}",
    )  # fmt: skip
    yield (
        f"The fastest in CUDA C++ has {100 * best / rate['Triton']:.0f} % of Triton's speed, "
        f"{100 * best / rate['cuBLAS']:.0f} % of cuBLAS's."
    )
    yield f"What multiplies: {', '.join(instructions(records))}."
    yield f"The same kernel in FP16 is {fp16_over_bf16(records):.2f} times as fast as in BF16."
