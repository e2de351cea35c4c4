"""Benchmark: a matrix product in Triton, checked against FP64 and measured against cuBLAS, by size (lab 08)."""

import argparse
from functools import partial

import torch

from labkit import steps
from labkit.kernels.matmul import chosen_tile, error_bound, matmul, matmul_reference
from labkit.roofline import gpu_times, matmul_flops
from labkit.timing import Spread

# (rows, columns, inner): powers of two, sizes that no tile divides, and a forward pass of this course's fc1.
SIZES = [(n, n, n) for n in (256, 512, 1000, 1024, 2048, 4000, 4095, 4096, 4097, 8192)]
SIZES += [(1024, 128, 9216), (1021, 2039, 4093)]
REPEATS = 21


def farthest(a, b, result):
    """The largest error of the result, as a share of the bound that error_bound states."""
    error = (result.double() - a.double() @ b.double()).abs()
    return (error / error_bound(a, b)).max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="FILE", help="write the results, one JSON object, to FILE")
    args = parser.parse_args()
    device = steps.need_gpu()
    torch.manual_seed(1)
    rows = []
    for m, n, k in SIZES:
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
        row = {"rows": m, "columns": n, "inner": k, "dtype": "bf16"}
        calls = max(1, min(50, int(2e11 // (m * n * k))))  # a short product is called so often, in one graph
        for name, multiply in (("triton", matmul), ("cublas", matmul_reference)):
            row[f"{name}_error_of_bound"] = farthest(a, b, multiply(a, b))
            own = Spread.of([1e6 * seconds for seconds in gpu_times(partial(multiply, a, b), REPEATS, calls)])
            row[f"{name}_us"], row[f"{name}_range_us"] = own.median, [own.low, own.high]
            row[f"{name}_tflops"] = matmul_flops(m, n, k) / own.median / 1e6
        row |= {"tile": chosen_tile(m, n, k), "repeats": REPEATS, "calls": calls}
        rows.append(row)
        print(f"{m:5} x {n:5} x {k:5}: Triton {row['triton_tflops']:6.1f} TFLOP/s, tiles of {row['tile']:14}", end="")
        print(f" cuBLAS {row['cublas_tflops']:6.1f}; error {row['triton_error_of_bound']:.3f} of the bound")
        assert max(row["triton_error_of_bound"], row["cublas_error_of_bound"]) <= 1
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
