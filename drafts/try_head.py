"""Do the two kernels around fc1 compute what they should, and how fast? On a Hopper: python drafts/try_head.py

Reads MNIST from LAB_DATA_DIR. Each stage runs in a process of its own, for a minute at most: a kernel that hangs takes
nothing else with it. One stage alone: python drafts/try_head.py backward (or head, alone, step).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "source_code"))

import torch

from labkit.kernels import hopper, hopper_fc1
from labkit.kernels.adadelta import adadelta
from labkit.kernels.beside import beside
from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.head import head, head_reference
from labkit.kernels.hopper_fc1 import fc1_backward, fc1_head
from labkit.kernels.weights import Weights
from labkit.training import data, steps
from labkit.training.model import Net
from labkit.training.run import Run

SECONDS = 60  # a stage
SIZES = 1024, 1000, 96, 7, 1
SMALL = "fc1.bias", "fc2.weight", "fc2.bias"
BATCH, ROUNDS, LAUNCHES = 1024, 3, 20
DEVICE = torch.device("cuda")
NAN = float("nan")


class Case:
    """Numbers such as come out of the convolutions, and such as come back to fc1's outputs."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(count)
        self.weights = Weights(Net().to(DEVICE))
        self.pooled = torch.randn(count, 12, 12, 64, device=DEVICE).relu().bfloat16()
        self.labels = torch.randint(10, (2000,), device=DEVICE)
        self.order = torch.randperm(2000, device=DEVICE)[:count]
        self.back = (1e-3 * torch.randn(count, 128, device=DEVICE)).bfloat16()
        self.seeds = torch.randint(2**62, (3,), device=DEVICE)
        self.losses = torch.zeros(3, device=DEVICE)
        self.weight = self.weights.copies["fc1.weight"]
        self.gradients = self.weights.gradients

    def small(self) -> list[torch.Tensor]:
        return [self.gradients[name].clone() for name in SMALL]

    def head(self, seeds: torch.Tensor | None, step: int, new: bool = True) -> torch.Tensor:
        self.weights.flat_gradients.zero_()
        self.losses.zero_()
        if new:
            return fc1_head(self.pooled, self.labels, self.order, self.weights, self.losses, seeds, step)
        linear = self.pooled.flatten(1) @ self.weight.t()
        return head(linear, self.labels, self.order, self.weights, self.losses, seeds, step)


class Poisoned:
    """While in here, what is allocated is full of NaN, and followed by NaN that nobody may overwrite."""

    def __enter__(self) -> Poisoned:
        self.kept, self.real = [], (torch.empty, torch.empty_like)
        torch.empty = lambda *shape, dtype, device: self.made(torch.Size(shape), dtype, device)
        torch.empty_like = lambda one: self.made(one.shape, one.dtype, one.device)
        return self

    def made(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        whole = torch.full((shape.numel() + 4096,), NAN, dtype=dtype, device=device)
        self.kept.append((whole, shape.numel()))
        return whole[: shape.numel()].view(shape)

    def __exit__(self, *_: object) -> None:
        torch.empty, torch.empty_like = self.real
        torch.cuda.synchronize()
        for whole, length in self.kept:
            if whole[:length].isnan().any():
                print("    NOT ALL WRITTEN, OR NaN", flush=True)
            if not whole[length:].isnan().all():
                print("    WRITTEN BEYOND THE END", flush=True)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def try_backward() -> None:
    for count in SIZES:
        case, kept = Case(count), []
        before = case.gradients["fc2.bias"].fill_(5)  # lies before fc1's in memory
        for _ in range(4):
            case.gradients["fc1.weight"].fill_(NAN)
            with Poisoned():
                upstream = fc1_backward(case.pooled, case.back, case.weights)
            kept.append((upstream, case.gradients["fc1.weight"].clone()))
        upstream, gradient = kept[0]
        back, pooled = case.back.double(), case.pooled.double().flatten(1)
        exact = back @ case.weight.double()
        same = all(torch.equal(one, other) for pair in kept[1:] for one, other in zip(kept[0], pair, strict=True))
        rounded = error(upstream.flatten(1), exact.bfloat16())
        print(
            f"N {count:5}: upstream {error(upstream.flatten(1), exact):.1e} (against FP64 rounded {rounded:.1e}), "
            f"gradient {error(gradient, back.t() @ pooled):.1e}, always the same {same}, "
            f"nothing beside it {bool((before == 5).all()) and not case.weights.square_average.any()}",
            flush=True,
        )


def try_head() -> None:
    for count in SIZES:
        case = Case(count)
        others = [case.weights.values[name].detach().double() for name in SMALL]
        linear = case.pooled.double().flatten(1) @ case.weight.double().t()
        near = (linear + others[0]).abs() < 1e-2  # here ReLU may differ
        for seeds in (None, case.seeds):
            step = 1
            with Poisoned():
                back = case.head(seeds, step)
            found = [case.losses[step].clone(), back, *case.small()]
            keep = None if seeds is None else back != 0
            expected = head_reference(linear, *others, case.labels[case.order], keep)
            errors = [error(one, other) for one, other in zip(found, expected, strict=True)]
            same = all(torch.equal(back, case.head(seeds, step)) for _ in range(3))
            old = case.head(seeds, step, new=False)
            today = [case.losses[step].clone(), old, *case.small()]
            before = [error(one, other) for one, other in zip(today, expected, strict=True)]
            masks = int((((back != 0) != (old != 0)) & ~near).sum())
            each = zip(("loss", "back", *SMALL), errors, before, strict=True)
            print(
                f"N {count:5} {'dropout' if seeds is not None else '       '}:",
                *(f"{name} {one:.1e} ({other:.1e})" for name, one, other in each),
                f"back always the same {same}, mask differs {masks}",
                flush=True,
            )
    print("in brackets: as it is today")


def graph_us(work: Callable[[], object], launches: int = LAUNCHES) -> float:
    """Microseconds of one of so many in a graph, the median of 15."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            work()
    return event_us(graph.replay, launches)


def event_us(launch: Callable[[], object], per: int, repeats: int = 15) -> float:
    for _ in range(3):
        launch()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / per)
    return statistics.median(times)


def active_clusters(name: str, size: int, threads: int, cluster: int) -> None:
    """How many clusters of a kernel the GPU runs at once: the head's 16 should all run."""
    from cuda.bindings import driver

    made = hopper.kernel(name, size, False, hopper_fc1.FILES)
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
    config.gridDimX, config.gridDimY, config.gridDimZ = 128, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.attrs, config.numAttrs = size, [attribute], 1
    answer = driver.cuOccupancyMaxActiveClusters(made.function, config)
    print(
        f"{name}: {made.registers} registers, {made.shared_bytes} + {size} bytes of shared memory, "
        f"clusters of {cluster} at once: {answer}",
        flush=True,
    )


def try_alone() -> None:
    for facts in (
        ("fc1_head", hopper_fc1.HEAD_BYTES, hopper_fc1.HEAD_THREADS, hopper_fc1.HEAD_CLUSTER),
        ("fc1_backward", hopper_fc1.BACKWARD_BYTES, hopper_fc1.BACKWARD_THREADS, hopper_fc1.BACKWARD_CLUSTER),
    ):
        try:
            active_clusters(*facts)
        except Exception:
            traceback.print_exc(limit=-1)
    case = Case(BATCH)
    flat, gradient = case.pooled.flatten(1), case.gradients["fc1.weight"]
    arguments = case.labels, case.order, case.weights, case.losses, case.seeds, 1

    def weight_gradient():
        product_in_fp32(case.back.t(), flat, gradient)

    def data_gradient():
        return case.back @ case.weight

    def both():
        weight_gradient()
        return data_gradient()

    works = {
        "today: weight gradient": weight_gradient,
        "today: data gradient": data_gradient,
        "today: both": both,
        "fc1_backward": lambda: fc1_backward(case.pooled, case.back, case.weights),
        "today: linear": lambda: flat @ case.weight.t(),
        "today: linear and head": lambda: head(flat @ case.weight.t(), *arguments),
        "fc1_head": lambda: fc1_head(case.pooled, *arguments),
    }
    for turn in range(2):
        for name, work in works.items():
            print(f"{turn} {name:24} {graph_us(work):7.2f} µs", flush=True)


def train(new_head: bool, new_backward: bool) -> Callable[..., None]:
    """main_opt8's, with one of both kernels, both, or neither."""

    def steps_of_an_epoch(run, weights, images, labels, order, seeds, lr, losses):
        copy, gradient = weights.copies, weights.gradients
        losses.zero_()
        for step, batch in enumerate(order.split(BATCH)):
            pooled, winner = hopper.conv_forward(images, batch, weights, seeds, step)
            flat = pooled.flatten(1)
            if new_head:
                back = fc1_head(pooled, labels, batch, weights, losses, seeds, step)
            else:
                back = head(flat @ copy["fc1.weight"].t(), labels, batch, weights, losses, seeds, step)
            if new_backward:
                upstream = fc1_backward(pooled, back, weights)
            else:
                product_in_fp32(back.t(), flat, gradient["fc1.weight"])
                upstream = (back @ copy["fc1.weight"]).view_as(pooled)
            with beside(run.device, adadelta, weights, lr, weights.overwritten):
                hopper.conv_backward(images, batch, weights, upstream, winner)
            adadelta(weights, lr, weights.added)

    return steps_of_an_epoch


class Epoch:
    """A graph of 59 steps, begun anew each time it is made."""

    def __init__(self, digits: data.Digits, work: Callable[..., None]) -> None:
        torch.manual_seed(1)
        images, labels = digits.train.data.to(DEVICE), digits.train.targets.to(DEVICE)
        net = Net().to(DEVICE)
        self.weights, lr = Weights(net), torch.tensor(1.0, device=DEVICE)
        order = torch.randperm(len(labels)).to(DEVICE)
        self.steps = -(-len(labels) // BATCH)
        self.losses = torch.zeros(self.steps, device=DEVICE)
        seeds = torch.randint(2**62, (self.steps,)).to(DEVICE)
        run = SimpleNamespace(device=DEVICE)

        def eager(order=order):
            work(run, self.weights, images, labels, order, seeds, lr, self.losses)

        eager(order[: BATCH + len(order) % BATCH])
        self.launch = Run.captured(SimpleNamespace(cuda=True), eager)
        self.weights.load(net)
        self.launch()
        self.loss = float(self.losses[-10:].mean())


def try_step() -> None:
    digits = data.read_mnist(Path(os.environ["LAB_DATA_DIR"]))
    names = {
        "before": (False, False),
        "fc1_backward": (False, True),
        "fc1_head": (True, False),
        "both": (True, True),
    }
    epochs = {name: Epoch(digits, train(*which)) for name, which in names.items()}
    found = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name, epoch in epochs.items():
            found[name].append(event_us(epoch.launch, epoch.steps, 10))
    for name, times in found.items():
        print(f"{name:14}", *(f"{time:7.1f}" for time in times), f"µs a step, loss {epochs[name].loss:.4f}", flush=True)
    for name in ("before", "both"):
        timeline(name, epochs[name].launch)


def timeline(name: str, launch: Callable[[], object]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        launch()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memset", "gpu_memcpy")
    gpu = sorted((one for one in events if one.get("cat") in kinds), key=lambda one: one["ts"])
    starts = [n for n, one in enumerate(gpu) if one["name"] == "conv_forward"]
    print(f"{name}, step 10: begin, duration")
    for one in gpu[starts[10] : starts[11] + 1]:
        begin = one["ts"] - gpu[starts[10]]["ts"]
        print(f"    {begin:8.1f} {one['dur']:7.1f} {one['name'][:60]} {one['args'].get('grid')}", flush=True)


STAGES = {"backward": try_backward, "head": try_head, "alone": try_alone, "step": try_step}


def main() -> None:
    if len(sys.argv) > 1:
        steps.set_fp32_precision(False)
        print(sys.argv[1], "on", torch.cuda.get_device_name(), flush=True)
        STAGES[sys.argv[1]]()
        return
    for name in STAGES:
        try:
            ended = subprocess.run([sys.executable, __file__, name], timeout=SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            ended = "not within a minute: it hangs"
        print(f"{name}: ended with {ended}\n", flush=True)


if __name__ == "__main__":
    main()
