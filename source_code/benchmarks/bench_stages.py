"""Benchmark: opt7's three large kernels with 1, 2, 3 stages of loads under way, 4 or 8 warps (lab 11)."""

from functools import partial
from unittest import mock

import torch

from labkit.display.spread import Spread
from labkit.kernels import conv2
from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.matmul import OutOfResources
from labkit.kernels.weights import Weights
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.model import Net

# As main_opt7.py starts them; then otherwise, and with half the positions a program, which need less shared memory.
OPTIONS = [{}, *({"num_stages": stages, "num_warps": warps} for stages in (1, 2, 3) for warps in (4, 8))]
OPTIONS += [{"num_stages": stages, "num_warps": 4, "BLOCK": 32} for stages in (1, 2, 3)]
CALLS, REPEATS = 20, 7  # calls in a graph, launches of it in a round
AGREES = 0.05  # the relative error that another order of additions may leave, and with it other winners


class Otherwise:
    """A kernel that is started with other options than its caller says; ``compiled``: what was started last."""

    def __init__(self, kernel, **options):
        self.kernel, self.options, self.compiled = kernel, options, None

    def __getitem__(self, grid):
        def start(*arguments, **named):
            self.compiled = self.kernel[grid](*arguments, **{**named, **self.options})
            return self.compiled

        return start


def calls(batch, device):
    """The three kernels by name, as a training step of main_opt7.py calls them: each returns its results."""
    torch.manual_seed(1)
    weights = Weights(Net().to(device))
    value, copy = weights.values, weights.copies
    images = torch.randint(256, (batch, 28, 28), device=device, dtype=torch.uint8)
    order, seeds = torch.randperm(batch, device=device), torch.ones(1, dtype=torch.int64, device=device)
    hidden = conv1_relu(images, order, value["conv1.weight"], value["conv1.bias"])
    pooled, winner = conv2.conv2_pool(hidden, copy["conv2.weight"], value["conv2.bias"], seeds)
    upstream = torch.randn_like(pooled)

    def of_weight():
        sums = weights.gradients["conv2.weight"], weights.gradients["conv2.bias"]
        conv2.conv2_weight_gradient(hidden, upstream, winner, *sums)
        return sums

    def of_first():
        sums = weights.gradients["conv1.weight"], weights.gradients["conv1.bias"]
        conv2.conv1_gradient(images, order, hidden, upstream, winner, copy["conv2.weight"], *sums)
        return sums

    return {
        "_conv2_pool": lambda: conv2.conv2_pool(hidden, copy["conv2.weight"], value["conv2.bias"], seeds),
        "_conv2_weight_gradient": of_weight,
        "_conv1_gradient": of_first,
    }, weights.flat_gradients


def once(work, gradients):
    """The results of a single call, which adds to nothing that was there before."""
    gradients.zero_()
    return [one.double() for one in work()]


def started(name, work, options):
    """Call ``work`` with the kernel of that name started with these options; returns its results."""
    with mock.patch.object(conv2, name, Otherwise(getattr(conv2, name), **options)) as kernel:
        return work(), kernel.compiled


def takes(kernel):
    """What a compiled kernel takes of a multiprocessor, and how it loads: nothing where none was compiled."""
    if not hasattr(kernel, "n_regs"):
        return {}
    ptx = kernel.asm["ptx"]
    ahead = ptx.count("cp.async.cg") + ptx.count("cp.async.ca") + ptx.count("cp.async.bulk.tensor")
    about = {"registers": kernel.n_regs, "spills": kernel.n_spills, "shared_bytes": kernel.metadata.shared}
    return about | {"loads_ahead": ahead, "wgmma": ptx.count("wgmma.mma_async"), "mma": ptx.count("mma.sync")}


def choices(works, gradients):
    """A row for each kernel and OPTIONS, and the call that is to be timed: none where refused."""
    for name, work in works.items():
        shipped = once(work, gradients)
        for options in OPTIONS:
            row = {"kernel": name, "shipped": not options, **options}
            try:
                gradients.zero_()
                found, kernel = started(name, work, options)
            except (OutOfResources, RuntimeError) as refused:  # too little shared memory, or the compiler gives up
                yield row | {"refused": str(refused).strip().splitlines()[0][:200]}, None
                continue
            pairs = zip(found, shipped, strict=True)
            error = max(float((one.double() - same).norm() / same.norm()) for one, same in pairs)
            assert error < AGREES, f"{name} with {options} is off by {error}"
            yield row | {"error": error} | takes(kernel), partial(started, name, work, options)


def timed(rows, device, rounds):
    """Add to each row that was not refused the µs of a call: median and range of the rounds, in turn."""
    found = [[] for _ in rows]
    for _ in range(rounds):
        for (_, work), own in zip(rows, found, strict=True):
            if work is None:
                continue
            if device.type == "cuda":
                seconds = gpu_times(work, REPEATS, CALLS)
            else:
                with stopwatch() as seconds:
                    work()
            own.append(1e6 * Spread.of(seconds).median)
    for (row, _), own in zip(rows, found, strict=True):
        if own:
            spread = Spread.of(own)
            row = row | {"us": spread.median, "range_us": [spread.low, spread.high], "rounds": spread.n}
        yield row


def told(row):
    how = "as shipped" if row["shipped"] else f"{row['num_stages']} stages, {row['num_warps']} warps"
    how += ", half" if "BLOCK" in row else ""
    if "refused" in row:
        return f"{row['kernel']:24} {how:23} refused: {row['refused']}"
    more = (f"{key} {row[key]}" for key in ("registers", "spills", "shared_bytes", "loads_ahead") if key in row)
    return f"{row['kernel']:24} {how:23} {row['us']:8.1f} µs  {', '.join(more)}"


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--batch-size", type=steps.at_least(1), default=1024, help="digits (default: %(default)s)")
    parser.add_argument("--rounds", type=steps.at_least(1), default=5, help="of all in turn (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="on a CPU too, where a kernel is its reference: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    works, gradients = calls(args.batch_size, device)
    rows = []
    for row in timed(list(choices(works, gradients)), device, args.rounds):
        rows.append(row)
        print(told(row), flush=True)
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
