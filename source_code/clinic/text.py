"""A small language model on made-up text. Somebody's own training script; --fault plants one mistake in it.

python3 text.py                     in BF16, the GPU busy
python3 text.py --fault item        as it was written by somebody who wants to see every gradient's norm
"""

import argparse
import contextlib
import gc

import torch
import torch.nn.functional as F
from torch import nn

FAULTS = {
    "fp32": "everything in FP32, TF32 off",
    "odd": "a vocabulary of 50,257 and a hidden layer of odd width",
    "item": "a hook reads the norm of each gradient with .item() in every step",
    "anomaly": "set_detect_anomaly was left on",
    "nvtx": "emit_nvtx was left on: a range for every operator, with shapes",
    "optimizer": "the optimizer goes through the parameters in a loop",
    "recompile": "compiled for fixed shapes, and each third step brings text of a length that is new",
    "gc": "many Python objects are kept, and gc.collect() goes through them in every step",
}


class Block(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        samples, length, dim = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(samples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(samples, length, dim))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self, vocabulary, dim, heads, layers, hidden, length):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden) for _ in range(layers)))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.words(tokens) + self.places(places)))


def parse_args(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    add("--batch", type=int, default=32)
    add("--length", type=int, default=512, help="tokens a sample")
    add("--dim", type=int, default=2048)
    add("--heads", type=int, default=16)
    add("--layers", type=int, default=4)
    add("--vocabulary", type=int, default=32768)
    add("--lr", type=float, default=3e-4)
    add("--warmup", type=int, default=5, help="steps before those that are counted or profiled")
    add("--steps", type=int, default=5)
    add("--compile", action="store_true", help="torch.compile the model")
    add("--backend", default="inductor", help="of torch.compile")
    add("--objects", type=int, default=3_000_000, help="Python objects that --fault gc keeps")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--profile", action="store_true", help="let a profiler capture the steps after the warm-up")
    add("--no-ranges", action="store_true", help="no NVTX ranges")
    args = parser.parse_args(words)
    if args.fault == "odd":
        args.vocabulary = 50257 if args.vocabulary == 32768 else args.vocabulary + 1
    return args


def sentences(args, length, generator):
    """A batch of made-up text: each token follows from the one before it, but for some that are drawn."""
    first = torch.randint(args.vocabulary, (args.batch, 1), generator=generator)
    tokens = (first + torch.arange(length + 1) * 7) % args.vocabulary
    drawn = torch.rand(tokens.shape, generator=generator) < 0.1
    return torch.where(drawn, torch.randint(args.vocabulary, tokens.shape, generator=generator), tokens)


def named(args, name):
    on = args.device == "cuda" and not args.no_ranges
    return torch.cuda.nvtx.range(name) if on else contextlib.nullcontext()


def operators_named(args):
    on = args.device == "cuda" and args.fault == "nvtx"
    return torch.autograd.profiler.emit_nvtx(on, record_shapes=True)


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


def make(args):
    """Model and optimizer."""
    torch.manual_seed(0)
    hidden = 4 * args.dim + (args.fault == "odd")
    with torch.device(args.device):
        model = Model(args.vocabulary, args.dim, args.heads, args.layers, hidden, args.length)
    if args.fault != "fp32":
        model = model.to(torch.bfloat16)
    if args.compile or args.fault == "recompile":
        model = torch.compile(model, backend=args.backend, dynamic=False)
    how = {"foreach": False, "fused": False} if args.fault == "optimizer" else {"fused": True}
    return model, torch.optim.AdamW(model.parameters(), lr=args.lr, **how)


def train(args):
    """Losses of the steps after the warm-up."""
    model, optimizer = make(args)
    generator = torch.Generator().manual_seed(1)
    batches = []
    for step in range(args.warmup + args.steps):
        after = step - args.warmup
        is_new = args.fault == "recompile" and after >= 0 and after % 3 == 0
        batch = sentences(args, args.length - 8 * (1 + after // 3) if is_new else args.length, generator)
        batches.append(batch.pin_memory() if args.device == "cuda" else batch)
    torch.autograd.set_detect_anomaly(args.fault == "anomaly")
    kept = [[number] for number in range(args.objects)] if args.fault == "gc" else []
    norms = []
    for parameter in model.parameters() if args.fault == "item" else ():
        parameter.register_post_accumulate_grad_hook(lambda parameter: norms.append(parameter.grad.norm().item()))

    def train_step(batch):
        with named(args, "data"):
            batch = batch.to(args.device, non_blocking=True)
        with named(args, "forward"):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        with named(args, "backward"):
            loss.backward()
        with named(args, "optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if args.fault == "gc":
            gc.collect()
        return loss.detach()

    with operators_named(args):
        losses = [train_step(batch) for batch in batches[: args.warmup]]
        with captured(args):
            losses += [train_step(batch) for batch in batches[args.warmup :]]
    del kept
    return [float(loss) for loss in losses]


def main():
    args = parse_args()
    print("losses", " ".join(f"{loss:.2f}" for loss in train(args)))


if __name__ == "__main__":
    main()
