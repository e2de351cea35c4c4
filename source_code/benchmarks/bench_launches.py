"""Benchmark: an epoch launched kernel by kernel or as one CUDA graph; each network, compiled or not (labs 07, 08)."""

import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from labkit.display.spread import Spread
from labkit.training import steps
from labkit.training.clock import stopwatch
from labkit.training.data import normalise
from labkit.training.devices import reduced_precision
from labkit.training.model import LeanNet, Net
from main_opt6 import train

FEW = 16  # digits a batch that leave the GPU next to nothing to do: an epoch of as many steps is the CPU's launches


def epoch_ms(work, order, synchronize):
    """Milliseconds of an epoch in a new order."""
    order.copy_(order[torch.randperm(len(order), device=order.device)])
    with stopwatch(synchronize) as seconds:
        work()
    return 1e3 * seconds[0]


def ways(network, compiled, batch, images, labels):
    """An epoch of main_opt6.py's training, launched both ways: of each what it is, the work, and the digits' order."""
    device = images.device
    cuda = device.type == "cuda"
    torch.manual_seed(1)
    model = network().to(device, memory_format=torch.channels_last)
    lr = torch.tensor(1.0, device=device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr, capturable=cuda)
    narrow = getattr(torch, reduced_precision())
    autocast = torch.autocast(device.type, narrow, enabled=cuda)  # slow on many a CPU

    def batch_loss(batch):
        with autocast:
            output = model(normalise(images[batch])).float()
        return F.nll_loss(output, labels[batch])

    batch_loss = torch.compile(batch_loss, dynamic=False, disable=not (cuda and compiled))
    optimizer.step = torch.compile(optimizer.step, disable=not (cuda and compiled))
    order = torch.arange(len(labels), device=device)
    losses = torch.zeros(-(-len(order) // batch), device=device)
    run = SimpleNamespace(args=SimpleNamespace(batch_size=batch), cuda=cuda)

    def epoch(order=order):
        train(run, model, batch_loss, order, optimizer, losses)

    start = time.perf_counter()
    with steps.rehearsal(model, optimizer):
        epoch(order[: batch + len(order) % batch])
    about = {"network": network.__name__, "compiled": compiled, "batch": batch, "steps": len(losses)}
    about["rehearsal_s"] = time.perf_counter() - start
    yield {**about, "how": "one by one"}, epoch, order
    yield {**about, "how": "graph"}, steps.Run.captured(run, epoch), order


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST lies")
    parser.add_argument("--limit", type=steps.at_least(1), help="train on the first N samples only")
    parser.add_argument(
        "--batch-size", type=steps.at_least(1), default=1024, help="samples a step (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=steps.at_least(1), default=10, help="epochs of each kind (default: %(default)s)"
    )
    args = parser.parse_args()
    device = steps.pick_device("auto")
    digits = steps.found_digits(args)
    steps.set_fp32_precision(tf32=False)
    images, labels = digits.train.data.to(device), digits.train.targets.to(device)

    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    few = FEW * -(-len(labels) // args.batch_size)
    made = [
        way
        for batch, count, compilations in ((args.batch_size, len(labels), (False, True)), (FEW, few, (False,)))
        for network in (Net, LeanNet)
        for compiled in compilations
        for way in ways(network, compiled, batch, images[:count], labels[:count])
    ]
    # In turn, for a CPU's pace drifts; the first round is not counted.
    rounds = [[epoch_ms(work, order, synchronize) for _, work, order in made] for _ in range(args.repeats + 1)]
    found = []
    for (about, *_), took_ms in zip(made, zip(*rounds[1:], strict=True), strict=True):
        own = Spread.of(took_ms)
        found.append(about | {"epoch_ms": own.median, "epoch_ms_range": [own.low, own.high], "repeats": own.n})
        name = f"{about['network']}, {'compiled' if about['compiled'] else 'eager'}, batch {about['batch']}"
        print(f"{name + ', ' + about['how']:45} {own.median:8.2f} ms an epoch", flush=True)
    steps.write_benchmark_record(args, device, found, data_source=digits.source)


if __name__ == "__main__":
    main()
