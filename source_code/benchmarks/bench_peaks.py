"""Benchmark: the roofs of this GPU: matrix products by type, memory bandwidth, and the cost of a launch (lab 09)."""

from functools import partial

import torch

from labkit.display.spread import Spread
from labkit.subjects.roofline import matmul_flops
from labkit.training import machine, steps
from labkit.training.clock import gpu_times

# Type as the labs name it → PyTorch's type, are FP32 products allowed TF32, sizes.
TYPES = {
    "fp32": (torch.float32, False, (2048, 4096, 8192)),
    "tf32": (torch.float32, True, (2048, 4096, 8192, 16384)),
    "fp16": (torch.float16, False, (2048, 4096, 8192, 16384)),
    "bf16": (torch.bfloat16, False, (2048, 4096, 8192, 16384)),
}
REPEATS = 21
BUFFER_GB = 4.0  # many times the L2 cache


def measured(what, work, amount, unit, calls=1, **more):
    """A row: median and range of amount / seconds, in units of 1e12 a second."""
    seconds = gpu_times(work, REPEATS, calls)
    own = Spread.of([amount / one / 1e12 for one in seconds])
    row = {"what": what, **more, unit: own.median, f"{unit}_range": [own.low, own.high], "repeats": own.n}
    row["us"] = 1e6 * Spread.of(seconds).median
    print(f"{what:8} {' '.join(map(str, more.values())):12} {own.median:8.2f} {unit} ({own.low:.2f}–{own.high:.2f})")
    return row


def main():
    parser = steps.script_parser(__doc__)
    args = parser.parse_args()
    device = steps.need_gpu()
    torch.manual_seed(1)
    rows = []
    # Random numbers: on zeros the chip draws less power, clocks higher, and shows a roof that no real work reaches.
    for name, (dtype, tf32, sizes) in TYPES.items():
        if name == "bf16" and not machine.has_bf16():
            continue  # emulated: no roof of this GPU
        steps.set_fp32_precision(tf32)
        for size in sizes:
            a, b = torch.randn(2, size, size, device=device).to(dtype)
            product, flops = partial(torch.mm, a, b, out=torch.empty_like(a)), matmul_flops(size, size, size)
            rows.append(measured("matmul", product, flops, "tflops", dtype=name, size=size))

    count = int(BUFFER_GB * 1e9) // 4
    source, target = torch.randn(count, device=device), torch.empty(count, device=device)
    total = torch.empty((), device=device)
    rows.append(measured("copy", lambda: target.copy_(source), 8 * count, "tb_per_s", size_gb=BUFFER_GB))
    rows.append(measured("read", lambda: torch.sum(source, 0, out=total), 4 * count, "tb_per_s", size_gb=BUFFER_GB))
    rows.append(measured("write", lambda: target.fill_(1.5), 4 * count, "tb_per_s", size_gb=BUFFER_GB))

    # A kernel with next to nothing to do: what is left is its launch.
    one = torch.zeros(1, device=device)
    for how, calls in (("graph", 1000), ("python", 1)):
        work = (lambda: one.add_(1)) if how == "graph" else (lambda: [one.add_(1) for _ in range(1000)])
        own = Spread.of([1e6 * seconds / (1 if calls > 1 else 1000) for seconds in gpu_times(work, REPEATS, calls)])
        rows.append({"what": "launch", "how": how, "us": own.median, "us_range": [own.low, own.high], "repeats": own.n})
        print(f"launch   {how:12} {own.median:8.2f} µs ({own.low:.2f}–{own.high:.2f})")
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
