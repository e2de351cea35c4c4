"""A ResNet-50 on JPEGs, as one writes it at first; each flag is a mend. Of the course it needs nothing.

python3 train_resnet.py                                                       as it was
python3 train_resnet.py --workers 14 --pinned --amp --channels-last           mended
"""

import argparse
import contextlib
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))  # of ImageNet, as usual


def unwritable(name):
    """Why a file for results cannot be written, None if it can: asked before the training rather than after it."""
    file = Path(os.path.realpath(name))
    try:
        there = file.exists()
        if not name or (there and not file.is_file()):
            return "it is no file"
        file.open("a").close()
        if not there:
            file.unlink()
    except OSError as error:
        return error.strerror
    return None


def parse_args(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--workers", type=int, default=2, help="processes that decode")
    add("--pinned", action="store_true", help="pinned memory, and copies that the program does not wait for")
    add("--amp", action="store_true", help="BF16 where it is safe (autocast)")
    add("--channels-last", action="store_true", help="the layout that convolutions in 16 bits want")
    add("--log-every", type=int, default=1, metavar="N", help="read the loss each N steps")
    add("--batch", type=int, default=128)
    add("--size", type=int, default=224, help="pixels a side")
    add("--files", type=int, default=64, help="different JPEGs; they come again")
    add("--warmup", type=int, default=10, help="steps before those that are timed or profiled")
    add("--steps", type=int, default=30)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--profile", action="store_true", help="let Nsight Systems see the steps after the warm-up")
    add("--record", metavar="FILE", help="write times and losses, one JSON object, to FILE")
    args = parser.parse_args(words)
    if args.record is not None and (why := unwritable(args.record)):
        parser.error(f"argument --record: cannot write into '{args.record}': {why}")
    return args


def watched(loader, skip=10, steps=10):
    """The loader's batches; a profiler sees ``steps`` of them after the first ``skip``, and they end there."""
    batches, cuda = iter(loader), torch.cuda
    for step in range(skip + steps):
        if step == skip:
            cuda.synchronize()
            cuda.profiler.start()
            cuda.nvtx.range_push("training")
        with cuda.nvtx.range("data"):
            batch = next(batches, None)
        if batch is None:
            break
        yield batch
    cuda.synchronize()
    cuda.nvtx.range_pop()
    cuda.profiler.stop()


class Pictures(Dataset):
    """Ten classes of soft colours with noise in them, each a JPEG in memory; a sample is normalised floats."""

    def __init__(self, args):
        generator = torch.Generator().manual_seed(1)
        colours = torch.rand(10, 3, 6, 6, generator=generator)
        self.files, self.samples = [], args.batch * (args.warmup + args.steps)
        for number in range(args.files):
            soft = F.interpolate(colours[number % 10][None], args.size, mode="bicubic")[0]
            noisy = soft + 0.05 * torch.randn(soft.shape, generator=generator)
            file = io.BytesIO()
            Image.fromarray((noisy.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        number %= len(self.files)
        pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(self.files[number])))).permute(2, 0, 1)
        return (pixels / 255 - MEAN[:, None, None]) / STD[:, None, None], number % 10


def named(args, name):
    return torch.cuda.nvtx.range(name) if args.device == "cuda" else contextlib.nullcontext()


def now(args):
    """Seconds, once the GPU has done all that it was given."""
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def train(args):
    """Milliseconds a step takes after the warm-up, on average, and the losses that were read."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = torchvision.models.resnet50(num_classes=10).to(args.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(Pictures(args), args.batch, num_workers=args.workers, pin_memory=args.pinned)
    batches = watched(loader, args.warmup, args.steps) if args.profile else loader
    losses = []
    for step, (images, labels) in enumerate(batches):
        with named(args, "copy"):
            images = images.to(args.device, non_blocking=args.pinned, memory_format=layout)
            labels = labels.to(args.device, non_blocking=args.pinned)
        with named(args, "forward"), torch.autocast(args.device, torch.bfloat16, enabled=args.amp):
            loss = F.cross_entropy(model(images), labels)
        with named(args, "backward"):
            loss.backward()
        with named(args, "optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if step % args.log_every == 0:
            losses.append(loss.item())
        if step == args.warmup - 1:
            start = now(args)
    return 1e3 * (now(args) - start) / args.steps, losses


def main():
    args = parse_args()
    step_ms, losses = train(args)
    print(f"{step_ms:.2f} ms a step; loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    if args.record:
        about = {"status": "complete", "arguments": vars(args), "step_ms": step_ms, "losses": losses}
        about |= {"gpu": torch.cuda.get_device_name() if args.device == "cuda" else None, "torch": torch.__version__}
        Path(args.record).write_text(json.dumps(about | {"cpu_cores": len(os.sched_getaffinity(0))}, indent=1))


if __name__ == "__main__":
    main()
