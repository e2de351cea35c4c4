"""Benchmark: matrix products and convolutions in sizes around multiples of 8, by type and layout (labs 12 and 13).

Every case is multiplied in each type from the same FP32 numbers. Its error is against their FP64 result, relative in
the Frobenius norm: the rounding of the inputs is in it. Times are of the GPU, by CUDA events; several calls stand in
one CUDA graph where a call is short. Which kernels ran is asked in a second pass, of PyTorch's profiler, a call each.
"""

import gc
import time
from contextlib import suppress
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from labkit.display.spread import Spread
from labkit.subjects.shapes import flops, verdict
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.number_types import missing

# Type as the labs name it → PyTorch's type, and whether FP32 products are allowed TF32. FP8: _scaled_mm's cases only.
TYPES = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
    "bf16": (torch.bfloat16, False),
}
FP8 = "fp8"
ALL_TYPES = (*TYPES, FP8)
REFUSALS = (RuntimeError, ValueError, TypeError, NotImplementedError)  # of FP8: sizes or layouts that it does not take
NOT_HERE = "not on this GPU"  # a type that its hardware does not have: PyTorch may imitate it, which is no measure
DIMENSIONS = "mnk"
REPEATS = 11
SHORT_S, GRAPH_S = 1e-4, 5e-4  # a call shorter than the first stands in a graph that lasts about the second

OFFSETS = (-64, -32, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 32, 64)
NEAR = (-16, -8, -4, -2, -1, 1, 2, 4, 8, 16)
FULL = {
    **{"large": 4096, "medium": 1024, "small": 128, "offsets": OFFSETS, "near": NEAR},
    **{"batch": 1024, "inputs": 9216, "images": 64, "pixels": 28, "widths": (192, 248, 255, 256, 257, 264, 320, 384)},
}
TINY = {
    **{"large": 32, "medium": 16, "small": 8, "offsets": (-1, 8), "near": (1,)},
    **{"batch": 2, "inputs": 16, "images": 1, "pixels": 6, "widths": (7, 8)},
}


def products(sizes):
    """The matrix products: dicts with ``m``, ``n``, ``k``, ``varied`` (which of them), ``base``, ``part``, …"""
    large, medium, small = sizes["large"], sizes["medium"], sizes["small"]

    def case(part, base, m, n, k, varied="", layout="nn", stride="tight"):
        keys = {"part": part, "base": base, "varied": varied, "layout": layout, "stride": stride}
        return {"what": "matmul", **keys, "m": m, "n": n, "k": k}

    yield case("one", large, large, large, large)
    for varied in DIMENSIONS:
        for offset in sizes["offsets"]:
            yield case("one", large, *(large + offset * (one == varied) for one in DIMENSIONS), varied=varied)
    for base, offsets in ((large, sizes["offsets"]), (medium, sizes["offsets"]), (small, sizes["near"])):
        for offset in sorted((0, *offsets)):
            yield case("all", base, *[base + offset] * 3, varied="mnk")
    # Is it the size, or the place in memory? Odd sizes in lines of even length, and an even size in odd lines.
    yield case("stride", large, large, large, large, stride="odd")
    for varied in ("n", "k"):
        for offset in (-1, 1):
            odd = [large + offset * (one == varied) for one in DIMENSIONS]
            yield case("stride", large, *odd, varied=varied, stride="padded")
    for size in (large, large - 1):
        for layout in ("nn", "nt", "tn", "tt"):
            yield case("layout", large, size, size, size, varied="mnk", layout=layout)
    # The linear layers of the MNIST net, as PyTorch multiplies them: forward, input gradient, weight gradient.
    for layer, inputs, outputs in (("fc1", sizes["inputs"], (128, 127)), ("fc2", 128, (16, 10)), ("fc2", 127, (10,))):
        for width in outputs:
            batch = sizes["batch"]
            for direction, m, n, k, layout in (
                ("forward", batch, width, inputs, "nt"),
                ("input gradient", batch, inputs, width, "nn"),
                ("weight gradient", width, inputs, batch, "tn"),
            ):
                part = f"{layer} {direction}"
                yield {**case(part, outputs[0], m, n, k, layout=layout), "width": width, "inputs": inputs}


def convolutions(sizes):
    """The 3 x 3 ones: dicts with ``layer``, ``c_in``, ``c_out``, ``size`` (pixels a side), ``padding``, ``images``."""
    batch, pixels = sizes["batch"], sizes["pixels"]
    base = {"what": "conv", "images": batch, "padding": 0}
    for c_in in (31, 32, 33, 40):
        yield {**base, "layer": "conv2", "c_in": c_in, "c_out": 64, "size": pixels - 2}
    for c_in in (1, 3, 4, 8):
        yield {**base, "layer": "first", "c_in": c_in, "c_out": 32, "size": pixels}
    for width in sizes["widths"]:
        wide = {"layer": "wide", "images": sizes["images"], "padding": 1}
        yield {**base, **wide, "c_in": width, "c_out": width, "size": pixels}


def stored(values, layout, stride="tight"):
    """``values`` in row-major (``"n"``) or column-major (``"t"``) order, one line of memory after the other.

    ``stride``: ``"tight"``, the next line begins where this one ends; ``"padded"``, at the next multiple of 64 numbers;
    ``"odd"``, after one or two numbers, so that no second line begins at a multiple of 2.
    """
    values = values if layout == "n" else values.t()
    if stride != "tight":
        rows, columns = values.shape
        length = -(-columns // 64) * 64 if stride == "padded" else columns + 1 + columns % 2
        room = values.new_zeros(rows, length)
        room[:, :columns] = values
        values = room[:, :columns]
    else:
        values = values.contiguous()
    return values if layout == "n" else values.t()


def scaled_mm(a, b, one):
    """An FP8 product with both scales 1, out in BF16."""
    return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def product_of(case, dtype, a, b):
    """A call that multiplies ``a`` and ``b`` (FP32, row-major) as the case says."""
    layouts, stride = case["layout"], case["stride"]
    if dtype == FP8:
        kind, one = torch.float8_e4m3fn, torch.ones((), device=a.device)
        return partial(scaled_mm, stored(a.to(kind), layouts[0]), stored(b.to(kind), layouts[1]), one)
    kind = TYPES[dtype][0]
    a, b = stored(a.to(kind), layouts[0], stride), stored(b.to(kind), layouts[1], stride)
    out = stored(torch.empty(len(a), b.shape[1], device=a.device, dtype=kind), "n", stride)
    return partial(torch.mm, a, b, out=out)


def prepare_products(case, device):
    """For each type: what to add to the case's row, what makes the call, and what gives the FP64 result."""
    a = torch.randn(case["m"], case["k"], device=device)
    b = torch.randn(case["k"], case["n"], device=device)
    exact = cache(lambda: a.double() @ b.double())
    for dtype in ALL_TYPES:
        if dtype != FP8 or case["part"] in ("one", "all", "layout"):
            more = {"dtype": dtype}
            if dtype == FP8 and case["part"] != "layout":
                more["layout"] = "nt"  # its second matrix has to be column-major
            yield more, partial(product_of, case | more, dtype, a, b), exact


def backward(gradient, x, weight, padding, first):
    """Gradients of a convolution without bias: of the weights, and of the input unless it is the first layer."""
    mask = [not first, True, False]
    ask = torch.ops.aten.convolution_backward
    return ask(gradient, x, weight, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1, mask)


def convolution_of(case, dtype, layout, direction, x, weight, gradient):
    """A call that convolves, or goes back, in this type and memory layout."""
    order = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    x, weight, gradient = (t.to(dtype, memory_format=order) for t in (x, weight, gradient))
    if direction == "forward":
        return partial(F.conv2d, x, weight, padding=case["padding"])
    return partial(backward, gradient, x, weight, case["padding"], case["layer"] == "first")


def prepare_convolutions(case, device):
    """The same for a convolution, in each type, memory layout and direction; backward's error is the weights'."""
    pixels = case["size"]
    x = torch.randn(case["images"], case["c_in"], pixels, pixels, device=device)
    weight = torch.randn(case["c_out"], case["c_in"], 3, 3, device=device)
    side = pixels + 2 * case["padding"] - 2
    gradient = torch.randn(case["images"], case["c_out"], side, side, device=device)
    exact = {
        direction: cache(convolution_of(case, torch.float64, "NCHW", direction, x, weight, gradient))
        for direction in ("forward", "backward")
    }
    for dtype in TYPES:
        for layout in ("NCHW", "channels_last"):
            for direction, result in exact.items():
                work = partial(convolution_of, case, TYPES[dtype][0], layout, direction, x, weight, gradient)
                yield {"dtype": dtype, "layout": layout, "direction": direction}, work, result


def times(work, device):
    """Seconds of one call, REPEATS times, and how many calls a measurement was of."""
    if device.type == "cpu":
        own = []
        for _ in range(2):
            with stopwatch() as seconds:
                work()
            own += seconds
        return own, 1
    once = min(gpu_times(work, 2))
    calls = min(50, round(GRAPH_S / once)) if once < SHORT_S else 1
    return gpu_times(work, REPEATS, calls), calls


def relative_error(result, exact):
    """‖result - exact‖ / ‖exact‖ in FP64; of a backward pass, that of the weights' gradient."""
    result, exact = (one[1] if isinstance(one, (tuple, list)) else one for one in (result, exact))
    return float((result.double() - exact).norm() / exact.norm())


def short(number):
    """Four significant digits."""
    return float(f"{number:.4g}")


def measure(cases, prepare, device):
    """A row a case and type: times, error; where a call is refused, what the library said."""
    lacking = missing(device)
    for case in cases:
        for more, build, exact in prepare(case, device):
            row = {**case, **more}
            if row["dtype"] in lacking:
                yield row | {"refused": NOT_HERE}
                continue
            steps.set_fp32_precision(row["dtype"] == "tf32")
            try:
                work = build()
                row["error"] = short(relative_error(work(), exact()))
            except REFUSALS as refused:
                if row["dtype"] != FP8:
                    raise
                yield row | {"refused": str(refused).strip().splitlines()[0]}
                continue
            own, row["calls"] = times(work, device)
            found = Spread.of([1e6 * seconds for seconds in own])
            yield row | {"us": short(found.median), "low_us": short(found.low), "high_us": short(found.high)}


def ask_kernels(cases, prepare, device):
    """For each row that ``measure`` gives, in its order: the kernels of one call, (name, µs), longest first."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    count, lacking = 0, missing(device)
    with profile(activities=activities) as profiler:
        for case in cases:
            for more, build, _ in prepare(case, device):
                steps.set_fp32_precision(more["dtype"] == "tf32")
                if more["dtype"] not in lacking:
                    with suppress(*REFUSALS):  # measure has kept what was said
                        work = build()
                        work()
                        with record_function(f"case {count}"):
                            work()
                count += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
    found = [[] for _ in range(count)]
    for event in profiler.events():
        if event.name.startswith("case ") and event.device_type == torch.autograd.DeviceType.CPU:
            own = sorted(_kernels(event), key=lambda kernel: -kernel[1])
            found[int(event.name.removeprefix("case "))] = own
    return found


def _kernels(event):
    """The kernels that the operators inside a range launched.

    Calls of CUDA's runtime stand there too; in torch 2.11, one whose number is an operator's repeats its kernels.
    """
    if event.name.startswith("aten::"):
        yield from ((kernel.name, kernel.duration) for kernel in event.kernels if not kernel.name.startswith("Mem"))
    for inner in event.cpu_children:
        yield from _kernels(inner)


def told(row, tensor_cores):
    """A row as a line of text."""
    if row["what"] == "matmul":
        words = f"{row['m']:5} x {row['n']:5} x {row['k']:5} {row['layout']} {row['stride']:6}"
    else:
        words = f"{row['layer']:5} {row['c_in']:3} -> {row['c_out']:3} {row['layout']:13} {row['direction']:8}"
    if "refused" in row:
        return f"{words} {row['dtype']}: refused: {row['refused']}"
    speed = f"{row['us']:9.1f} µs {flops(row) / row['us'] / 1e6:7.1f} TFLOP/s"
    return f"{words} {row['dtype']}: {speed}, error {row['error']:.1e}, Tensor Cores: {tensor_cores}"


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    sizes = TINY if args.tiny else FULL
    gc.freeze()  # each graph's capture may look for garbage: not among PyTorch's own objects
    rows, names = [], {}
    for what, prepare in ((products, prepare_products), (convolutions, prepare_convolutions)):
        torch.manual_seed(1)
        start = time.perf_counter()
        cases = list(what(sizes))
        found = list(measure(cases, prepare, device))
        middle = time.perf_counter()
        for row, kernels in zip(found, ask_kernels(cases, prepare, device), strict=True):
            row["kernels"] = [names.setdefault(name, len(names)) for name, _ in kernels]  # places in the list of names
            row["kernel_us"] = [round(us, 1) for _, us in kernels]
            rows.append(row)
            print(told(row, verdict(name for name, _ in kernels)))
        print(f"{what.__name__}: {middle - start:.1f} s, {time.perf_counter() - middle:.1f} s for the kernels' names")
    steps.write_benchmark_record(args, device, rows, kernels=list(names), repeats=REPEATS)


if __name__ == "__main__":
    main()
