"""Benchmark: a step of the optimizer in three makes, in a small and a large network, with and without a loss scaler.

One kernel a parameter and operation, one for all parameters (``foreach``), or the whole step in one (``fused``). Which
calls wait for the GPU is asked of PyTorch's profiler.
"""

import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from labkit.training import steps, text
from labkit.training.model import Net

MAKES = {  # name → class, and what it is made with
    "Adadelta, one by one": (torch.optim.Adadelta, {"foreach": False}),
    "Adadelta, foreach": (torch.optim.Adadelta, {"foreach": True}),
    "Adam, one by one": (torch.optim.Adam, {"foreach": False}),
    "Adam, foreach": (torch.optim.Adam, {"foreach": True}),
    "Adam, fused": (torch.optim.Adam, {"fused": True}),
}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
READS = "aten::_local_scalar_dense"  # a number that Python reads off a tensor; off the GPU, it waits for it
STEP = "optimizer step"
WARM_UP, REPEATS, ROUNDS = 5, 20, 3
FULL, TINY = {"width": 1024, "depth": 12}, {"width": 16, "depth": 2}


def networks(sizes):
    """Name → a network, on the CPU."""
    width, depth = sizes["width"], sizes["depth"]
    return {
        "digits": Net(),
        "transformer": text.Transformer(width, depth, max(1, width // 64), length=64),
    }


def stepping(model, make, scaled, device):
    """A call that takes a step of the optimizer, gradients given; with ``scaled`` as ``GradScaler`` takes it."""
    kind, flags = MAKES[make]
    optimizer = kind(model.parameters(), lr=1e-6, **flags)
    if not scaled:
        return optimizer.step
    scaler = torch.amp.GradScaler(device.type)
    scaler.scale(torch.ones((), device=device))  # makes the scale's tensor, as a loss does

    def step():
        scaler.step(optimizer)
        scaler.update()

    return step


def timed(step, synchronize):
    """Seconds until a step's call is back, and until the GPU has done it."""
    synchronize()
    start = time.perf_counter()
    step()
    back = time.perf_counter()
    synchronize()
    return back - start, time.perf_counter() - start


def asked(step, device, synchronize):
    """What the profiler sees of one step: kernels, their µs, calls that wait for the GPU, numbers that are read."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    synchronize()
    with profile(activities=activities) as profiler:
        with record_function(STEP):
            step()
        synchronize()
    on_gpu, on_cpu = [], []
    for event in profiler.events():
        (on_cpu if event.device_type == torch.autograd.DeviceType.CPU else on_gpu).append(event)
    (whole,) = (event.time_range for event in on_cpu if event.name == STEP)
    inside = [event.name for event in on_cpu if whole.start <= event.time_range.start < whole.end]
    kernels = [event.time_range.elapsed_us() for event in on_gpu if not event.name.startswith(("Mem", STEP))]
    told = {"kernels": len(kernels), "gpu_us": sum(kernels), "waits": sum(name in WAITS for name in inside)}
    return (told if device.type == "cuda" else dict.fromkeys(told)) | {"reads": inside.count(READS)}


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.manual_seed(1)
    rows = []
    for network, model in networks(TINY if args.tiny else FULL).items():
        model.to(device)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        count, tensors = sum(one.numel() for one in model.parameters()), len(list(model.parameters()))
        print(f"{network}: {count:,} parameters in {tensors} tensors")
        found = {(make, scaled): stepping(model, make, scaled, device) for make in MAKES for scaled in (False, True)}
        seconds = {key: [] for key in found}
        for step in found.values():
            for _ in range(WARM_UP):
                step()
        for _ in range(ROUNDS):  # in turn
            for key, step in found.items():
                seconds[key] += [timed(step, synchronize) for _ in range(REPEATS)]
        for (make, scaled), step in found.items():
            back, done = ([1e6 * one[at] for one in seconds[make, scaled]] for at in (0, 1))
            row = {"network": network, "parameters": count, "tensors": tensors, "optimizer": make, "scaler": scaled}
            row |= asked(step, device, synchronize)
            rows.append(row | {"call_us": back, "step_us": done})
            ms = " ms, ".join(f"{statistics.median(one) / 1e3:.2f}" for one in (back, done))
            more = f"{row['kernels']} kernels, {row['waits']} waits, {row['reads']} reads"
            print(f"  {make:21} {'scaled' if scaled else '':6}: {ms} ms, {more}")
    steps.write_benchmark_record(args, device, rows, repeats=ROUNDS * REPEATS)


if __name__ == "__main__":
    main()
