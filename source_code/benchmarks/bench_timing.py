"""Benchmark: one matrix product, timed wrongly and rightly (lab 01)."""

import time

import torch

from labkit.training import steps

SIZE = 4096
REPEATS = 50


def launch_only(work):
    """Seconds until the launch returns: the clock stops before the GPU has finished."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def to_the_end(work):
    """Seconds until the GPU has finished, by the CPU's clock."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def by_events(work):
    """Seconds between two events on the GPU's own clock."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def main():
    parser = steps.script_parser(__doc__)
    args = parser.parse_args()
    device = steps.need_gpu()
    steps.set_fp32_precision(tf32=False)
    a, b = torch.rand(SIZE, SIZE, device=device), torch.rand(SIZE, SIZE, device=device)

    def work():
        return a @ b

    rows = []
    cases = [
        ("first call, to the end", to_the_end, 1),
        ("launch only", launch_only, 1),
        ("launch only, 50 times", launch_only, REPEATS),
        ("to the end, 50 times", to_the_end, REPEATS),
        ("CUDA events, 50 times", by_events, REPEATS),
    ]
    for name, clock, repeats in cases:
        torch.cuda.synchronize()
        ms = sorted(1e3 * clock(work) for _ in range(repeats))
        rows.append({"timed": name, "median_ms": ms[len(ms) // 2], "low_ms": ms[0], "high_ms": ms[-1], "n": repeats})
        print(f"{name:24} {rows[-1]['median_ms']:8.3f} ms ({ms[0]:.3f}–{ms[-1]:.3f})")
    flop = 2 * SIZE**3
    steps.write_benchmark_record(args, device, rows, flop=flop)


if __name__ == "__main__":
    main()
