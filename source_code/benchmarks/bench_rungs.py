"""Benchmark: a matrix product in CUDA C++, rung by rung, beside Triton's and cuBLAS, on Hopper; in turn (lab 29).

All ways take turns, ROUNDS times, each by CUDA events around one CUDA graph of CALLS products, as bench_matmul has it:
clocks are left as they are, and each turn is short, so that they stay near their highest; Nsight Compute's counters are
not taken here. The products go round SETS pairs of factors, 64 MB each, which are more than the L2 cache holds.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
from bench_matmul import farthest

from labkit.display.spread import Spread
from labkit.kernels.matmul import matmul_reference
from labkit.kernels.rungs import RUNGS, rung_matmul
from labkit.kernels.rungs.in_triton import triton_matmul
from labkit.subjects.roofline import matmul_flops
from labkit.training import steps
from labkit.training.clock import gpu_times

SIZE = 4096
SMALL = (512, 768, 640)  # rows, columns, inner numbers: a check that no side is taken for another
SETS = 3
ROUNDS, REPEATS, CALLS = 5, 5, 12  # rounds of all ways in turn; of each, medians of repeats of so many products
SLOW_TFLOPS = 50  # below: a product takes milliseconds, and is called once
CUBLAS = "cuBLAS"


def product(multiply: Callable, pairs) -> None:
    """The next pair's."""
    multiply(*next(pairs))


def checked(name: str, multiply: Callable, sizes: tuple[int, int, int]) -> float:
    """The largest error against FP64, as a share of its bound; AssertionError beyond that."""
    m, n, k = sizes
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    error = farthest(a, b.T, multiply(a, b))
    assert error <= 1, f"{name} at {sizes} is {error} times as far off as its bound"
    return error


def tflops(multiply: Callable, pairs, repeats: int, calls: int) -> float:
    """The median rate of repeats."""
    seconds = Spread.of(gpu_times(partial(product, multiply, pairs), repeats, calls)).median
    return matmul_flops(SIZE, SIZE, SIZE) / seconds / 1e12


def ways() -> dict[str, Callable]:
    """What is compared, by name: ``a @ b.T`` of (M, K) and (N, K)."""
    found = {rung.name: partial(rung_matmul, rung=rung) for rung in RUNGS}
    return found | {"Triton": triton_matmul, CUBLAS: lambda a, b: matmul_reference(a, b.T)}


def measure(rounds: int) -> list[dict]:
    """A row a way: its error, its rates round by round, and its share of cuBLAS in the same rounds."""
    all_ways = ways()
    rows = {name: {"way": name, "tflops_rounds": []} for name in all_ways}
    for name, multiply in all_ways.items():
        rows[name]["error_of_bound"] = max(checked(name, multiply, sizes) for sizes in (SMALL, (SIZE,) * 3))
    pairs = cycle([[torch.randn(SIZE, SIZE, device="cuda").bfloat16() for _ in range(2)] for _ in range(SETS)])
    often = {name: tflops(multiply, pairs, 1, 1) > SLOW_TFLOPS for name, multiply in all_ways.items()}
    for _ in range(rounds):
        for name, multiply in all_ways.items():
            repeats, calls = (REPEATS, CALLS) if often[name] else (1, 1)
            rows[name]["tflops_rounds"].append(tflops(multiply, pairs, repeats, calls))
    for row in rows.values():
        shares = [own / theirs for own, theirs in zip(row["tflops_rounds"], rows[CUBLAS]["tflops_rounds"], strict=True)]
        rate, share = Spread.of(row["tflops_rounds"]), Spread.of(shares)
        row |= {"tflops": rate.median, "tflops_range": [rate.low, rate.high]}
        row |= {"of_cublas": share.median, "of_cublas_range": [share.low, share.high]}
    return list(rows.values())


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--rounds", type=steps.at_least(1), default=ROUNDS, help="of all ways (default: %(default)s)")
    args = parser.parse_args()
    device = steps.need_gpu()
    steps.set_fp32_precision(False)
    torch.manual_seed(1)
    rows = measure(args.rounds)
    for row in rows:
        low, high = (100 * share for share in row["of_cublas_range"])
        print(
            f"{row['way']:18}{row['tflops']:8.1f} TFLOP/s{100 * row['of_cublas']:7.1f} % of cuBLAS "
            f"({low:.1f} to {high:.1f}), error {row['error_of_bound']:.2f} of its bound"
        )
    steps.write_benchmark_record(args, device, rows, size=SIZE)


if __name__ == "__main__":
    main()
