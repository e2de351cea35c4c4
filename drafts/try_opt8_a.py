"""Are main_opt8's new kernels right, and how fast are they? On one Hopper GPU; each stage fails alone.

    python3 wt-a-try.py BEFORE/source_code AFTER/source_code [--quick] [--cpu]

Each of the two runs in a process of its own (twice, in turn, for the times). --cpu: what runs without a GPU, small.
Stages of one process: checks, step, times, timeline, and for AFTER variants.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", choices=["before", "after"])
    parser.add_argument("--stages", default="checks,step,times,timeline,variants")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one round of times instead of two")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


args = arguments()


def parent():
    results = {}
    rounds = [("before", "checks,step,times,timeline"), ("after", "checks,step,times,timeline,variants")]
    if not args.quick and not args.cpu:
        rounds += [("before", "times"), ("after", "times")]
    for which, stages in rounds:
        print(f"==== {which}: {stages}", flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            words = [sys.executable, __file__, str(args.before), str(args.after), "--only", which]
            words += ["--stages", stages, "--out", file.name, *(["--cpu"] if args.cpu else [])]
            try:
                subprocess.run(words, timeout=280)
                found = json.loads(Path(file.name).read_text() or "{}")
            except Exception as error:  # noqa: BLE001
                print(f"{which}: {error!r}")
                found = {}
        for key, value in found.items():
            results.setdefault(key, {}).setdefault(which, []).append(value)
    print("\n==== µs, before | after (each round)")
    for key, by in results.items():
        told = [" ".join(f"{one:8.1f}" for one in by.get(which, [])) or "       –" for which in ("before", "after")]
        print(f"{key:44} {told[0]:>18} | {told[1]:>18}")


if args.only is None:
    parent()
    sys.exit()

folder = args.before if args.only == "before" else args.after
sys.path.insert(0, str(folder.resolve()))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import main_opt8  # noqa: E402
from labkit.kernels import hopper  # noqa: E402
from labkit.kernels.adadelta import adadelta, adadelta_reference  # noqa: E402
from labkit.kernels.conv1 import conv1_relu_reference  # noqa: E402
from labkit.kernels.conv2 import (  # noqa: E402
    conv1_gradient_reference, conv2_pool_reference, conv2_weight_gradient_reference,
)
from labkit.kernels.fp32_out import product_in_fp32  # noqa: E402
from labkit.kernels.head import head, head_reference  # noqa: E402
from labkit.kernels.weights import Weights  # noqa: E402
from labkit.training import data, steps  # noqa: E402
from labkit.training.model import Net  # noqa: E402
from labkit.training.run import Run  # noqa: E402

assert Path(main_opt8.__file__).resolve().parent == folder.resolve(), main_opt8.__file__
NEW = (folder / "labkit/kernels/parts.py").exists()
if NEW:
    from labkit.kernels import beside as beside_module
    from labkit.kernels import parts as parts_module
    from labkit.kernels.beside import beside
    from labkit.kernels.parts import product_in_parts
CUDA = torch.cuda.is_available() and not args.cpu
DEVICE = torch.device("cuda" if CUDA else "cpu")
SIZES = [1024, 96, 1] if CUDA else [9, 1]
BATCH = 1024 if CUDA else 16
LENGTH = 60_000 if CUDA else 40
HEAD = ("fc1.bias", "fc2.weight", "fc2.bias")
found: dict[str, float] = {}
stages = args.stages.split(",")
steps.set_fp32_precision(False)
digits = data.read_bundled()
IMAGES, LABELS = digits.train.data[:LENGTH].to(DEVICE), digits.train.targets[:LENGTH].to(DEVICE)


@contextlib.contextmanager
def guarded(name):
    try:
        yield
        if CUDA:
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001
        print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        traceback.print_exc(limit=-3)


def error(one, other):
    one, other = one.detach().double().cpu(), other.detach().double().cpu()
    return float((one - other).norm() / other.norm().clamp_min(1e-300))


def say(name, value, bound):
    print(f"{'pass' if value < bound else 'FAIL'}  {name:58} {value:9.2e}  (bound {bound:.0e})", flush=True)


def net_without_dropout():
    torch.manual_seed(3)
    net = Net()
    net.dropout1.p = net.dropout2.p = 0.0
    return net


def run_of(batch):
    return SimpleNamespace(args=SimpleNamespace(batch_size=batch), device=DEVICE, cuda=CUDA)


def captured(work):
    return Run.captured(SimpleNamespace(cuda=CUDA), work)


# ---- checks: every kernel against FP64 ----


def check(count):
    torch.manual_seed(5)
    weights = Weights(Net().to(DEVICE))
    value, copy, gradient = weights.values, weights.copies, weights.gradients
    narrow = weights.flat_copies.dtype
    order = torch.randperm(len(IMAGES))[:count].to(DEVICE)
    seeds = torch.randint(2**62, (2,)).to(DEVICE)
    first = [value[name].double() for name in ("conv1.weight", "conv1.bias")]
    second = [copy["conv2.weight"].double(), value["conv2.bias"].double()]
    with guarded(f"conv {count}"):
        hidden = conv1_relu_reference(IMAGES, order, *first)
        pooled, winner = hopper.conv_forward(IMAGES, order, weights)
        expected, expected_winner = conv2_pool_reference(hidden, *second)
        say(f"conv_forward, {count}", error(pooled, expected), 4e-3)
        say(f"conv_forward's winners, {count}", float((winner != expected_winner).double().mean()), 1e-2)
        upstream = torch.randn(count, 12, 12, 64).to(DEVICE, narrow)
        names, bounds = ("conv2.weight", "conv2.bias", "conv1.weight", "conv1.bias"), (5e-3, 1e-5, 8e-2, 8e-2)
        weights.flat_gradients.fill_(1)
        hopper.conv_backward(IMAGES, order, weights, upstream, winner, 1.0)
        expected = [
            *conv2_weight_gradient_reference(hidden, upstream.double(), winner, 1.0),
            *conv1_gradient_reference(IMAGES, order, hidden, upstream.double(), winner, second[0], 1.0),
        ]
        for name, one, bound in zip(names, expected, bounds):
            say(f"conv_backward, {name}, {count}", error(gradient[name] - 1, one), bound)
    a = torch.randn(count, 9216, device=DEVICE).to(narrow)
    exact = a.double() @ copy["fc1.weight"].double().t()
    linear = exact.to(narrow)
    if NEW:
        with guarded(f"parts {count}"):
            for _ in range(3):  # poisoned each time: every number is written
                del linear
                torch.full((32, count, 128), float("nan"), device=DEVICE)
                linear = product_in_parts(a, copy["fc1.weight"])
                say(f"product_in_parts, {count}", error(linear.double().sum(0), exact), 1e-5)
    whole = linear.double().sum(0) if linear.dim() == 3 else linear.double()
    for drop in (None, seeds):
        with guarded(f"head {count}"):
            losses = torch.zeros(2, device=DEVICE)
            weights.flat_gradients.zero_()
            back = head(linear, LABELS, order, weights, losses, drop, 1)
            keep = None if drop is None else back != 0
            parameters = [value[name].double() for name in HEAD]
            loss, *expected = head_reference(whole, *parameters, LABELS[order], keep)
            words = f"{'with' if keep is not None else 'without'} dropout, {count}"
            # Dropped where alive is read off the gradient: of one sample a unit can have none by chance.
            say(f"head, loss, {words}", abs(float(losses[1] - loss)) / float(loss), 1e-2)
            for name, one, other in zip(("back", *HEAD), [back, *(gradient[name] for name in HEAD)], expected):
                say(f"head, {name}, {words}", error(one, other), 1e-2)
    with guarded(f"fc1 gradients {count}"):
        back = torch.randn(count, 128, device=DEVICE).to(narrow)
        product_in_fp32(back.t(), a, gradient["fc1.weight"])
        say(f"fc1's weight gradient, {count}", error(gradient["fc1.weight"], back.double().t() @ a.double()), 1e-5)


def check_adadelta():
    weights = Weights(Net().to(DEVICE))
    rate = torch.tensor(0.7, device=DEVICE)
    everything = [[]] if not NEW else [[slice(None)], [weights.overwritten, weights.added]]
    for parts in everything:
        for _ in range(2):
            weights.flat_gradients.normal_(0, 1e-2)
            state = weights.flat_values, weights.flat_gradients, weights.square_average, weights.delta_average
            expected = adadelta_reference(*(one.double() for one in state), 0.7)
            for part in parts or [None]:
                adadelta(weights, rate, *([] if part is None else [part]))
            now = weights.flat_values, weights.square_average, weights.delta_average
            say(f"adadelta, {len(parts)} parts", max(error(a, b) for a, b in zip(now, expected)), 1e-5)
            emptied = weights.flat_gradients[weights.added] if NEW else weights.flat_gradients
            say("adadelta empties", float(emptied.abs().max()), 1e-30)
            say("adadelta's copies", error(weights.flat_copies, weights.flat_values), 1e-2)


def check_step(count):
    """A whole step's change of each parameter against PyTorch in FP64, launched and out of a graph."""
    images, labels = IMAGES[:count], LABELS[:count]
    exact = net_without_dropout().double()
    before = {name: one.detach().clone() for name, one in exact.named_parameters()}
    optimizer = torch.optim.Adadelta(exact.parameters(), lr=1.0)
    F.nll_loss(exact((images.cpu().double()[:, None] / 255 - 0.1307) / 0.3081), labels.cpu()).backward()
    optimizer.step()
    change = {name: one.detach() - before[name] for name, one in exact.named_parameters()}
    weights = Weights(net_without_dropout().to(DEVICE))
    order, losses, lr = torch.arange(count, device=DEVICE), torch.zeros(1, device=DEVICE), torch.tensor(1.0).to(DEVICE)

    kept = main_opt8.conv_backward
    main_opt8.conv_backward = lambda *given: kept(*given, kept=1.0)

    def one_step():
        main_opt8.train(run_of(count), weights, images, labels, order, None, lr, losses)

    try:
        one_step()  # compiles
        launch = captured(one_step)
        for how, step in (("launched", one_step), ("in a graph", launch)):
            weights.load(net_without_dropout().to(DEVICE))
            step()
            after = net_without_dropout().to(DEVICE)
            weights.store(after)
            worst = max(
                (error(one.detach().cpu().double() - before[name], change[name]), name)
                for name, one in after.named_parameters()
            )
            say(f"a step {how}, {count}: worst is {worst[1]}", worst[0], 1e-1)
    finally:
        main_opt8.conv_backward = kept


# ---- step: an epoch in a graph ----


class Epoch:
    """What an epoch reads and writes; a graph of it by ``launch``."""

    def __init__(self, train=None):
        torch.manual_seed(1)
        self.net = Net().to(DEVICE)
        self.weights = Weights(self.net)
        self.lr = torch.tensor(1.0, device=DEVICE)
        self.order = torch.randperm(len(LABELS)).to(DEVICE)
        self.losses = torch.zeros(-(-len(LABELS) // BATCH), device=DEVICE)
        self.seeds = torch.randint(2**62, (len(self.losses),)).to(DEVICE)
        self.train = train or main_opt8.train

    def eager(self, order=None):
        order = self.order if order is None else order
        self.train(run_of(BATCH), self.weights, IMAGES, LABELS, order, self.seeds, self.lr, self.losses)

    def graph(self):
        self.eager(self.order[: BATCH + len(self.order) % BATCH])
        launch = captured(self.eager)
        self.weights.load(self.net)
        return launch


def gpu_us(launch, per, repeats=15):
    if not CUDA:
        launch()
        return 0.0
    for _ in range(3):
        launch()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / per)
    return statistics.median(times)


def epoch_stage():
    epoch = Epoch()
    launch = epoch.graph()
    runs = []
    for how in ("graph", "graph", "eager"):
        epoch.weights.load(epoch.net)
        (epoch.eager if how == "eager" else launch)()
        runs.append((how, epoch.losses.clone(), epoch.weights.flat_values.clone()))
    losses = [float(run[1][-10:].mean()) for run in runs]
    print(f"loss of the epoch's last ten steps: graph {losses[0]:.4f} {losses[1]:.4f}, eager {losses[2]:.4f}")
    first = [float((run[1][:3] - runs[2][1][:3]).abs().max()) for run in runs[:2]]
    say("first three losses, graph against eager", max(first), 5e-3)
    say("finite", 0.0 if all(bool(run[2].isfinite().all()) for run in runs) else 1.0, 0.5)
    found["step (a graph of an epoch / 59)"] = gpu_us(launch, len(epoch.losses))
    print(f"step {found['step (a graph of an epoch / 59)']:.1f} µs", flush=True)


# ---- times: each kernel, 59 in a graph ----


def times_stage():
    torch.manual_seed(1)
    weights = Weights(Net().to(DEVICE))
    copy, gradient = weights.copies, weights.gradients
    order, lr = torch.arange(BATCH, device=DEVICE), torch.tensor(1e-3, device=DEVICE)
    seeds, losses = torch.ones(1, dtype=torch.int64, device=DEVICE), torch.zeros(1, device=DEVICE)
    pooled, winner = hopper.conv_forward(IMAGES, order, weights, seeds, 0)
    flat, weight = pooled.flatten(1), copy["fc1.weight"]
    linear = flat @ weight.t()
    back = head(linear, LABELS, order, weights, losses, seeds, 0)
    upstream = (back @ weight).view_as(pooled)
    works = {
        "conv_forward": lambda: hopper.conv_forward(IMAGES, order, weights, seeds, 0),
        "conv_backward": lambda: hopper.conv_backward(IMAGES, order, weights, upstream, winner),
        "fc1, cuBLAS in BF16 (with its reduction)": lambda: flat @ weight.t(),
        "head of BF16": lambda: head(linear, LABELS, order, weights, losses, seeds, 0),
        "fc1 + head, cuBLAS": lambda: head(flat @ weight.t(), LABELS, order, weights, losses, seeds, 0),
        "fc1's weight gradient": lambda: product_in_fp32(back.t(), flat, gradient["fc1.weight"]),
        "fc1's data gradient": lambda: back @ weight,
        "adadelta, all": lambda: adadelta(weights, lr),
    }
    if NEW:
        parts = product_in_parts(flat, weight)

        def together():
            with beside(DEVICE, adadelta, weights, lr, weights.overwritten):
                hopper.conv_backward(IMAGES, order, weights, upstream, winner)

        works |= {
            "fc1 in parts": lambda: product_in_parts(flat, weight),
            "head of parts": lambda: head(parts, LABELS, order, weights, losses, seeds, 0),
            "fc1 + head, in parts": lambda: head(
                product_in_parts(flat, weight), LABELS, order, weights, losses, seeds, 0
            ),
            "adadelta, fc1.weight": lambda: adadelta(weights, lr, weights.overwritten),
            "adadelta, the rest": lambda: adadelta(weights, lr, weights.added),
            "conv_backward, adadelta beside it": together,
        }
    for name, work in works.items():
        with guarded(name):
            work()
            count = 59 if CUDA else 1
            launch = captured(lambda work=work, count=count: [work() for _ in range(count)] and None)
            found[name] = gpu_us(launch, count, 7)
            print(f"{name:44} {found[name]:8.1f} µs", flush=True)


# ---- timeline: what ran when, in one replay ----


def timeline_stage():
    from torch.profiler import ProfilerActivity, profile

    epoch = Epoch()
    launch = epoch.graph()
    launch()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        launch()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        prof.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    by = {}
    for event in kernels:
        key = event["name"][:44] + (" (long)" if event["name"] == "_adadelta" and event["args"]["grid"][0] > 100 else "")
        by.setdefault(key, []).append(event["dur"])
    for name, durations in by.items():
        print(f"  {name:52} {len(durations):4} x {statistics.median(durations):7.1f} µs")
    busy, end = 0.0, 0.0
    for event in kernels:
        begin, stop = event["ts"], event["ts"] + event["dur"]
        busy, end = busy + max(0.0, stop - max(begin, end)), max(end, stop)
    span = end - kernels[0]["ts"]
    print(f"  span {span / 59:.1f} µs a step, busy {busy / 59:.1f}, gaps {(span - busy) / 59:.1f}")
    print("  the tenth step, begin and duration in µs after conv_forward's begin:")
    starts = [n for n, e in enumerate(kernels) if e["name"] == "conv_forward"]
    for event in kernels[starts[10] : starts[11]]:
        where = f"grid {event['args'].get('grid')}, stream {event['args'].get('stream')}"
        where += f", priority {event['args'].get('priority')}"
        print(f"    {event['ts'] - kernels[starts[10]]['ts']:8.1f} {event['dur']:7.1f}  {event['name'][:50]:50} {where}")


# ---- variants: AFTER with one thing otherwise ----


def train_variant(kind):
    """main_opt8.train with the order of fc1's gradients and the optimizer otherwise."""

    def train(run, weights, images, labels, order, seeds, lr, losses):
        copy, gradient = weights.copies, weights.gradients
        losses.zero_()
        for step, batch in enumerate(order.split(run.args.batch_size)):
            pooled, winner = main_opt8.conv_forward(images, batch, weights, seeds, step)
            flat = pooled.flatten(1)
            linear = flat @ copy["fc1.weight"].t() if kind == "cuBLAS forward" else product_in_parts(flat, copy["fc1.weight"])
            back = head(linear, labels, batch, weights, losses, seeds, step)
            of_weight = product_in_fp32, back.t(), flat, gradient["fc1.weight"]
            if kind == "weight gradient beside data gradient":
                with beside(run.device, *of_weight):
                    upstream = (back @ copy["fc1.weight"]).view_as(pooled)
            elif kind == "data gradient beside weight gradient":
                upstream = torch.empty_like(pooled)
                out = upstream.view(len(upstream), -1)
                with beside(run.device, lambda out=out, back=back: torch.mm(back, copy["fc1.weight"], out=out)):
                    of_weight[0](*of_weight[1:])
            else:
                of_weight[0](*of_weight[1:])
                upstream = (back @ copy["fc1.weight"]).view_as(pooled)
            if kind == "no branch":
                hopper.conv_backward(images, batch, weights, upstream, winner)
                adadelta(weights, lr)
            elif kind == "adadelta launched first":
                here, branch = torch.cuda.current_stream(), beside_module._branch(torch.cuda.current_device())
                branch.wait_stream(here)
                with torch.cuda.stream(branch):
                    adadelta(weights, lr, weights.overwritten)
                hopper.conv_backward(images, batch, weights, upstream, winner)
                here.wait_stream(branch)
                adadelta(weights, lr, weights.added)
            elif kind == "higher":
                here, higher = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
                higher.wait_stream(here)
                with torch.cuda.stream(higher):
                    hopper.conv_backward(images, batch, weights, upstream, winner)
                adadelta(weights, lr, weights.overwritten)
                here.wait_stream(higher)
                adadelta(weights, lr, weights.added)
            elif isinstance(kind, tuple):
                with beside(run.device, walking, weights, lr, *kind):
                    hopper.conv_backward(images, batch, weights, upstream, winner)
                adadelta(weights, lr, weights.added)
            elif kind == "joined after the rest's adadelta":
                with beside(run.device, adadelta, weights, lr, weights.overwritten):
                    hopper.conv_backward(images, batch, weights, upstream, winner)
                    adadelta(weights, lr, weights.added)
            else:
                with beside(run.device, adadelta, weights, lr, weights.overwritten):
                    hopper.conv_backward(images, batch, weights, upstream, winner)
                adadelta(weights, lr, weights.added)

    return train


class Otherwise:
    """A Triton kernel started with other options."""

    def __init__(self, kernel, **options):
        self.kernel, self.options = kernel, options

    def __getitem__(self, grid):
        return lambda *given, **named: self.kernel[grid](*given, **{**named, **self.options})


@contextlib.contextmanager
def patched(owner, name, new):
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def variants_stage():
    import labkit.kernels.adadelta as adadelta_module
    import labkit.kernels.head as head_module

    def timed(name, train=None):
        with guarded(name):
            epoch = Epoch(train)
            launch = epoch.graph()
            launch()
            loss = float(epoch.losses[-10:].mean())
            found[f"step: {name}"] = gpu_us(launch, len(epoch.losses), 7)
            print(f"{name:52} {found[f'step: {name}']:8.1f} µs a step, loss {loss:.4f}", flush=True)

    for kind in (
        "as it is", "no branch", "adadelta launched first", "joined after the rest's adadelta", "cuBLAS forward",
        "weight gradient beside data gradient", "data gradient beside weight gradient",
    ):  # fmt: skip
        timed(kind, train_variant(kind))
    for count in (8, 32):  # 32: parts of 288 numbers are no whole slices of 64, but of 32
        slices = {"SLICE": 32} if count == 32 else {}
        kernel = Otherwise(parts_module._parts, **slices)
        with patched(parts_module, "PARTS", count), patched(parts_module, "_parts", kernel):
            timed(f"{count} parts")
    for options in ({"num_stages": 3}, {"num_stages": 6}, {"num_warps": 4}, {"SLICE": 32, "num_stages": 8}):
        with patched(parts_module, "_parts", Otherwise(parts_module._parts, **options)):
            timed(f"parts: {options}")
    for options in ({"num_warps": 4}, {"num_warps": 16}, {"maxnreg": 144}, {"launch_pdl": False}):
        with patched(head_module, "_head", Otherwise(head_module._head, **options)):
            timed(f"head: {options}")
    if hasattr(head_module, "starts_early"):
        with patched(head_module, "starts_early", lambda _: False), patched(parts_module, "starts_early", lambda _: False):
            timed("the head starts behind the product")
    for options in ({"num_warps": 2}, {"num_warps": 8}):
        with patched(adadelta_module, "_adadelta", Otherwise(adadelta_module._adadelta, **options)):
            timed(f"adadelta: {options}")
    one = hopper._multiprocessors
    with patched(hopper, "_blocks", lambda samples, device: min(samples, one(device))):
        timed("one block a multiprocessor")
    for spare in (6, 18):  # as on a GPU with fewer of them: nine and ten rounds
        with patched(hopper, "_multiprocessors", lambda device, spare=spare: one(device) - spare):
            timed(f"blocks as with {spare} multiprocessors less")

    # Who is placed first? The whole main line, or conv_backward alone, at a higher priority than the branch.
    with guarded("priorities"):
        graph = torch.cuda.graph
        before = graph.default_capture_stream
        graph.default_capture_stream = torch.cuda.Stream(priority=-1)
        timed("main line at a higher priority")
        timed("main line at a higher priority, adadelta launched first", train_variant("adadelta launched first"))
        graph.default_capture_stream = before
        timed("conv_backward at a higher priority", train_variant("higher"))
    # Adadelta in few programs that walk over its part: they cannot take more multiprocessors than they are.
    for programs, warps, block in ((4, 32, 8192), (4, 32, 16384), (8, 16, 4096), (16, 16, 4096), (36, 8, 2048)):
        timed(f"adadelta in {programs} programs of {warps} warps, {block} at once", train_variant((programs, warps, block)))


def walking(weights, rate, programs, warps, block):
    part = weights.overwritten
    walk_adadelta[(programs,)](
        weights.flat_values, weights.flat_copies, weights.flat_gradients, weights.square_average,
        weights.delta_average, rate, part.start, part.stop, RHO=0.9, EPS=1e-6, BLOCK=block, PROGRAMS=programs,
        num_warps=warps,
    )  # fmt: skip


if NEW and CUDA:
    import triton
    import triton.language as tl

    @triton.jit
    def walk_adadelta(
        values, copies, gradients, squares, deltas, rate, begin, end, RHO: tl.constexpr, EPS: tl.constexpr,
        BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    ):  # fmt: skip
        for first in range(begin + tl.program_id(0) * BLOCK, end, PROGRAMS * BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < end
            gradient = tl.load(gradients + at, mask=inside, other=0.0)
            square = RHO * tl.load(squares + at, mask=inside, other=0.0) + (1 - RHO) * gradient * gradient
            delta = tl.load(deltas + at, mask=inside, other=0.0)
            change = tl.sqrt(delta + EPS) / tl.sqrt(square + EPS) * gradient
            value = tl.load(values + at, mask=inside, other=0.0) - tl.load(rate) * change
            tl.store(values + at, value, mask=inside)
            tl.store(copies + at, value.to(copies.dtype.element_ty), mask=inside)
            tl.store(squares + at, square, mask=inside)
            tl.store(deltas + at, RHO * delta + (1 - RHO) * change * change, mask=inside)


if CUDA:
    print(torch.cuda.get_device_name(), "torch", torch.__version__, torch.cuda.get_device_properties(0).multi_processor_count)
if "checks" in stages:
    for size in SIZES:
        check(size)
    with guarded("adadelta"):
        check_adadelta()
    for size in (SIZES[0] if CUDA else 9, 96 if CUDA else 5, 1):
        with guarded(f"a step of {size}"):
            check_step(size)
for name, stage in (("step", epoch_stage), ("times", times_stage), ("timeline", timeline_stage), ("variants", variants_stage)):
    if name in stages and (CUDA or name in ("step", "times") or args.cpu and name == "variants" and NEW):
        print(f"-- {name}", flush=True)
        with guarded(name):
            stage()
if args.out:
    args.out.write_text(json.dumps(found))
