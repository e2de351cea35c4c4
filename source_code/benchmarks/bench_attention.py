"""Benchmark: attention by number type, length and kernel (PyTorch's, flash, cuDNN's), both passes (lab 23)."""

from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from labkit.display.spread import Spread
from labkit.kernels.float8 import relative_error
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.number_types import missing

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
FULL = {"lengths": (512, 4096), "tokens": 16384, "heads": 16, "per_head": 64}
TINY = {"lengths": (16, 32), "tokens": 64, "heads": 2, "per_head": 16}
REPEATS = 11


def flops(batch, heads, length, per_head):
    """Operations of forward and backward: two products forward, four back; what a kernel repeats is not counted."""
    return 6 * 2 * batch * heads * length**2 * per_head


def attend(kernel, q, k, v, gradient):
    """Attention of every place to every place, forward and back; the result."""
    for one in (q, k, v):
        one.grad = None
    with sdpa_kernel(kernel):
        result = F.scaled_dot_product_attention(q, k, v)
    result.backward(gradient)
    return result


def measure(sizes, device):
    """A row a length, type and kernel: times, peak memory, error against FP64 of one sequence's first head."""
    lacking = missing(device)
    for length in sizes["lengths"]:
        shape = (sizes["tokens"] // length, sizes["heads"], length, sizes["per_head"])
        torch.manual_seed(1)
        numbers = [torch.randn(shape, device=device) for _ in range(4)]
        exact = F.softmax(numbers[0][0, 0].double() @ numbers[1][0, 0].double().t() / shape[-1] ** 0.5, dim=-1)
        exact = exact @ numbers[2][0, 0].double()
        for name, dtype in TYPES.items():
            for kernel in KERNELS:
                row = {"batch": shape[0], "heads": shape[1], "length": length, "per_head": shape[3]}
                row |= {"dtype": name, "kernel": kernel}
                steps.set_fp32_precision(name == "tf32")
                if name in lacking:
                    yield row | {"refused": "not on this GPU"}
                    continue
                yield row | timed(KERNELS[kernel], [one.to(dtype) for one in numbers], exact, device, flops(*shape))


def timed(kernel, numbers, exact, device, count):
    """Times of forward and backward, or what PyTorch said against it."""
    q, k, v = (one.clone().requires_grad_() for one in numbers[:3])
    work = partial(attend, kernel, q, k, v, numbers[3])
    try:
        error = relative_error(work()[0, 0], exact)
    except RuntimeError as refused:  # no such kernel for this type, or not on this device
        return {"refused": str(refused).strip().splitlines()[0][:200]}
    more = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        more["extra_bytes"] = torch.cuda.max_memory_allocated() - before
        seconds = gpu_times(work, REPEATS)
    else:
        seconds = []
        for _ in range(2):
            with stopwatch() as own:
                work()
            seconds += own
    own = Spread.of([1e6 * one for one in seconds])
    more |= {"us": own.median, "low_us": own.low, "high_us": own.high, "tflops": count / own.median / 1e6}
    return {"error": error} | more


def told(row):
    words = f"length {row['length']:5} {row['dtype']} {row['kernel']:9}"
    if "refused" in row:
        return f"{words} refused: {row['refused']}"
    return f"{words} {row['us']:9.1f} µs, {row['tflops']:6.1f} TFLOP/s, error {row['error']:.2g}"


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    rows = []
    for row in measure(TINY if args.tiny else FULL, device):
        rows.append(row)
        print(told(row), flush=True)
    steps.write_benchmark_record(args, device, rows, repeats=REPEATS)


if __name__ == "__main__":
    main()
