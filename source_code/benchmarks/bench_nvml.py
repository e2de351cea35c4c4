"""Benchmark: what the driver says of the GPU while each step trains, and what a training costs in energy (lab 19)."""

import os
import shlex
import subprocess
import sys
import time

import torch

from labkit import paths
from labkit.errors import one_sentence
from labkit.subjects import nvml
from labkit.training import steps

IDLE_S = 2.0
# Enough epochs after the first to last some seconds.
PROGRAMS = {
    "main_baseline.py": 3,
    "main_opt2.py": 8,
    "main_opt3.py": 8,
    "main_opt4.py": 25,
    "main_opt7.py": 200,
}
COMPILED = "main_opt7.py"  # runs once before it is watched, so that its kernels are compiled
BUSY = ("one_kernel.py thread --seconds 3", "one_kernel.py product --seconds 3")


def watch(command, period_s):
    """Run a script of the course and sample the driver meanwhile: samples, and when what happened (seconds)."""
    script, *flags = shlex.split(command)
    words = [sys.executable, str(paths.script(script)), *flags]
    marks, last_words = {"epoch_ends_s": []}, ""
    with nvml.Sampler(period_s) as sampler:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        for line in child.stdout:
            if line.startswith(("Train Epoch: 1 [0/", "begins")):
                marks["begins_s"] = sampler.now_s()
            elif line.startswith("Test set:"):
                marks["epoch_ends_s"].append(sampler.now_s())
            elif line.startswith("ends"):
                marks["ends_s"] = sampler.now_s()
            last_words = line.strip() or last_words
        status = child.wait()
        marks["process_s"] = sampler.now_s()
    if status != 0:
        sys.exit(f"bench_nvml.py: '{command}' failed with status {status}: {last_words}")
    return {"program": command, **marks, "samples": nvml.as_text(sampler.samples)}


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--period", type=steps.positive, default=nvml.PERIOD_S, metavar="S", help="between samples")
    parser.add_argument("--limit", type=steps.at_least(1), metavar="N", help="train on the first N samples only")
    parser.add_argument("--only", choices=(*PROGRAMS, *BUSY), metavar="PROGRAM", help="this program only")
    args = parser.parse_args()
    with one_sentence():
        limits = nvml.power_limit_w(nvml.library())
    rows = []
    with nvml.Sampler(args.period) as sampler:
        time.sleep(IDLE_S)
    rows.append(
        {"program": "nothing", "process_s": IDLE_S, "epoch_ends_s": [], "samples": nvml.as_text(sampler.samples)}
    )
    if args.only in (None, COMPILED):
        watch(f"{COMPILED} --epochs 1", args.period)
    few = [] if args.limit is None else ["--limit", str(args.limit)]
    commands = [shlex.join([step, "--epochs", str(epochs), *few]) for step, epochs in PROGRAMS.items()]
    for command in [*commands, *BUSY]:
        if args.only is None or command.startswith(args.only):
            rows.append(watch(command, args.period))
            print(
                f"{command}: {rows[-1]['process_s']:.1f} s, {rows[-1]['samples'].count(chr(10)) - 1} samples",
                flush=True,
            )
    steps.write_benchmark_record(args, torch.device("cuda"), rows, power_limit_w=limits)


if __name__ == "__main__":
    main()
