"""What does a step of the speedrun's entries take on a Hopper, of what does it consist, and how far do few steps get?

    PYTHONPATH=source_code python3 drafts/try_speedrun.py                all stages, each in a process of its own
    PYTHONPATH=source_code python3 drafts/try_speedrun.py steps muon     these

Each stage has 60 s, all together 175. ``accuracy`` wants MNIST, in ``LAB_DATA_DIR``, and asks no test digit. All that
they find is printed.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from labkit.kernels import muon
from labkit.kernels.beside import beside
from labkit.speedrun import pieces, referee, search
from labkit.training import data
from labkit.training.devices import set_fp32_precision

LIMIT_S, TOGETHER_S = 60, 175
DEVICE = torch.device("cuda")


def noise(count=50_000):
    """Bytes and labels of so many digits that are none."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    images = torch.empty(count, 28, 28, dtype=torch.uint8, device=DEVICE).random_(0, 256, generator=generator)
    return images, torch.empty(count, dtype=torch.int64, device=DEVICE).random_(0, 10, generator=generator)


def median_ms(work, times=15):
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
    return statistics.median(found)


def trainer(name, digits, steps, former=False, **settings):
    """An entry's trainer for so many steps; ``former``: with main_opt7's convolutions on a Hopper, too."""
    entry = referee.read(name)
    if former:
        sys.modules[f"entry_{entry.file.stem}"].is_hopper = lambda device: False
    batch = settings.get("batch", entry.recipe["batch"])
    entry = entry.but(epochs=(steps + 0.5) * batch / len(digits[1]), **settings)
    made = entry.prepare(*digits, **entry.recipe)
    assert made.batches.steps == steps
    return made


def timed(name, digits, **settings):
    """Milliseconds of a training of 40 and of 120 steps; microseconds of a step, and of what comes once."""
    found = {}
    for steps in (40, 120):
        made = trainer(name, digits, steps, **settings)
        made.start(1)
        made.train()
        found[steps] = median_ms(made.train)
    step_us = 1e3 * (found[120] - found[40]) / 80
    return found[120], step_us, 1e3 * found[120] - 120 * step_us


def right():
    """course_net's gradients by main_opt8's convolutions against those by main_opt7's, at the same weights."""
    digits = noise(2000)
    made = trainer("course_net", digits, 4, batch=396)
    assert made.on_hopper, "no Hopper"
    found = []
    for on_hopper in (True, False):
        made.on_hopper = on_hopper
        made.start(3)
        with torch.no_grad():
            made.gradients(digits[0][:396], digits[1][:396], torch.zeros((), device=DEVICE))
        found.append({name: one.double().clone() for name, one in made.optimizer.weights.gradients.items()})
    for name, one in found[0].items():
        other = found[1][name]
        error = float((one - other).norm() / other.norm())
        print(f"  {name:13} {error:.1e} {'' if error < 5e-2 else '<-- far from it'}")
    made.on_hopper = True
    ours = made.predict(digits[0][:1000])
    made.on_hopper = False
    print(f"  same predictions: {float((ours == made.predict(digits[0][:1000])).float().mean()):.3f}")


def steps():
    """A step by batch: main_opt8's convolutions and main_opt7's, then own_kernels."""
    digits = noise()
    print("  entry, settings: ms of 120 steps, µs of a step, µs of what comes once")
    for name, former, batches in (
        ("course_net", False, (396, 264, 528)), ("course_net", True, (384,)),
        ("own_kernels", False, (256, 384)),
    ):  # fmt: skip
        for batch in batches:
            ms, step_us, once_us = timed(name, digits, batch=batch, former=former)
            what = f"{name}{' as before' if former else ''}"
            print(f"  {what} batch {batch}: {ms:.2f} {step_us:.1f} {once_us:.0f}", flush=True)


def muons():
    """Muon's constants, and AdamW beside Muon: microseconds of a step of course_net."""
    digits = noise()
    for precision, parts, warps in (
        ("tf32x3", 4, 4), ("tf32", 4, 4), ("tf32", 2, 4), ("tf32", 1, 4), ("tf32", 2, 8), ("tf32x3", 2, 4),
    ):  # fmt: skip
        muon.PRECISION, muon.PARTS, muon.WARPS = precision, parts, warps
        print(f"  {precision} parts {parts} warps {warps}: {timed('course_net', digits, batch=396)[1]:.1f}", flush=True)

    @torch.no_grad()
    def step(self, number, steps):
        recipe, share = self.recipe, pieces.triangle(number, steps, self.recipe["warm"])
        adam = number, share * recipe["adam_rate"], recipe["betas"], recipe["decay"]
        with beside(DEVICE, self.adam.step, *adam):
            self.muon.step(number, share * recipe["muon_rate"], recipe["momentum"])

    muon.PRECISION, muon.PARTS, muon.WARPS = "tf32", 2, 4
    pieces.Optimizer.step = step
    print(f"  tf32 parts 2 warps 4, AdamW beside: {timed('course_net', digits, batch=396)[1]:.1f}")


def kernels():
    """Each kernel of a step, and drawing an order: microseconds on the GPU, launches a step."""
    digits = noise()
    for name, batch in (("course_net", 396), ("own_kernels", 256)):
        made = trainer(name, digits, 20, batch=batch)
        made.start(1)
        for what, work, count in (("a step", made.all_steps, 20), ("an order", made.batches.draw, 1)):
            work()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                work()
                torch.cuda.synchronize()
            rows = [one for one in profile.key_averages() if one.device_time_total]
            total = sum(one.device_time_total for one in rows) / count
            print(f"  {name}, batch {batch}, {what}: {total:.1f} µs in kernels")
            for one in sorted(rows, key=lambda one: -one.device_time_total):
                print(f"    {one.device_time_total / count:7.1f}  x {one.count / count:4.1f}  {one.key[:90]}")
        print(f"  drawing an order takes {1e3 * median_ms(made.batches.draw):.0f} µs with its launches", flush=True)


def accuracy():
    """Five seeds of few settings, on held-out digits."""
    sets = referee.split(data.read_mnist(Path(os.environ["LAB_DATA_DIR"])).train)
    until = time.monotonic() + LIMIT_S - 15
    for name, settings in ACCURACY.items():
        for row in search.tried(referee.read(name), settings, sets, DEVICE, 5, until):
            numbers = "{mean_pct:.3f} ± {error_pct:.3f} % {median_ms:.2f} ms, warm-up {warm_up_s:.1f} s"
            print(f"  {name} {row.get('failed') or numbers.format(**row)}", row["settings"], flush=True)


FASTER = {"momentum": 0.85, "muon_rate": 0.12}  # the best of few that were tried on a CPU
ACCURACY = {
    "course_net": [
        {"batch": 384, "epochs": 0.7},
        {"batch": 396, "epochs": 0.7, **FASTER},
        {"batch": 264, "epochs": 0.55, **FASTER},
        {"batch": 528, "epochs": 0.8, **FASTER},
    ],
    "own_kernels": [{"batch": 384, "epochs": 0.5, **FASTER}, {"batch": 512, "epochs": 0.55, **FASTER}],
}
STAGES = {"right": right, "steps": steps, "accuracy": accuracy, "kernels": kernels, "muon": muons}


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--here":
        set_fp32_precision(tf32=False)
        STAGES[sys.argv[2]]()
        return
    print(torch.cuda.get_device_name())
    begun = time.monotonic()
    for stage in sys.argv[1:] or STAGES:
        start = time.monotonic()
        limit_s = min(LIMIT_S, begun + TOGETHER_S - start)
        print(f"{stage}: {STAGES[stage].__doc__}", flush=True)
        try:
            subprocess.run([sys.executable, __file__, "--here", stage], check=True, timeout=limit_s)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"  {error}")
        print(f"  ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
