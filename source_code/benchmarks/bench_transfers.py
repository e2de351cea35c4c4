"""Benchmark: host-to-device copies from pageable and pinned memory, blocking and not (lab 03)."""

import time

import torch

from labkit.training import steps

SIZES_MB = (0.1, 1.0, 3.2, 32.0, 256.0)  # 3.2 MB is one batch of 1024 digits in FP32
REPEATS = 20


def measure(batch, non_blocking):
    """Seconds until .to() returns, and until the copy is done; the GPU has nothing else to do."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    on_gpu = batch.to("cuda", non_blocking=non_blocking)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    assert on_gpu.shape == batch.shape
    return returned - start, done - start


def main():
    parser = steps.script_parser(__doc__)
    args = parser.parse_args()
    device = steps.need_gpu()
    rows = []
    for size_mb in SIZES_MB:
        pageable = torch.rand(int(size_mb * 1e6) // 4)
        start = time.perf_counter()
        pinned = pageable.pin_memory()
        pin_ms = 1e3 * (time.perf_counter() - start)
        for memory, batch in (("pageable", pageable), ("pinned", pinned)):
            for non_blocking in (False, True):
                for _ in range(3):
                    measure(batch, non_blocking)
                times = [measure(batch, non_blocking) for _ in range(REPEATS)]
                returned_us = sorted(1e6 * returned for returned, _ in times)
                done_us = sorted(1e6 * done for _, done in times)
                rows.append(
                    {
                        "size_mb": size_mb,
                        "memory": memory,
                        "non_blocking": non_blocking,
                        "returned_us": returned_us[REPEATS // 2],
                        "returned_range_us": [returned_us[0], returned_us[-1]],
                        "done_us": done_us[REPEATS // 2],
                        "done_range_us": [done_us[0], done_us[-1]],
                        "first_pin_ms": pin_ms if memory == "pinned" else None,
                    }
                )
                print(f"{size_mb:6.1f} MB {memory:8} non_blocking={non_blocking!s:5}: ", end="")
                print(f"returned after {rows[-1]['returned_us']:8.1f} µs, done after {rows[-1]['done_us']:8.1f} µs")
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
