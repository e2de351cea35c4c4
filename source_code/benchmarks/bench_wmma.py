"""Benchmark: a matrix product in CUDA C++ (WMMA) against FP64, beside Triton's and cuBLAS; by way and size (lab 10)."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from bench_matmul import COMPARED, factors, measured
from bench_matmul import SIZES as ALL_SIZES

from labkit.kernels.matmul import chosen_tile, matmul, matmul_reference
from labkit.kernels.nvrtc import TooLarge
from labkit.kernels.wmma import TILE, TILES, compiled, multiplying_instructions, wmma_matmul
from labkit.training import machine, steps
from labkit.training.clock import gpu_times

DTYPE = torch.float16  # every Tensor Core has it, and WMMA fetches its fragments with fewer instructions than BF16's
FIRST = [(n, n, n) for n in (256, 1000, 4095, 4096)] + [(1024, 128, 9216)]  # where few sizes are asked for
SIZES = FIRST + [size for size in ALL_SIZES if size not in FIRST]
TRIALS = 5  # of each tile, to choose one
SHORT, CALLS = 1e10, 20  # products of fewer multiplications are tried so many times in one CUDA graph


def compile_all(capability):
    """All kernels, side by side."""
    wanted = [(DTYPE, tile) for tile in (None, *TILES, one_stage())]
    wanted += [(torch.bfloat16, TILE)] if machine.has_bf16() else []
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: compiled(capability, *one), wanted))


def one_stage():
    return replace(TILE, stages=1)


def fastest(a, b):
    """Which tile of TILES is fastest at these sizes? Those that need more shared memory than there is are left out."""
    calls = CALLS if a.numel() * b.shape[1] < SHORT else 1
    took = {}
    for tile in TILES:
        with suppress(TooLarge):
            took[tile] = median(gpu_times(partial(wmma_matmul, a, b, tile), TRIALS, calls))
    return min(took, key=took.get)


def ways(capability):
    """One size: each WMMA kernel with one thing more than the one before, then Triton and cuBLAS; and BF16."""
    size = (COMPARED,) * 3
    a, b = factors(*size, DTYPE)
    best = fastest(a, b)
    kernels = {
        "WMMA: one tile a warp": None,
        "WMMA: tiles in shared memory": one_stage(),
        "WMMA: with the next ones under way": TILE,
        "WMMA: the fastest of six tiles": best,
    }
    for name, tile in kernels.items():
        row = {"what": "way", "way": name, "tile": str(tile) if tile else "16 x 16, 1 warp", "dtype": "fp16"}
        row["instructions"] = multiplying_instructions(capability, DTYPE, tile)
        yield row | measured("product", partial(wmma_matmul, tile=tile), a, b)
    for name, multiply in (("Triton", matmul), ("cuBLAS", matmul_reference)):
        yield {"what": "way", "way": name, "tile": "", "dtype": "fp16"} | measured("product", multiply, a, b)
    if machine.has_bf16():
        a, b = factors(*size, torch.bfloat16)
        row = {"what": "bf16", "way": "WMMA: with the next ones under way", "tile": str(TILE), "dtype": "bf16"}
        yield row | measured("product", wmma_matmul, a, b)


def sizes(count):
    for m, n, k in SIZES[:count]:
        a, b = factors(m, n, k, DTYPE)
        best = fastest(a, b)
        row = {"what": "size", "rows": m, "columns": n, "inner": k, "dtype": "fp16"}
        row |= measured("wmma", partial(wmma_matmul, tile=best), a, b)
        row |= measured("triton", matmul, a, b) | measured("cublas", matmul_reference, a, b)
        yield row | {"tile": str(best), "triton_tile": chosen_tile(m, n, k)}


def main():
    parser = steps.script_parser(__doc__)
    told = "of how many sizes (default: all %(default)s)"
    parser.add_argument("--sizes", type=steps.at_least(1), default=len(SIZES), help=told)
    args = parser.parse_args()
    device = steps.need_gpu()
    steps.set_fp32_precision(False)
    torch.manual_seed(1)
    capability = torch.cuda.get_device_capability(device)
    compile_all(capability)
    rows = []
    for row in (row for found in (ways(capability), sizes(args.sizes)) for row in found):
        rows.append(row)
        told = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
        print(" ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    steps.write_benchmark_record(args, device, rows, size=COMPARED)


if __name__ == "__main__":
    main()
