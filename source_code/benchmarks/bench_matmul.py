"""Benchmark: a Triton matrix product, checked against FP64, measured against cuBLAS; by size, tile, type (lab 10)."""

from contextlib import suppress
from functools import partial

import torch

from labkit.display.spread import Spread
from labkit.kernels.matmul import (
    GROUP,
    TILES,
    OutOfResources,
    chosen_tile,
    error_bound,
    matmul,
    matmul_reference,
    multiplying_instructions,
)
from labkit.subjects.roofline import matmul_flops
from labkit.training import machine, steps
from labkit.training.clock import gpu_times
from labkit.training.devices import reduced_precision

# (rows, columns, inner): powers of two, sizes that no tile divides, and a forward pass of this course's fc1.
SIZES = [(n, n, n) for n in (256, 512, 1000, 1024, 2048, 4000, 4095, 4096, 4097, 8192)]
SIZES += [(1024, 128, 9216), (1021, 2039, 4093)]
COMPARED = 4096  # the size at which tiles and types are compared
SMALL_TILE = (64, 64, 64, 4, 2)  # small enough for FP32, and for smaller GPUs
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NARROW = {"bfloat16": "bf16", "float16": "fp16"}[reduced_precision()]  # FP16 where a GPU only emulates BF16
REPEATS = 21


def factors(m, n, k, dtype=TYPES[NARROW]):
    return torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(k, n, device="cuda", dtype=dtype)


def farthest(a, b, result):
    """The largest error of the result, as a share of the bound that error_bound states."""
    error = (result.double() - a.double() @ b.double()).abs()
    return (error / error_bound(a, b)).max().item()


def measured(name, multiply, a, b):
    """Error, time and rate of a way to multiply, in columns that begin with its name."""
    (m, k), n = a.shape, b.shape[1]
    error = farthest(a, b, multiply(a, b))
    assert error <= 1, f"{name} is {error} times as far off as its bound"
    calls = max(1, min(50, int(2e11 // (m * n * k))))  # a short product is called so often, in one graph
    own = Spread.of([1e6 * seconds for seconds in gpu_times(partial(multiply, a, b), REPEATS, calls)])
    return {
        f"{name}_error_of_bound": error,
        f"{name}_us": own.median,
        f"{name}_range_us": [own.low, own.high],
        f"{name}_tflops": matmul_flops(m, n, k) / own.median / 1e6,
    }


def sizes():
    for m, n, k in SIZES:
        a, b = factors(m, n, k)
        row = {"what": "size", "rows": m, "columns": n, "inner": k, "dtype": NARROW}
        row |= measured("triton", matmul, a, b) | measured("cublas", matmul_reference, a, b)
        yield row | {"tile": chosen_tile(m, n, k)}


def tiles():
    """Each tile at one size, those left out that this GPU has too little shared memory for.

    The first also row by row, without the order of tiles that finds them in the cache.
    """
    a, b = factors(COMPARED, COMPARED, COMPARED)
    tried = []
    for tile in TILES:
        with suppress(OutOfResources):
            matmul(a, b, tile)
            tried.append(tile)
    for tile, group in [(tried[0], 1), *((tile, GROUP) for tile in tried)]:
        row = {"what": "tile", "tile": " x ".join(map(str, tile[:3])), "warps": tile[3], "stages": tile[4]}
        yield row | {"group": group} | measured("triton", partial(matmul, tile=tile, group=group), a, b)


def types():
    """The same tile in each type: who multiplies, and how fast."""
    for name, dtype in TYPES.items():
        if name == "bf16" and not machine.has_bf16():
            continue
        a, b = factors(COMPARED, COMPARED, COMPARED, dtype)
        row = {"what": "type", "dtype": name, "instructions": multiplying_instructions(a, b, SMALL_TILE)}
        yield row | measured("triton", partial(matmul, tile=SMALL_TILE), a, b) | measured("cublas", torch.mm, a, b)


def main():
    parser = steps.script_parser(__doc__)
    args = parser.parse_args()
    device = steps.need_gpu()
    steps.set_fp32_precision(False)
    torch.manual_seed(1)
    rows = []
    for found in (sizes, tiles, types):
        for row in found():
            rows.append(row)
            print(
                " ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                )
            )
    steps.write_benchmark_record(args, device, rows, size=COMPARED)


if __name__ == "__main__":
    main()
