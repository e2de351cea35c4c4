"""Benchmark: a GAN on the digits in FP32, FP16 without, with fixed and with dynamic loss scaling, and BF16 (lab 15)."""

import base64
import math

import torch
import torch.nn.functional as F
from torch import nn

from labkit.subjects.loss_scale_monitor import LossScaleMonitor
from labkit.training import steps
from labkit.training.number_types import missing

BATCH, LATENT, ITERATIONS = 4096, 64, 280  # 14 whole batches an epoch, 20 epochs
LR, BETAS = 2e-4, (0.5, 0.999)
SEED_LENGTH = 56  # iterations: how long the text trained, 4 epochs of 14
FIXED_SCALE, START_SCALE, GROW_EVERY = 2.0**10, 2.0**16, 50
VARIANTS = ("fp32", "fp16", "fp16 fixed", "fp16 dynamic", "bf16")
KEEP_EVERY, WINDOW = 5, 20  # iterations: between two kept losses; of one window of the monitor
PROBED = ("fp32", "fp16")  # variants on whose way the gradients between the layers are looked at
PROBED_SCALES = (1.0, FIXED_SCALE, START_SCALE)
EXPONENTS = range(-48, 17)  # of log2 of a gradient, in the histograms; what lies beyond counts in the last bin
ROUNDS_TO_ZERO, SUBNORMAL = 2.0**-25, 2.0**-14  # FP16: at most half of its smallest number; below its normal ones
SAMPLES = 8  # pictures kept


class Generator(nn.Module):
    """Numbers ``(N, 64)`` → images ``(N, 1, 28, 28)``; ``last`` makes pixels of the last layer's output."""

    def __init__(self, last=torch.tanh):
        super().__init__()
        self.last = last
        self.fc = nn.Linear(LATENT, 64 * 7 * 7)
        self.conv1 = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        self.conv2 = nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(64), nn.BatchNorm2d(32)

    def forward(self, x):
        x = F.relu(self.norm1(self.fc(x).unflatten(1, (64, 7, 7))))
        x = F.relu(self.norm2(self.conv1(x)))
        return self.last(self.conv2(x))


class Discriminator(nn.Module):
    """Images ``(N, 1, 28, 28)`` → ``(N, outputs)``: one number, real or not; or, as an encoder, ``LATENT`` of them."""

    def __init__(self, outputs=1):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2, padding=1)
        self.fc = nn.Linear(64 * 7 * 7, outputs)

    def forward(self, x):
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.conv2(x), 0.2)
        return self.fc(x.flatten(1))


class FixedScale:
    """Loss scaling by hand: multiply the loss, divide the gradients, look for nothing."""

    def __init__(self, scale):
        self.factor = scale

    def scale(self, loss):
        return loss * self.factor

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self.factor
        optimizer.step()

    def update(self):
        """Nothing: it stays as it is."""


def make_scaler(variant, device):
    if variant == "fp16 fixed":
        return FixedScale(FIXED_SCALE)
    # The default grows after 2,000 good steps, which this short training would never see.
    dynamic = variant == "fp16 dynamic"
    return torch.amp.GradScaler(device.type, init_scale=START_SCALE, growth_interval=GROW_EVERY, enabled=dynamic)


def precision(variant, device):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(variant.split()[0])
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


# --- what is trained: networks by name, each with its loss; the losses are taken in turn ---------------------


class Gan:
    """Discriminator and generator in turn, with the usual losses: −log D(x) − log(1 − D(G(z))), and −log D(G(z))."""

    longest = "g"  # this loss goes back through both networks

    def __init__(self):
        self.nets = {"d": Discriminator(), "g": Generator()}

    def loss(self, name, images, z):
        """One network's loss; images from 0 to 1, which this one takes from −1 to 1, as is usual."""
        judge, make = self.nets["d"], self.nets["g"]
        if name == "d":
            with torch.no_grad():
                made = make(z)
            return judged(judge(2 * images - 1), True) + judged(judge(made), False)
        return judged(judge(make(z)), True)

    def pictures(self, images, z):
        return (self.nets["g"](z) + 1) / 2


class Autoencoder:
    """The same layers, the discriminator's first: draw a digit again. The error is averaged over every pixel."""

    longest = "ae"

    def __init__(self):
        encoder, decoder = Discriminator(outputs=LATENT), Generator(last=torch.sigmoid)
        self.nets = {"ae": nn.ModuleDict({"d": encoder, "g": decoder})}

    def loss(self, name, images, z):
        return F.mse_loss(self.pictures(images, z), images)

    def pictures(self, images, z):
        both = self.nets["ae"]
        return both["g"](both["d"](images))


def judged(output, real):
    return F.binary_cross_entropy_with_logits(output, torch.full_like(output, float(real)))


CASES = {"gan": Gan, "autoencoder": Autoencoder}


# --- training -----------------------------------------------------------------------------------------------


def train(case, variant, seed, images, iterations, batch, histograms):
    """One training; its row of the record: losses, scales, skipped steps, gradients, a few pictures."""
    device = images.device
    torch.manual_seed(seed)
    task = CASES[case]()
    for net in task.nets.values():
        net.to(device)
    optimizers = {name: torch.optim.Adam(net.parameters(), LR, BETAS) for name, net in task.nets.items()}
    scalers = {name: make_scaler(variant, device) for name in task.nets}
    monitors = {
        name: LossScaleMonitor(net, scalers[name], every=WINDOW, say=lambda line: None)
        for name, net in task.nets.items()
    }
    autocast = precision(variant, device)
    fixed_z = torch.randn(batch, LATENT, device=device)
    kept, probes = {name: [] for name in task.nets}, []
    probed = {0, SEED_LENGTH, iterations - 1}
    for iteration, (real, z) in enumerate(batches(images, batch, iterations)):
        if variant in PROBED and iteration in probed:
            probes += [
                {"iteration": iteration, **row} for row in probe(task, real, fixed_z, histograms and variant == "fp32")
            ]
        for name in task.nets:
            optimizers[name].zero_grad()
            with autocast:
                loss = task.loss(name, real, z)
            scalers[name].scale(loss).backward()
            monitors[name].look()
            scalers[name].step(optimizers[name])
            scalers[name].update()
            kept[name].append(loss.detach())
    losses = {name: torch.stack(values).float().tolist() for name, values in kept.items()}
    row = {"variant": variant, "seed": seed, "losses": {name: decimated(values) for name, values in losses.items()}}
    row["last_quarter"] = {name: mean(values[-max(1, iterations // 4) :]) for name, values in losses.items()}
    row["lowest"] = {name: rounded(min(values)) for name, values in losses.items()}
    row["monitors"] = {name: seen(monitor) for name, monitor in monitors.items()}
    with torch.no_grad(), autocast:
        pictures = task.pictures(as_numbers(images[:batch]), fixed_z)[:SAMPLES]
    return row | {"probes": probes, "pictures": as_text(pictures) if histograms else None}


def batches(images, batch, iterations):
    """Batches in a new order each epoch, the last short one dropped: images from 0 to 1, and normal numbers."""
    order = iter(())
    for _ in range(iterations):
        index = next(order, None)
        if index is None or len(index) < batch:
            order = iter(torch.randperm(len(images), device=images.device).split(batch))
            index = next(order)
        z = torch.randn(len(index), LATENT, device=images.device)
        yield as_numbers(images[index]), z


def as_numbers(images):
    """Bytes ``(N, 28, 28)`` to float32 ``(N, 1, 28, 28)`` from 0 to 1."""
    return images.unsqueeze(1).float() / 255


# --- gradients between the layers ---------------------------------------------------------------------------


def probe(task, images, z, histograms):
    """A row a layer and precision: what FP32 has for gradients at this state, and what FP16 makes of them.

    The random state of the training is left as it was, and so are the running means.
    """
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        exact = gradients(task, images, z, precision("fp32", images.device), 1.0)
        rows = [about(layer, gradient, histograms) for layer, gradient in exact.items()]
        for scale in PROBED_SCALES:
            for layer, found in gradients(task, images, z, precision("fp16", images.device), scale).items():
                rows.append(compared(layer, scale, exact[layer], found, histograms))
    return rows


def gradients(task, images, z, autocast, scale):
    """Gradients of the loss with the longest way back, at each layer's output, from the loss to the input."""
    outputs, hooks = {}, []
    for net in task.nets.values():
        for name, layer in net.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                label = name if "." in name else f"{next(k for k, v in task.nets.items() if v is net)}.{name}"
                hooks.append(layer.register_forward_hook(lambda _, __, out, label=label: outputs.update({label: out})))
    norms = [m for net in task.nets.values() for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.track_running_stats = False
    with autocast:
        loss = task.loss(task.longest, images, z)
    found = torch.autograd.grad(loss * scale, list(outputs.values()))
    for hook in hooks:
        hook.remove()
    for norm in norms:
        norm.track_running_stats = True
    return dict(reversed(list(zip(outputs, found, strict=True))))


def about(layer, gradient, histograms):
    """An FP32 gradient: which share of its numbers, zeros left out, FP16 would make zero or subnormal."""
    size = gradient.abs()
    size = size[size > 0]
    zero, tiny = size <= ROUNDS_TO_ZERO, size < SUBNORMAL
    row = {"layer": layer, "precision": "fp32", "scale": 1.0, "gradients": size.numel()}
    row |= {"zero_share": share(zero, size), "subnormal_share": share(tiny & ~zero, size)}
    row["largest"] = rounded(float(size.max())) if size.numel() else 0.0
    return row | ({"histogram": histogram(size)} if histograms else {})


def compared(layer, scale, exact, found, histograms):
    """An FP16 gradient beside the FP32 one of the same state: zero where FP32 has something, subnormal, overflown."""
    exists, size = exact != 0, found.abs()
    zero = exists & (size == 0)
    tiny = exists & (size < SUBNORMAL) & (size > 0)
    row = {"layer": layer, "precision": "fp16", "scale": scale, "gradients": int(exists.sum())}
    row |= {"zero_share": share(zero, size[exists]), "subnormal_share": share(tiny, size[exists])}
    row["not_finite_share"] = share(~found.isfinite(), found)
    return row | ({"histogram": histogram(size[size.isfinite() & (size > 0)])} if histograms else {})


def share(kind, of):
    return rounded(float(kind.sum()) / max(1, of.numel()))


def histogram(size):
    """How many of the numbers lie in each [2**e, 2**(e+1)), for e in EXPONENTS, as shares of all."""
    exponent = torch.frexp(size.float()).exponent - 1
    place = exponent.long().clamp(EXPONENTS[0], EXPONENTS[-1]) - EXPONENTS[0]
    counts = torch.bincount(place, minlength=len(EXPONENTS)).double() / max(1, size.numel())
    return [round(value, 5) for value in counts.tolist()]


# --- the record ---------------------------------------------------------------------------------------------


def seen(monitor):
    """What the monitor saw, without what the windows repeat."""
    record = monitor.record()
    for window in record["windows"]:
        window.update({name: rounded(window[name]) for name in ("zero_share", "subnormal_share", "largest")})
        del window["steps"], window["not_finite"]
    return record


def rounded(value, digits=4):
    """As a record holds it; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def decimated(values):
    return [rounded(value) for value in values[::KEEP_EVERY]]


def mean(values):
    return rounded(sum(values) / len(values), 6)


def as_text(pictures):
    """Pictures ``(8, 1, 28, 28)`` from 0 to 1 as bytes in base64."""
    shades = pictures.float().mul(255).nan_to_num(0).clamp(0, 255).byte()
    return base64.b64encode(shades.cpu().numpy().tobytes()).decode()


def main():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="where MNIST lies")
    add("--limit", type=steps.at_least(1), help="train on the first N digits only")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--case", choices=CASES, default="gan", help="what is trained (default: %(default)s)")
    add("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="NAME", help="default: all")
    add("--seeds", type=steps.at_least(1), default=5, help="trainings of each variant (default: %(default)s)")
    add("--iterations", type=steps.at_least(1), default=ITERATIONS, help="default: %(default)s, 20 epochs")
    add("--batch-size", type=steps.at_least(1), default=BATCH, help="default: %(default)s, as in the text")
    args = parser.parse_args()
    device = steps.pick_device(args.device)
    digits = steps.found_digits(args)
    steps.set_fp32_precision(tf32=False)
    images = digits.train.data.to(device)
    variants, rows = [name for name in args.variants if name not in missing(device)], []
    for seed in range(1, args.seeds + 1):
        for variant in variants:
            row = train(args.case, variant, seed, images, args.iterations, args.batch_size, histograms=seed == 1)
            rows.append(row)
            ends = ", ".join(f"{name} {value}" for name, value in row["last_quarter"].items())
            skipped = sum(len(monitor["skipped"]) for monitor in row["monitors"].values())
            print(f"seed {seed}, {variant:12}: mean loss over the last quarter: {ends}; {skipped} steps not finite")
    more = {"data_source": digits.source, "exponents": [EXPONENTS[0], EXPONENTS[-1]]}
    more["digits"] = as_text(as_numbers(images[:SAMPLES]))  # what the autoencoder's pictures are of
    steps.write_benchmark_record(args, device, rows, **more)


if __name__ == "__main__":
    main()
