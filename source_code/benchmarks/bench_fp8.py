"""Benchmark: FP8 against BF16: products by size, what the casts cost, and layers forward and back (lab 23).

Products are cuBLAS's, by ``torch._scaled_mm`` and ``torch.mm``. Layers are taken as PyTorch runs them and compiled;
``torchao``'s layers too, where that library is installed. Times are of the GPU, by CUDA events, from a call's first
kernel to its last, waits for the CPU between them included: a short call shows its launches.
"""

import gc
from functools import partial

import torch
from torch import nn

from labkit.display.spread import Spread
from labkit.kernels.float8 import E4M3, product, quantised, relative_error, to_float8
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.number_types import missing

REFUSALS = (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError, AttributeError)
LAYERS, REPEATS = 4, 11
FULL = {"products": (512, 1024, 2048, 4096, 8192, 16384), "checked": 4096, "rows": 8192}
FULL |= {"widths": (256, 512, 1024, 2048, 4096, 8192), "compiled": (1024, 4096, 8192), "library": (8192,)}
TINY = {"products": (32, 64), "checked": 64, "rows": 32, "widths": (16, 32), "compiled": (), "library": (16,)}


def times(work, device):
    """Seconds of one call, REPEATS times (twice on a CPU)."""
    if device.type == "cuda":
        return gpu_times(work, REPEATS)
    seconds = []
    for _ in range(2):
        with stopwatch() as own:
            work()
        seconds += own
    return seconds


def measured(row, build, device):
    """The row with its times; where a call is refused, with what the library said."""
    try:
        work, more = build()
        own = Spread.of([1e6 * one for one in times(work, device)])
    except REFUSALS as refused:
        return row | {"refused": (str(refused).strip() or type(refused).__name__).splitlines()[0][:200]}
    return row | more | {"us": own.median, "low_us": own.low, "high_us": own.high}


# --- products -----------------------------------------------------------------------------------------------


def products(sizes, device):
    """Square products: ``size``, ``how``, times, and at one size the error against FP64."""
    for size in sizes["products"]:
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        exact = a.double() @ b.double().t() if size == sizes["checked"] else None
        for how in ("bf16", "fp8", "fp8 exact sums", "fp8 row-wise"):
            row = {"what": "product", "size": size, "how": how}
            yield measured(row, partial(multiplication, how, a, b, exact), device)


def multiplication(how, a, b, exact):
    """A call that works out ``a @ b.T``, and its error where ``exact`` is given; FP8 numbers are made beforehand."""
    if how == "bf16":
        work = partial(torch.mm, a, b.t())
    else:
        by_row = how == "fp8 row-wise"
        (a8, scale_a), (b8, scale_b) = quantised(a, E4M3, by_row), quantised(b, E4M3, by_row)
        work = partial(product, a8, b8.t(), scale_a, scale_b.t() if by_row else scale_b, torch.bfloat16)
        work = partial(work, fast=how != "fp8 exact sums")
    return work, {} if exact is None else {"error": relative_error(work(), exact)}


def casts(sizes, device):
    """What it takes to make FP8 numbers of a BF16 matrix: as PyTorch runs it, and compiled."""
    for size in sizes["products"]:
        x = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        for how in ("eager", "compiled") if size in sizes["compiled"] else ("eager",):
            row = {"what": "cast", "size": size, "how": how}
            yield measured(row, partial(casting, how, x), device)


def casting(how, x):
    return partial(compiled(quantised) if how == "compiled" else quantised, x, E4M3), {}


def compiled(work):
    """A fresh compilation, for the sizes that come."""
    torch.compiler.reset()
    return torch.compile(work, dynamic=False)


# --- layers -------------------------------------------------------------------------------------------------


def layers(sizes, device):
    """Linear layers and GELU, forward and back, by ``width`` and ``how``; weights in BF16, no optimizer."""
    for width in sizes["widths"]:
        hows = ["bf16", "fp8"]
        hows += ["bf16 compiled", "fp8 compiled"] if width in sizes["compiled"] else []
        hows += ["torchao compiled" if device.type == "cuda" else "torchao"] if width in sizes["library"] else []
        for how in hows:
            row = {"what": "layers", "width": width, "rows": sizes["rows"], "how": how}
            yield measured(row, partial(network, how, width, sizes["rows"], device), device)
            gc.collect()


def network(how, width, rows, device):
    """A call that goes forward and back through the layers; error of its result and peak memory of one call."""
    torch.manual_seed(1)
    linear = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    model = nn.Sequential(*[part for layer in linear for part in (layer, nn.GELU())]).to(device, torch.bfloat16)
    x = torch.randn(rows, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    plain = model(x).detach()
    if "fp8" in how:
        to_float8(model)
    if "torchao" in how:
        model = by_torchao(model, emulate=device.type == "cpu")
    if "compiled" in how:
        model = compiled(model)

    def work():
        for one in (x, *model.parameters()):
            one.grad = None
        result = model(x)
        result.backward(gradient)
        return result

    more = {"error": relative_error(work(), plain)}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        work()
        more["peak_bytes"] = torch.cuda.max_memory_allocated()
    return work, more


def by_torchao(model, emulate):
    """The same model with the layers of ``torchao.float8``; ImportError where it is not installed."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig(emulate=emulate))


# --- the record ---------------------------------------------------------------------------------------------


def told(row):
    """A row as a line of text."""
    name = f"{row['what']:8} {row.get('size', row.get('width')):5} {row['how']:16}"
    if "refused" in row:
        return f"{name} refused: {row['refused']}"
    error = f", error {row['error']:.2g}" if "error" in row else ""
    memory = f", {row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
    return f"{name} {row['us']:9.1f} µs ({row['low_us']:.1f}–{row['high_us']:.1f}){error}{memory}"


def torchao_version():
    try:
        import torchao
    except ImportError:
        return None
    return torchao.__version__


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    sizes, rows = TINY if args.tiny else FULL, []
    steps.set_fp32_precision(tf32=False)
    lacks_fp8 = "fp8" in missing(device)
    torch.manual_seed(1)
    for part in (products, casts, layers):
        for row in part(sizes, device):
            rows.append(row)
            print(told(row), flush=True)
    more = {"layers": LAYERS, "torchao": torchao_version(), "has_fp8": not lacks_fp8}
    steps.write_benchmark_record(args, device, rows, **more)


if __name__ == "__main__":
    main()
