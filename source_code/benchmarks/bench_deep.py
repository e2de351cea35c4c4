"""Benchmark: a deep plain network on the digits, where FP16 without loss scaling does not learn at all (lab 15)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from labkit.subjects.loss_scale_monitor import LossScaleMonitor
from labkit.training import steps
from labkit.training.number_types import missing

HIDDEN, WIDTH = 16, 64  # hidden layers, and their width
BATCH, ITERATIONS, LR = 1024, 150, 1e-3
KEEP_EVERY, WINDOW = 5, 20  # iterations: between two kept losses; of one window of the monitor
VARIANTS = {"fp32": None, "fp16": torch.float16, "fp16 dynamic": torch.float16, "bf16": torch.bfloat16}


def deep_net():
    """Images ``(N, 1, 28, 28)`` → ``(N, 10)``: linear layers and ReLU, as PyTorch makes them, and nothing else."""
    layers = [nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU()]
    for _ in range(HIDDEN):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def train(variant, seed, train_set, test_set, iterations, batch):
    """One training; its row of the record: losses, accuracy, what the monitor saw and said, gradients by layer."""
    images, labels = train_set
    device = images.device
    torch.manual_seed(seed)
    model = deep_net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), LR)
    autocast = torch.autocast(device.type, VARIANTS[variant] or torch.bfloat16, enabled=VARIANTS[variant] is not None)
    scaler = torch.amp.GradScaler(device.type, enabled=variant == "fp16 dynamic")
    said = []
    say = said.append if "fp16" in variant else lambda line: None  # the limits are FP16's
    monitor = LossScaleMonitor(model, scaler if scaler.is_enabled() else None, every=WINDOW, say=say)
    losses, layers = [], []
    for iteration in range(iterations):
        index = torch.randint(len(images), (batch,), device=device)
        optimizer.zero_grad()
        with autocast:
            loss = F.cross_entropy(model(images[index]), labels[index])
        scaler.scale(loss).backward()
        monitor.look()
        if iteration == 0:
            layers = by_layer(model, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    losses = torch.stack(losses).float().tolist()
    with torch.no_grad(), autocast:
        right = (model(test_set[0]).argmax(dim=1) == test_set[1]).float().mean()
    row = {"variant": variant, "seed": seed, "test_accuracy_pct": 100 * float(right), "said": said, "layers": layers}
    row["losses"] = {"net": [number(value) for value in losses[::KEEP_EVERY]]}
    last = losses[-max(1, iterations // 4) :]
    row["last_quarter"] = {"net": number(sum(last) / len(last))}
    return row | {"monitors": {"net": monitor.record()}}


def by_layer(model, scale):
    """A row a layer, from the input to the loss: its weights' largest gradient, the scale taken off, and the zeros."""
    rows = []
    for place, layer in enumerate((m for m in model if isinstance(m, nn.Linear)), 1):
        size = layer.weight.grad.abs()
        largest = float(size.max()) / scale
        rows.append({"layer": place, "largest": number(largest), "zero_share": float((size == 0).float().mean())})
    return rows


def number(value):
    """As a record holds it; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def as_numbers(digits, device):
    """Bytes ``(N, 28, 28)`` and labels as the network wants them: float32 ``(N, 1, 28, 28)`` from 0 to 1."""
    return digits.data.to(device).unsqueeze(1).float() / 255, digits.targets.to(device)


def main():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="where MNIST lies")
    add("--limit", type=steps.at_least(1), help="train on the first N digits only")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME", help="default: all")
    add("--seeds", type=steps.at_least(1), default=5, help="trainings of each variant (default: %(default)s)")
    add("--iterations", type=steps.at_least(1), default=ITERATIONS, help="default: %(default)s")
    add("--batch-size", type=steps.at_least(1), default=BATCH, help="default: %(default)s")
    args = parser.parse_args()
    device = steps.pick_device(args.device)
    digits = steps.found_digits(args)
    steps.set_fp32_precision(tf32=False)
    train_set, test_set = as_numbers(digits.train, device), as_numbers(digits.test, device)
    variants, rows = [name for name in args.variants if name not in missing(device)], []
    for seed in range(1, args.seeds + 1):
        for variant in variants:
            row = train(variant, seed, train_set, test_set, args.iterations, args.batch_size)
            rows.append(row)
            ends = f"loss {row['last_quarter']['net']}, {row['test_accuracy_pct']:.1f} % right"
            print(f"seed {seed}, {variant:12}: {ends}", *row["said"][:1], flush=True)
    steps.write_benchmark_record(args, device, rows, data_source=digits.source)


if __name__ == "__main__":
    main()
