"""Multiply once by each rung, by Triton and by cuBLAS, each in a range of its name: for Nsight Compute (lab 29)."""

import argparse

import torch
from bench_rungs import SIZE, ways

from labkit.training import ranges, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="bracket the products for the profiler")
    args = parser.parse_args()
    steps.need_gpu()
    a, b = (torch.randn(SIZE, SIZE, device="cuda").bfloat16() for _ in range(2))

    def multiply():
        for name, product in ways().items():
            with ranges.phase(name):
                product(a, b)
        torch.cuda.synchronize()

    multiply()  # compiled, and nothing else is counted
    ranges.switch(args.profile)
    if args.profile:
        torch.cuda.profiler.start()
    with ranges.phase("training"):
        multiply()
    if args.profile:
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
