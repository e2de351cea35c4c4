"""Benchmark: what compiling a step costs and gains: first steps, cold and warm, an epoch, the process's end (lab 08).

The step is main_opt5.py's. Each variant is a process of its own, with compilers' caches in a new folder ("cold"); one
that compiles is then a second process with these caches ("warm"). The end of a process, from its last line on, is timed
apart: processes that compile beside it have to be stopped.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from labkit.display.spread import Spread
from labkit.paths import SOURCE_CODE
from labkit.training import steps
from labkit.training.clock import stopwatch
from labkit.training.data import load_digits, normalise
from labkit.training.devices import reduced_precision
from labkit.training.model import Net

LOSS = {"what": "loss", "dynamic": False}  # model and loss in one, a compilation for each size of batch
# What is compiled, and torch.compile's arguments; threads that compile; cuDNN's own search; an epoch as a graph.
VARIANTS = {
    "eager": {},
    "eager, cudnn.benchmark": {"cudnn": True},
    "loss": LOSS,
    "loss, one thread": {**LOSS, "threads": 1},
    "loss, cudnn.benchmark": {**LOSS, "cudnn": True},
    "loss and optimizer": {**LOSS, "optimizer": True},
    "loss, fullgraph": {**LOSS, "fullgraph": True},
    "loss, any shape": {**LOSS, "dynamic": True},
    "loss, shape by shape until two differ": {**LOSS, "dynamic": None},
    "model": {**LOSS, "what": "model"},
    "block": {**LOSS, "what": "block"},
    "eager, one by one": {"graph": False},
    "loss, one by one": {**LOSS, "graph": False},
    "loss, reduce-overhead": {**LOSS, "mode": "reduce-overhead", "graph": False},
}
QUICK = ("eager", "eager, cudnn.benchmark", "loss", "loss, one thread")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Regional(Net):
    """``Net``, of which the block of convolutions is compiled alone."""

    def __init__(self, **options):
        super().__init__()
        self.block = torch.compile(self.convolutions, **options)

    def convolutions(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.dropout1(F.max_pool2d(x, 2))

    def forward(self, x):
        x = F.relu(self.fc1(self.block(x).flatten(1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def counted():
    """What torch.compile did in this process: graphs, breaks between them, compilations of what was compiled before."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    again = [one for one in get_compilation_metrics() if one.cache_size]
    reasons = Counter(str(getattr(one, "recompile_reason", None)).strip().splitlines()[-1][:200] for one in again)
    found = {"graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}
    return found | {"recompiles": len(again), "reasons": dict(reasons)}


def inside(name, batch, limit, data_dir, repeats, file):
    """Take a variant's first steps and some epochs in this process; what was measured, and the end's begin, in FILE."""
    options = dict(VARIANTS[name])
    what, optimizes, graph = options.pop("what", None), options.pop("optimizer", False), options.pop("graph", True)
    torch.backends.cudnn.benchmark = options.pop("cudnn", False)
    options.pop("threads", None)  # the environment says so already
    device = steps.pick_device("auto")
    cuda = device.type == "cuda"
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(1)
    steps.set_fp32_precision(tf32=False)
    train_set = load_digits(data_dir, limit).train
    images, labels = train_set.data.to(device), train_set.targets.to(device)

    def compiled(work, this):
        return torch.compile(work, **options, disable=not cuda) if what == this else work

    net = Regional(**options, disable=not cuda) if what == "block" else Net()
    net = net.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adadelta(net.parameters(), lr=torch.tensor(1.0, device=device), capturable=cuda)
    if optimizes:
        optimizer.step = torch.compile(optimizer.step, disable=not cuda)
    autocast = torch.autocast(device.type, getattr(torch, reduced_precision()), enabled=cuda)
    model = compiled(net, "model")

    def batch_loss(own):
        with autocast:
            output = model(normalise(images[own])).float()
        return F.nll_loss(output, labels[own])

    batch_loss = compiled(batch_loss, "loss")
    order = torch.arange(len(labels), device=device)
    losses = torch.zeros(-(-len(order) // batch), device=device)

    def epoch(order=order):
        for step, own in enumerate(order.split(batch)):
            optimizer.zero_grad()
            loss = batch_loss(own)
            loss.backward()
            optimizer.step()
            losses[step] = loss.detach()

    with stopwatch(synchronize) as first_s, steps.rehearsal(net, optimizer):
        for _ in range(3 if "mode" in options else 1):  # a mode with graphs of its own needs some calls to make them
            epoch(order[: batch + len(order) % batch])
    with stopwatch(synchronize) as capture_s:
        work = steps.Run.captured(SimpleNamespace(cuda=cuda), epoch) if graph else epoch
    times = []
    for _ in range(repeats + 1):  # the first is not counted
        with stopwatch(synchronize) as seconds:
            work()
        times.append(1e3 * seconds[0])
    found = {"first_s": first_s[0], "capture_s": capture_s[0], "epochs_ms": times[1:], "loss": losses[-1].item()}
    Path(file).write_text(json.dumps(found | counted() | {"last_line": time.time()}))


def process(name, args, folder):
    """A variant's row, from a process of its own with compilers' caches in ``folder``; refused where it fails."""
    file = Path(folder) / "found.json"
    file.unlink(missing_ok=True)
    environment = os.environ | {cache: str(Path(folder) / cache) for cache in CACHES}
    if "threads" in VARIANTS[name]:
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(VARIANTS[name]["threads"])
    words = (name, args.batch_size, args.limit, args.data_dir, args.repeats, str(file))
    lines = f"from benchmarks import bench_compiling\nbench_compiling.inside(*{words!r})"
    start = time.time()
    with tempfile.TemporaryFile("w+") as said:  # no pipe: who waits for its end waits for the processes that compile
        child = subprocess.Popen(
            [sys.executable, "-c", lines], cwd=SOURCE_CODE, env=environment, stdout=subprocess.DEVNULL, stderr=said
        )
        status, end = child.wait(), time.time()
        said.seek(0)
        errors = said.read().strip().splitlines()
    if status:
        return {"refused": (errors or [f"it ended with status {status}"])[-1][:300]}
    found = json.loads(file.read_text())
    own, last_line = Spread.of(found.pop("epochs_ms")), found.pop("last_line")
    row = {"epoch_ms": own.median, "epoch_ms_range": [own.low, own.high], "repeats": own.n, "process_s": end - start}
    return row | {"end_s": end - last_line} | found


def told(row):
    head = f"{row['variant']:38} {row['caches']:4}"
    if "refused" in row:
        return f"{head} refused: {row['refused']}"
    times = f"first steps {row['first_s']:6.2f} s, epoch {row['epoch_ms']:7.2f} ms, end {row['end_s']:5.2f} s"
    breaks = sum(row["breaks"].values())
    return f"{head} {times}, process {row['process_s']:6.2f} s; {row['graphs']} graphs, {breaks} breaks, " + (
        f"{row['recompiles']} recompiled"
    )


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"these variants only: {'; '.join(QUICK)}")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", help="these variants only")
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST lies")
    parser.add_argument("--limit", type=steps.at_least(1), help="train on the first N samples only")
    parser.add_argument("--batch-size", type=steps.at_least(1), default=1024, help="samples (default: %(default)s)")
    parser.add_argument("--repeats", type=steps.at_least(1), default=10, help="epochs of each (default: %(default)s)")
    args = parser.parse_args()
    device = steps.pick_device("auto")
    rows = []
    for name in args.only or (QUICK if args.quick else VARIANTS):
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("cold", "warm") if VARIANTS[name].get("what") else ("none",):
                rows.append({"variant": name, "caches": caches, **process(name, args, folder)})
                print(told(rows[-1]), flush=True)
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
