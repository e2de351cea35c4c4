"""A ResNet-18 on made-up JPEGs that the loader's workers decode. Somebody's own training script.

python3 images.py                          the workers keep the GPU busy
python3 images.py --fault workers          one worker has to decode them all
python3 images.py --fault augmentation     the main process changes the colours, picture by picture
"""

import argparse
import contextlib
import io

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset

FAULTS = {
    "workers": "one loader worker decodes all JPEGs",
    "augmentation": "the main process changes brightness and contrast, picture by picture, on the CPU",
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as usual


def parse_args(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    add("--batch", type=int, default=256)
    add("--size", type=int, default=224, help="pixels a side, for the network")
    add("--stored", type=int, default=160, help="pixels a side of the JPEGs")
    add("--files", type=int, default=512, help="different JPEGs; they come again")
    add("--workers", type=int, default=14)
    add("--warmup", type=int, default=12, help="steps before those that are counted or profiled")
    add("--steps", type=int, default=6)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--profile", action="store_true", help="let a profiler capture the steps after the warm-up")
    add("--no-ranges", action="store_true", help="no NVTX ranges")
    args = parser.parse_args(words)
    if args.fault == "workers":
        args.workers = 1
    return args


class Pictures(Dataset):
    """Ten classes of soft colours with noise in them, each a JPEG in memory."""

    def __init__(self, args, samples):
        generator = torch.Generator().manual_seed(1)
        colours = torch.rand(10, 3, 6, 6, generator=generator)
        self.files, self.samples = [], samples
        for number in range(args.files):
            soft = F.interpolate(colours[number % 10][None], args.stored, mode="bicubic")[0]
            noisy = soft + 0.05 * torch.randn(soft.shape, generator=generator)
            file = io.BytesIO()
            pixels = (noisy.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        number %= len(self.files)
        pixels = np.array(Image.open(io.BytesIO(self.files[number])))
        return torch.from_numpy(pixels[:, :: 1 - 2 * (number % 2)].copy()).permute(2, 0, 1), number % 10


def recoloured(images):
    """Each picture a little brighter or darker, with more or less contrast."""
    changed = []
    for image in images:
        image = image.float()
        contrast, brightness = 0.8 + 0.4 * torch.rand(1), 40 * torch.rand(1) - 20
        changed.append(((image - image.mean()) * contrast + image.mean() + brightness).clamp(0, 255).byte())
    return torch.stack(changed)


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


def make_loader(args):
    data = Pictures(args, args.batch * (args.warmup + args.steps))
    return DataLoader(data, args.batch, num_workers=args.workers, pin_memory=args.device == "cuda", drop_last=True)


def train(args):
    """Losses of all steps."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet18(num_classes=10).to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    mean, std = (torch.tensor(values, device=args.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    batches = iter(make_loader(args))

    def train_step():
        with named(args, "data"):
            images, labels = next(batches)
        if args.fault == "augmentation":
            images = recoloured(images)
        with named(args, "copy"):
            images, labels = images.to(args.device, non_blocking=True), labels.to(args.device, non_blocking=True)
        with named(args, "forward"), torch.autocast(args.device, torch.bfloat16):
            images = F.interpolate((images / 255 - mean) / std, args.size).to(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(images), labels)
        with named(args, "backward"):
            loss.backward()
        with named(args, "optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    losses = [train_step() for _ in range(args.warmup)]
    with captured(args):
        losses += [train_step() for _ in range(args.steps)]
    return [float(loss) for loss in losses]


def main():
    losses = train(parse_args())
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")


if __name__ == "__main__":
    main()
