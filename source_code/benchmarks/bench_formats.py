"""Benchmark: a small transformer trained in nine formats, from FP32 down to FP8 products and BF16 weights (lab 23).

What it learns is a made language, of which the smallest possible loss is known: ``labkit.training.text``. All formats
begin at the same weights and see the same sequences, seed by seed, and each sequence once.
"""

import math
from statistics import median

import torch
import torch.nn.functional as F

from labkit.kernels.bf16_adamw import BF16AdamW
from labkit.kernels.float8 import to_float8
from labkit.training import steps
from labkit.training.clock import stopwatch
from labkit.training.number_types import missing
from labkit.training.text import SUCCESSORS, VOCABULARY, Transformer, sequences

WIDTH, DEPTH, HEADS, LENGTH = 128, 2, 4, 32
TESTED, COUNTED = 1024, 2**17  # sequences: of the test; of two symbols each, that are counted
TEST_SEED = 1000  # no training has it
BATCH, ITERATIONS, LR = 64, 300, 2e-3
KEEP_EVERY, TIMED = 10, 20  # iterations: between two kept losses; at the end, of which each is timed by itself
# Variant → autocast's type, optimizer's way of keeping BF16 weights, other needs: TF32, FP8 layers, a scaler.
VARIANTS = {
    "fp32": (None, None, ""),
    "tf32": (None, None, "tf32"),
    "fp16 autocast": (torch.float16, None, "scaler"),
    "bf16 autocast": (torch.bfloat16, None, ""),
    "fp8 linear": (torch.bfloat16, None, "fp8"),
    "bf16 AdamW": (None, "torch", ""),
    "bf16 nearest": (None, "nearest", ""),
    "bf16 stochastic": (None, "stochastic", ""),
    "bf16 master": (None, "master", ""),
}
NEEDS = {"tf32": {"tf32"}, "fp8 linear": {"fp8", "bf16"}, "fp16 autocast": set(), "fp32": set()}  # the others: BF16


class Trial:
    """One training: a model in its format, its optimizer, its scaler; ``step`` takes a batch of sequences."""

    def __init__(self, variant, seed, device, iterations):
        self.autocast_type, way, more = VARIANTS[variant]
        steps.set_fp32_precision(more == "tf32")
        torch.manual_seed(seed)
        self.model = Transformer(WIDTH, DEPTH, HEADS, LENGTH).to(device)
        if more == "fp8":
            to_float8(self.model, but=("head",))
        if way:
            self.model.bfloat16()
        usual = way in (None, "torch")
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, LR) if usual else BF16AdamW(parameters, way, LR)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, iterations)
        self.scaler = torch.amp.GradScaler(device.type, enabled=more == "scaler")
        self.first_scale = self.scaler.get_scale()

    def loss(self, batch):
        kind = self.autocast_type
        with torch.autocast(batch.device.type, kind or torch.bfloat16, enabled=kind is not None):
            logits = self.model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()

    def unchanged(self, batch):
        """A step like any other: its loss, and the share of the weights with a gradient that it left as they were."""
        own = list(self.model.parameters())
        before = [one.detach().clone() for one in own]
        loss = self.step(batch)
        moved = [(one.grad != 0, one == old) for one, old in zip(own, before, strict=True)]
        due = sum(int(due.sum()) for due, _ in moved)
        return loss, sum(int((due & same).sum()) for due, same in moved) / max(1, due)

    def bytes(self):
        """Bytes of weights, of gradients, and of all that the optimizer keeps beside them."""
        weights = sum(one.numel() * one.element_size() for one in self.model.parameters())
        if isinstance(self.optimizer, BF16AdamW):
            kept = self.optimizer.state_bytes()
        else:
            states = [value for state in self.optimizer.state.values() for value in state.values()]
            kept = sum(one.numel() * one.element_size() for one in states if one.dim())
        return {"weight_bytes": weights, "gradient_bytes": weights, "state_bytes": kept}


def chances():
    """With which chance does each symbol follow each other one? ``(VOCABULARY, VOCABULARY)``, in whole quarters."""
    known = sequences(COUNTED, 2, seed=0)  # each symbol comes first some 500 times
    pairs = torch.bincount(known[:, 0] * VOCABULARY + known[:, 1], minlength=VOCABULARY**2)
    counts = pairs.view(VOCABULARY, VOCABULARY).double()
    return (SUCCESSORS * counts / counts.sum(dim=1, keepdim=True)).round() / SUCCESSORS


@torch.no_grad()
def tested(trial, symbols, possible):
    """Mean loss in nats a symbol, and the share of guesses, in per cent, that may follow where they were made."""
    parts = symbols.split(256)
    loss = sum(float(trial.loss(part)) * len(part) for part in parts) / len(symbols)
    kind = trial.autocast_type
    right = 0
    for part in parts:
        with torch.autocast(symbols.device.type, kind or torch.bfloat16, enabled=kind is not None):
            guess = trial.model(part[:, :-1]).argmax(dim=-1)
        right += int(possible[part[:, :-1], guess].sum())
    return loss, 100 * right / symbols[:, 1:].numel()


def train(variant, seed, test_set, possible, iterations, batch):
    """One training; its row of the record."""
    device = test_set.device
    train_set = sequences(iterations * batch, LENGTH + 1, seed).to(device).split(batch)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    trial = Trial(variant, seed, device, iterations)
    losses, unchanged, seconds = [], [], []
    watched = {iterations // 10, iterations // 2, iterations - TIMED - 1}
    for iteration, symbols in enumerate(train_set):
        if iteration in watched:
            loss, share = trial.unchanged(symbols)
            unchanged.append({"iteration": iteration, "share": round(share, 5)})
        elif iteration < iterations - TIMED:
            loss = trial.step(symbols)
        else:
            with stopwatch(synchronize) as own:
                loss = trial.step(symbols)
            seconds += own
        losses.append(loss)
    row = {"variant": variant, "seed": seed, "step_ms": 1e3 * median(seconds), "unchanged": unchanged} | trial.bytes()
    if device.type == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    row["losses"] = [number(value) for value in torch.stack(losses).float().tolist()[::KEEP_EVERY]]
    row["skipped"] = skipped_steps(trial)
    loss, right = tested(trial, test_set, possible)
    return row | {"test_loss": number(loss), "possible_pct": round(right, 3)}


def skipped_steps(trial):
    """How many steps the scaler left out, each of which halved its scale (it grows after 2,000); None without one."""
    return round(math.log2(trial.first_scale / trial.scaler.get_scale())) if trial.scaler.is_enabled() else None


def number(value):
    """As a record holds it; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def not_here(variant, device):
    return NEEDS.get(variant, {"bf16"}) & missing(device)


def main():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s; a CPU takes an hour")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help="default: all")
    add("--seeds", type=steps.at_least(1), default=6, help="trainings in each format (default: %(default)s)")
    add("--iterations", type=steps.at_least(1), default=ITERATIONS, help="default: %(default)s")
    add("--batch-size", type=steps.at_least(1), default=BATCH, help="default: %(default)s")
    args = parser.parse_args()
    device = steps.need_gpu() if args.device == "cuda" else steps.pick_device(args.device)
    chance, test_set = chances(), sequences(TESTED, LENGTH + 1, seed=TEST_SEED)
    least = -float(chance[test_set[:, :-1], test_set[:, 1:]].log().mean())  # nats a symbol, for who knows the chances
    test_set, possible = test_set.to(device), (chance > 0).to(device)
    variants, rows = [name for name in args.variants if not not_here(name, device)], []
    train(variants[0], 0, test_set, possible, 2 * TIMED, args.batch_size)  # libraries start, and are not measured
    for seed in range(1, args.seeds + 1):
        for variant in variants:
            row = train(variant, seed, test_set, possible, args.iterations, args.batch_size)
            rows.append(row)
            shares = ", ".join(f"{100 * one['share']:.0f} %" for one in row["unchanged"])
            ends = f"{row['test_loss'] - least:.4f} nats above the least, {row['possible_pct']:.2f} % possible"
            print(f"seed {seed}, {variant:16}: {ends}; {row['step_ms']:.2f} ms a step; unchanged {shares}", flush=True)
    steps.write_benchmark_record(args, device, rows, least_loss=number(least))


if __name__ == "__main__":
    main()
