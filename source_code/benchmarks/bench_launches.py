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


def epochs_ms(work, order, synchronize, repeats):
    """Milliseconds of epochs, each in a new order, after one that is not counted."""
    found = []
    for _ in range(repeats + 1):
        order.copy_(order[torch.randperm(len(order), device=order.device)])
        with stopwatch(synchronize) as seconds:
            work()
        found.append(1e3 * seconds[0])
    return Spread.of(found[1:])


def rows(network, compiled, batch, images, labels, repeats):
    """An epoch of main_opt6.py's training, launched both ways: a row each."""
    device = images.device
    cuda = device.type == "cuda"
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    torch.manual_seed(1)
    torch.compiler.reset()
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
    for how, work in (("one by one", epoch), ("graph", None)):
        work = work or steps.Run.captured(run, epoch)
        own = epochs_ms(work, order, synchronize, repeats)
        yield {**about, "how": how, "epoch_ms": own.median, "epoch_ms_range": [own.low, own.high], "repeats": own.n}


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

    found = []
    few = FEW * -(-len(labels) // args.batch_size)
    for batch, count, compilations in ((args.batch_size, len(labels), (False, True)), (FEW, few, (False,))):
        for network in (Net, LeanNet):
            for compiled in compilations:
                for row in rows(network, compiled, batch, images[:count], labels[:count], args.repeats):
                    found.append(row)
                    name = f"{row['network']}, {'compiled' if compiled else 'eager'}, batch {batch}, {row['how']}"
                    print(f"{name:45} {row['epoch_ms']:8.2f} ms an epoch", flush=True)
    steps.write_benchmark_record(args, device, found, data_source=digits.source)


if __name__ == "__main__":
    main()
