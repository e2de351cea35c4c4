"""Multiply once by each rung, by Triton and by cuBLAS, each in a range of its name: for Nsight Compute (lab 29)."""

import argparse
from functools import partial

import torch
from bench_rungs import SIZE, ways

from labkit.training import ranges, steps


def count(ways, profile):
    """Start each once, by its name, to be compiled, and once more: that is counted."""

    def start_each():
        for name, work in ways.items():
            with ranges.phase(name):
                work()
        torch.cuda.synchronize()

    start_each()
    ranges.switch(profile)
    if profile:
        torch.cuda.profiler.start()
    with ranges.phase("training"):
        start_each()
    if profile:
        torch.cuda.profiler.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="bracket the products for the profiler")
    args = parser.parse_args()
    steps.need_gpu()
    a, b = (torch.randn(SIZE, SIZE, device="cuda").bfloat16() for _ in range(2))
    count({name: partial(product, a, b) for name, product in ways().items()}, args.profile)


if __name__ == "__main__":
    main()
