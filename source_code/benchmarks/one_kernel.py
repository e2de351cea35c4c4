"""Keep the GPU busy for some seconds: with a single thread that counts, or with large matrix products (lab 19)."""

import argparse
import time

import torch

from labkit.training import steps

SPIN_CYCLES = 10_000_000  # some 5 ms of one thread
SIZE, AT_ONCE = 8192, 20  # of the product; launches between two waits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("thread", "product"), help="one thread of one SM, or all Tensor Cores")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="bracket the work for the profiler")
    args = parser.parse_args()
    device = steps.need_gpu()
    a = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)

    def work():
        for _ in range(AT_ONCE):
            torch.cuda._sleep(SPIN_CYCLES) if args.kind == "thread" else a @ a
        torch.cuda.synchronize()

    work()
    print(f"begins: {args.kind}", flush=True)
    if args.profile:
        torch.cuda.profiler.start()
    start = time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        work()
    if args.profile:
        torch.cuda.profiler.stop()
    print(f"ends after {time.perf_counter() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
