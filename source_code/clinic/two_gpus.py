"""Two processes train one network, each on a GPU of its own (DistributedDataParallel). Somebody's own training script.

torchrun --nproc-per-node 2 two_gpus.py                    both are as fast
torchrun --nproc-per-node 2 two_gpus.py --fault loader     the second one's data come from a slow disk
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULTS = {
    "loader": "rank 1 reads its data from a slow disk",
    "backward": "rank 1 does more work in its backward pass: a hook that looks at a gradient's spectrum",
    "log": "rank 0 copies a layer's weights to the CPU and counts them into a histogram in every step",
}


def parse_args(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    add("--batch", type=int, default=4096, help="of each process")
    add("--features", type=int, default=512, help="numbers a sample")
    add("--dim", type=int, default=4096)
    add("--layers", type=int, default=12)
    add("--warmup", type=int, default=10, help="steps before those that are counted or profiled")
    add("--steps", type=int, default=8)
    add("--slow-ms", type=float, default=100, help="that --fault loader takes longer for a batch")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--profile", action="store_true", help="let a profiler capture the steps after the warm-up")
    return parser.parse_args(words)


class Vectors(Dataset):
    """Batches of noise; a sample's label is the place of the largest of its first ten numbers. The disk may be slow."""

    def __init__(self, args, rank):
        self.batches, self.shape = args.warmup + args.steps, (args.batch, args.features)
        self.noise = torch.randn(self.shape, generator=torch.Generator().manual_seed(rank)).to(torch.bfloat16)
        self.slow_s = args.slow_ms / 1e3 if args.fault == "loader" and rank == 1 else 0.0

    def __len__(self):
        return self.batches

    def __getitem__(self, number):
        time.sleep(self.slow_s)
        data = self.noise.roll(number, dims=0)
        return data, data[:, :10].argmax(dim=1)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


def look_at_spectrum(gradient):
    """Power iteration: what the hook of --fault backward does beside what is needed."""
    square = gradient @ gradient.T
    for _ in range(40):
        square = square @ square / square.norm()
    return gradient


def histogram(weight):
    return torch.histc(weight.detach().cpu().float(), bins=100)


def named(args, name):
    return torch.cuda.nvtx.range(name) if args.device == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def captured(args):
    """The steps that a profiler is to see: both processes begin and end them together."""
    cuda = args.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
        dist.barrier()
        if args.profile:
            torch.cuda.profiler.start()
    with named(args, "training"):
        yield
        if cuda:
            torch.cuda.synchronize()
    if cuda:
        dist.barrier()
        if args.profile:
            torch.cuda.profiler.stop()


def train(args, rank):
    """Losses of all steps on this rank."""
    torch.manual_seed(0)
    device = torch.device(args.device, rank) if args.device == "cuda" else torch.device("cpu")
    with device:
        layers = [Residual(args.dim) for _ in range(args.layers)]
        network = nn.Sequential(nn.Linear(args.features, args.dim), *layers, nn.Linear(args.dim, 10))
    network = network.to(torch.bfloat16)
    model = DistributedDataParallel(network, device_ids=[rank] if args.device == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if args.fault == "backward" and rank == 1:
        layers[args.layers // 2].linear.weight.register_hook(look_at_spectrum)
    loader = DataLoader(Vectors(args, rank), None, num_workers=2, pin_memory=args.device == "cuda")
    batches = iter(loader)

    def train_step():
        with named(args, "data"):
            data, target = next(batches)
            data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with named(args, "forward"):
            loss = F.cross_entropy(model(data), target)
        with named(args, "backward"):
            loss.backward()
        with named(args, "optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if args.fault == "log" and rank == 0:
            histogram(layers[0].linear.weight)
        return loss.detach()

    losses = [train_step() for _ in range(args.warmup)]
    with captured(args):
        losses += [train_step() for _ in range(args.steps)]
    return [float(loss) for loss in losses]


def main():
    args = parse_args()
    rank = int(os.environ["RANK"])
    if args.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    losses = train(args, rank)
    dist.destroy_process_group()
    print(f"rank {rank}: loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")


if __name__ == "__main__":
    main()
