"""Benchmark: products with a vector or a few rows, and batches around 1,024: of one layer, and of a training step.

The cases that ``bench_shapes.py`` leaves out, measured as it does. A training step is that of the course's network
without the optimizer, whose time does not go with the batch; it stands in a CUDA graph, so that no launch is measured.
"""

import gc

import torch
import torch.nn.functional as F
from bench_shapes import REPEATS, TYPES, ask_kernels, measure, prepare_products, short, told

from labkit.display.spread import Spread
from labkit.subjects.shapes import verdict
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.model import Net
from labkit.training.number_types import missing

THIN = (1, 2, 3, 4, 8, 16)  # rows of the one matrix, or columns of the other
BATCHES = (1000, 1008, 1020, 1022, 1023, 1024, 1025, 1026, 1032)
FULL = {"wide": 4096, "thin": THIN, "batches": BATCHES, "calls": 2}
TINY = {"wide": 32, "thin": (1, 2), "batches": (3, 4), "calls": 1}
TURNS = 2  # of all types at a batch, so that what a GPU's clock does meanwhile meets all


def products(sizes):
    """The matrix products, as ``bench_shapes.products``: ``part`` is thin, or batch and the direction."""
    wide = sizes["wide"]
    common = {"what": "matmul", "base": wide, "stride": "tight"}
    for few in sizes["thin"]:
        for varied, m, n in (("m", few, wide), ("n", wide, few)):
            for layout in ("nn", "nt"):
                yield {**common, "part": "thin", "varied": varied, "layout": layout, "m": m, "n": n, "k": wide}
    yield {**common, "part": "thin", "varied": "mn", "layout": "nn", "m": 1, "n": 1, "k": wide}
    for batch in sizes["batches"]:  # a linear layer as PyTorch multiplies it
        for direction, m, k, layout in (
            ("forward", batch, wide, "nt"),
            ("input gradient", batch, wide, "nn"),
            ("weight gradient", wide, batch, "tn"),
        ):
            varied = "k" if m == wide else "m"
            yield {
                **common, "part": f"batch {direction}", "varied": varied, "layout": layout, "m": m, "n": wide, "k": k
            }  # fmt: skip


def training(batch, dtype, device):
    """A call that makes a training step of the course's network, up to the gradients, on ``batch`` digits."""
    model = Net().to(device)
    data = torch.randn(batch, 1, 28, 28, device=device)
    target = torch.randint(10, (batch,), device=device)
    kind = TYPES[dtype][0]
    autocast = torch.autocast(device.type, kind, enabled=kind != torch.float32)

    def step():
        model.zero_grad()
        with autocast:
            loss = F.nll_loss(model(data), target)
        loss.backward()

    return step


def measure_steps(sizes, device):
    """A row a batch and type: µs of a training step, over all turns."""
    lacking = missing(device)
    found = {(batch, dtype): [] for batch in sizes["batches"] for dtype in TYPES if dtype not in lacking}
    for _ in range(TURNS):
        for (batch, dtype), own in found.items():
            steps.set_fp32_precision(dtype == "tf32")
            own += times(training(batch, dtype, device), device, sizes["calls"])
    for (batch, dtype), own in found.items():
        spread = Spread.of([1e6 * seconds for seconds in own])
        us = {"us": short(spread.median), "low_us": short(spread.low), "high_us": short(spread.high)}
        yield {"what": "step", "batch": batch, "dtype": dtype, **us}


def times(step, device, calls):
    """Seconds of a training step, several times."""
    if device.type == "cpu":
        with stopwatch() as seconds:
            step()
        return seconds
    return gpu_times(step, REPEATS, calls)


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    sizes = TINY if args.tiny else FULL
    gc.freeze()  # each graph's capture may look for garbage: not among PyTorch's own objects
    torch.manual_seed(1)
    cases, names = list(products(sizes)), {}
    rows = list(measure(cases, prepare_products, device))
    for row, kernels in zip(rows, ask_kernels(cases, prepare_products, device), strict=True):
        row["kernels"] = [names.setdefault(name, len(names)) for name, _ in kernels]  # places in the list of names
        row["kernel_us"] = [round(us, 1) for _, us in kernels]
        print(told(row, verdict(name for name, _ in kernels)))
    for row in measure_steps(sizes, device):
        rows.append(row)
        print(f"step of {row['batch']:5} digits {row['dtype']}: {row['us']:9.1f} µs")
    steps.write_benchmark_record(args, device, rows, kernels=list(names), repeats=REPEATS)


if __name__ == "__main__":
    main()
