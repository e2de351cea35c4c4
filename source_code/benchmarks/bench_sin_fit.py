"""Benchmark: a cubic fitted to sin(x) in FP32, TF32, mixed and pure half precision, against least squares (lab 14)."""

import argparse
import contextlib
import copy
import io
import itertools
import math
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from labkit.training import steps
from labkit.training.clock import stopwatch
from labkit.training.number_types import missing

POINTS, ITERATIONS, LR = 2000, 5000, 1e-3
FP16_MAX = torch.finfo(torch.float16).max  # 65,504
KEEP_EVERY = 50  # iterations between two kept losses
TAIL = 100  # iterations at the end over which the loss's spread is taken
VARIANTS = ("fp32", "tf32", "bf16", "O1", "O2", "O3", "O3 mean", "apex O1", "apex O2", "apex O3")


def points(device):
    """The powers x, x², x³, float32 ``(2000, 3)``, and sin(x), ``(2000,)``."""
    x = torch.linspace(-np.pi, np.pi, POINTS)
    return x.unsqueeze(-1).pow(torch.tensor([1, 2, 3])).to(device), torch.sin(x).to(device)


def least_squares():
    """The sum of squared errors of the best cubic there is, by ``numpy.polyfit`` in FP64."""
    x = np.linspace(-np.pi, np.pi, POINTS)
    return float(np.polyfit(x, np.sin(x), deg=3, full=True)[1][0])


def exact_loss(weight, bias, xx, y):
    """The sum of squared errors of a model's weights, worked out in FP64."""
    return float((xx.double() @ weight.double()[0] + bias.double() - y.double()).square().sum())


def start(model, xx, y):
    """The largest numbers of the first step in FP64: those that FP16 would have to hold, unscaled."""
    own = nn.Linear(3, 1).to(xx.device, torch.float64)
    own.load_state_dict(model.state_dict())
    error = own(xx.double()).squeeze(1) - y.double()
    error.square().sum().backward()
    gradient = max(float(p.grad.abs().max()) for p in own.parameters())
    return {"loss": float(error.detach().square().sum()), "gradient": gradient, "gradient_squared": gradient**2}


# --- one step of each variant -------------------------------------------------------------------------------


@dataclass
class Trial:
    """A variant, ready: ``step()`` takes a step and returns its loss, on the device; ``scale()`` reads the scale."""

    model: nn.Linear  # the one that computes
    step: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    scale: Callable[[], float] | None = None
    patches: object = None  # what Apex has changed in PyTorch, to be undone


def plain(model, xx, y, dtype=torch.float32):
    """FP32, TF32 (a switch outside) or BF16 autocast: no scaling."""
    optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)

    def step():
        optimizer.zero_grad()
        with torch.autocast(xx.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = squared_error(model(xx).squeeze(1), y)
        loss.backward()
        optimizer.step()
        return loss

    return Trial(model, step, optimizer)


def opt_level_1(model, xx, y):
    """O1: FP32 weights, autocast chooses FP16 for the product, GradScaler scales the loss."""
    optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler(xx.device.type)

    def step():
        optimizer.zero_grad()
        with torch.autocast(xx.device.type, torch.float16):
            loss = squared_error(model(xx).squeeze(1), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Trial(model, step, optimizer, scaler.get_scale)


def opt_level_2(model, xx, y):
    """O2: an FP16 model computes, the optimizer works on an FP32 copy of its weights, the master weights."""
    half = copy.deepcopy(model).half()
    masters, copies = list(model.parameters()), list(half.parameters())
    optimizer = torch.optim.RMSprop(masters, lr=LR)
    scaler = torch.amp.GradScaler(xx.device.type)
    xx_half = xx.half()

    def step():
        half.zero_grad()
        loss = squared_error(half(xx_half).squeeze(1).float(), y)
        scaler.scale(loss).backward()
        for copied, master in zip(copies, masters, strict=True):
            master.grad = copied.grad.float()
        scaler.step(optimizer)  # divides by the scale in FP32, skips a step that is not finite
        scaler.update()
        with torch.no_grad():
            for copied, master in zip(copies, masters, strict=True):
                copied.copy_(master)  # rounds to FP16
        return loss

    return Trial(half, step, optimizer, scaler.get_scale)


def opt_level_3(model, xx, y, reduction="sum"):
    """O3: weights, inputs, loss, gradients and the optimizer's state in FP16, no scaling."""
    model.half()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)
    xx, y = xx.half(), y.half()

    def step():
        optimizer.zero_grad()
        loss = squared_error(model(xx).squeeze(1), y, reduction)
        loss.backward()
        optimizer.step()
        return loss * (POINTS if reduction == "mean" else 1)

    return Trial(model, step, optimizer)


def apex_level(model, xx, y, level):
    """The same by NVIDIA Apex, as the text had it; it prints and warns a lot."""
    from apex import amp

    optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)
    with contextlib.redirect_stdout(io.StringIO()):
        model, optimizer = amp.initialize(model, optimizer, opt_level=level)

    def step():
        loss = squared_error(model(xx).squeeze(1).float(), y)
        optimizer.zero_grad()
        with contextlib.redirect_stdout(io.StringIO()), amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        return loss

    return Trial(model, step, optimizer, lambda: amp.state_dict()["loss_scaler0"]["loss_scale"], amp._amp_state.handle)


def squared_error(found, y, reduction="sum"):
    return nn.functional.mse_loss(found, y, reduction=reduction)


def prepare(variant, model, xx, y):
    """The variant, ready to be run on ``model``, whose weights it changes."""
    if variant.startswith("apex"):
        return apex_level(model, xx, y, variant.split()[1])
    steps.set_fp32_precision(tf32=variant == "tf32")
    made = {
        "fp32": plain, "tf32": plain, "O1": opt_level_1, "O2": opt_level_2, "O3": opt_level_3,
        "bf16": lambda *own: plain(*own, torch.bfloat16),
        "O3 mean": lambda *own: opt_level_3(*own, "mean"),
    }  # fmt: skip
    return made[variant](model, xx, y)


# --- the experiment -----------------------------------------------------------------------------------------


def fit(variant, seed, iterations, device):
    """One fit; its row of the record."""
    xx, y = points(device)
    torch.manual_seed(seed)
    model = nn.Linear(3, 1).to(device)
    row = {"variant": variant, "seed": seed, "start": start(model, xx, y)}
    trial = prepare(variant, model, xx, y)
    losses, scales = torch.zeros(iterations, device=device), []
    for i in range(iterations):
        if trial.scale:
            scales.append(trial.scale())
        losses[i] = trial.step().detach()
    losses = losses.tolist()
    squares = [own["square_avg"] for own in trial.optimizer.state.values()]  # RMSprop's mean of squared gradients
    row["squares_not_finite"] = sum(int((~own.isfinite()).sum()) for own in squares)
    weights = [parameter.detach().clone() for parameter in (trial.model.weight, trial.model.bias)]
    row["us_an_iteration"] = microseconds(trial, device)
    if trial.patches:
        trial.patches._deactivate()
    row |= {"loss": number(losses[-1]), "exact_loss": number(exact_loss(*weights, xx, y))}
    row["tail"] = [number(f(losses[-TAIL:])) for f in (min, statistics.median, max)]
    row["losses"] = [number(loss) for loss in losses[::KEEP_EVERY]]
    row["scale_changes"] = [(i, s) for i, s in enumerate(scales) if not i or s != scales[i - 1]]
    row["skipped"] = [i for i, (s, after) in enumerate(itertools.pairwise(scales)) if after < s]
    row["weights"] = [number(w) for w in [*weights[0][0].tolist(), *weights[1].tolist()]]  # of x, x², x³; the constant
    return row


def number(value):
    """As a record holds it: six digits; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def microseconds(trial, device, iterations=300):
    """How long an iteration takes, with nothing read in between: the mean over some that follow the fit."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    with stopwatch(wait) as seconds:
        for _ in range(iterations):
            trial.step()
    return 1e6 * seconds[0] / iterations


def rounded_loss(dtype, device):
    """The loss of the best cubic where its coefficients, the powers of x and its values are rounded to ``dtype``."""
    xx, y = points(device)
    best = np.polyfit(np.linspace(-np.pi, np.pi, POINTS), np.sin(np.linspace(-np.pi, np.pi, POINTS)), deg=3)[::-1]
    powers = torch.cat([torch.ones_like(xx[:, :1]), xx], dim=1).to(dtype).double()
    found = (powers @ torch.tensor(best.copy(), device=device).to(dtype).double()).to(dtype).double()
    return float((found - y.double()).square().sum())


def profile(variants, iterations, device):
    """Some iterations of each variant for the profiler, each in an NVTX range with its name; nothing is timed."""
    cuda = device.type == "cuda"
    xx, y = points(device)
    torch.manual_seed(1)
    trials = {variant: prepare(variant, nn.Linear(3, 1).to(device), xx, y) for variant in variants}
    for profiled in (False, True):  # first without: library loading, and the scale's way down
        if cuda and profiled:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        for variant, trial in trials.items():
            steps.set_fp32_precision(tf32=variant == "tf32")
            with torch.cuda.nvtx.range(variant) if torch.version.cuda else contextlib.nullcontext():
                for _ in range(iterations):
                    trial.step()
                if cuda:
                    torch.cuda.synchronize()
    if cuda:
        torch.cuda.profiler.stop()


def apex_is_there():
    """Can NVIDIA Apex's ``amp`` be imported? Apex dropped it in May 2025; PyPI's package called apex is another one."""
    warnings.simplefilter("ignore")
    try:
        from apex import amp
    except ImportError:
        return False
    return hasattr(amp, "initialize")


def undo_apex():
    """Take back what Apex has changed in PyTorch."""
    from apex import amp

    if amp._amp_state.handle:
        amp._amp_state.handle._deactivate()


def main():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--variants", nargs="+", choices=VARIANTS, metavar="NAME", help="default: all that can run here")
    add("--seeds", type=steps.at_least(1), default=5, help="fits of each variant (default: %(default)s)")
    add("--iterations", type=steps.at_least(1), default=ITERATIONS, help="default: %(default)s")
    add("--profile", action="store_true", help="run a few iterations of each variant for the profiler, and no more")
    for flag in ("--epochs", "--limit", "--batch-size"):  # the labs add them where there is no GPU to profile
        add(flag, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = steps.pick_device(args.device)
    apex = device.type == "cuda" and apex_is_there()
    variants = args.variants or [name for name in VARIANTS if apex or not name.startswith("apex")]
    variants = [
        name for name in variants if name not in missing(device) - {"tf32"}
    ]  # its switch is there, without effect
    if args.profile:
        profile([name for name in variants if not name.startswith("apex")], min(args.iterations, 100), device)
        return
    rows, failed = [], {}
    for seed in range(1, args.seeds + 1):
        for variant in variants:
            try:
                row = fit(variant, seed, args.iterations, device)
            except RuntimeError as error:
                if not variant.startswith("apex"):
                    raise
                failed[variant] = str(error).splitlines()[0]  # a retired package may not fit today's PyTorch
                undo_apex()
                print(f"seed {seed}, {variant:8}: {failed[variant]}", flush=True)
                continue
            rows.append(row)
            ends = f"loss {row['loss']}, of its weights {row['exact_loss']}, {len(row['skipped'])} steps skipped"
            print(f"seed {seed}, {variant:8}: {ends}, {row['us_an_iteration']:.0f} µs an iteration", flush=True)
    dtypes = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    more = {"least_squares": least_squares(), "apex": apex, "failed": failed}
    more["rounded_best"] = {name: rounded_loss(dtype, device) for name, dtype in dtypes.items()}
    steps.write_benchmark_record(args, device, rows, **more)


if __name__ == "__main__":
    main()
