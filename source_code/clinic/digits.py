"""A small network on made-up pictures that lie in the host's memory. Somebody's own training script.

python3 digits.py --graph           pictures on the GPU, a step is one launch of a CUDA graph
python3 digits.py --fault pageable  pictures in ordinary memory: each batch is copied by way of a staging buffer
"""

import argparse
import contextlib

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = {
    "pageable": "large batches are copied from pageable memory, and the program waits for each",
    "launch": "batches of 16: kernels so short that the GPU waits for each launch",
}


def parse_args(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    add("--batch", type=int, default=4096)
    add("--size", type=int, default=64, help="pixels a side")
    add("--hidden", type=int, default=4096)
    add("--batches", type=int, default=4, help="different ones; they come again")
    add("--warmup", type=int, default=10, help="steps before those that are counted or profiled")
    add("--steps", type=int, default=12)
    add("--graph", action="store_true", help="pictures on the GPU, a step in a CUDA graph")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--profile", action="store_true", help="let a profiler capture the steps after the warm-up")
    add("--no-ranges", action="store_true", help="no NVTX ranges")
    args = parser.parse_args(words)
    if args.fault == "launch":
        args.batch = 16
    return args


def network(args):
    """Three layers, ten classes."""
    first, second = nn.Linear(args.size**2, args.hidden), nn.Linear(args.hidden, args.hidden)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(args.hidden, 10))


def pictures(args):
    """Each class is a bar at a place of its own, in noise: (samples, 1, size, size) and labels."""
    generator = torch.Generator().manual_seed(1)
    samples = args.batch * args.batches
    labels = torch.randint(10, (samples,), generator=generator)
    images = torch.rand(samples, 1, args.size, args.size, generator=generator)
    rows = torch.arange(args.size) * 10 // args.size
    images += (rows[None, :] == labels[:, None]).float()[:, None, :, None]
    return images, labels


def named(args, name):
    on = args.device == "cuda" and not args.no_ranges
    return torch.cuda.nvtx.range(name) if on else contextlib.nullcontext()


@contextlib.contextmanager
def captured(args):
    """The steps that a profiler is to see."""
    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
        if args.profile:
            torch.cuda.profiler.start()
    with named(args, "training"):
        yield
        if cuda:
            torch.cuda.synchronize()
    if cuda and args.profile:
        torch.cuda.profiler.stop()


def graphed(args, step, images, labels):
    """The same step as one launch: captured once, with a batch at a fixed place, and replayed."""
    if args.device != "cuda":
        return step
    image, label = images[: args.batch].clone(), labels[: args.batch].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(image, label)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(image, label)

    def replay(new_image, new_label):
        image.copy_(new_image)
        label.copy_(new_label)
        graph.replay()
        return loss.clone()

    return replay


def train(args):
    """Losses of all steps."""
    torch.manual_seed(0)
    model = network(args).to(args.device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    images, labels = pictures(args)
    if args.graph:
        images, labels = images.to(args.device), labels.to(args.device)
    elif args.device == "cuda" and args.fault != "pageable":
        images, labels = images.pin_memory(), labels.pin_memory()

    def train_step(image, label):
        with named(args, "forward"):
            loss = F.cross_entropy(model(image.to(torch.bfloat16)), label)
        with named(args, "backward"):
            loss.backward()
        with named(args, "optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    step = graphed(args, train_step, images, labels) if args.graph else train_step

    def run(number):
        start = number % args.batches * args.batch
        with named(args, "copy"):
            batch = images[start : start + args.batch], labels[start : start + args.batch]
            image, label = (part.to(args.device, non_blocking=args.fault != "pageable") for part in batch)
        return step(image, label)

    losses = [run(number) for number in range(args.warmup)]
    with captured(args):
        losses += [run(args.warmup + number) for number in range(args.steps)]
    return [float(loss) for loss in losses]


def main():
    losses = train(parse_args())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")


if __name__ == "__main__":
    main()
