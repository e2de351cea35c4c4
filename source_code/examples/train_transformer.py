"""A language model of GPT-2's size, as one writes it at first; each flag is a mend. Of the course it needs nothing.

python3 train_transformer.py                            as it was
python3 train_transformer.py --amp --fused --compile    mended
"""

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


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
    add("--amp", action="store_true", help="BF16 where it is safe (autocast)")
    add("--fused", action="store_true", help="AdamW as a few kernels for all parameters")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--log-every", type=int, default=1, metavar="N", help="read the loss each N steps")
    add("--batch", type=int, default=8)
    add("--length", type=int, default=512, help="tokens a sample")
    add("--dim", type=int, default=768)
    add("--heads", type=int, default=12)
    add("--layers", type=int, default=12)
    add("--vocabulary", type=int, default=32768)
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


class Sentences(Dataset):
    """Made-up text: each token follows from the one before it, but for a tenth that are drawn."""

    def __init__(self, args):
        self.length, self.vocabulary, self.samples = (
            args.length,
            args.vocabulary,
            args.batch * (args.warmup + args.steps),
        )

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        first = torch.randint(self.vocabulary, (1,), generator=generator)
        tokens = (first + torch.arange(self.length + 1) * 7) % self.vocabulary
        drawn = torch.rand(tokens.shape, generator=generator) < 0.1
        return torch.where(drawn, torch.randint(self.vocabulary, tokens.shape, generator=generator), tokens)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        samples, length, dim = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(samples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, length, dim))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words, self.places = nn.Embedding(args.vocabulary, args.dim), nn.Embedding(args.length, args.dim)
        self.blocks = nn.Sequential(*(Block(args.dim, args.heads) for _ in range(args.layers)))
        self.norm, self.head = nn.LayerNorm(args.dim), nn.Linear(args.dim, args.vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


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
    with torch.device(args.device):
        model = Model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.fused or None)
    forward = torch.compile(model) if args.compile else model
    loader = DataLoader(Sentences(args), args.batch, num_workers=2)
    batches = watched(loader, args.warmup, args.steps) if args.profile else loader
    losses = []
    for step, batch in enumerate(batches):
        batch = batch.to(args.device)
        with named(args, "forward"), torch.autocast(args.device, torch.bfloat16, enabled=args.amp):
            logits = forward(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
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
