"""Benchmark: what makes the first epoch of opt4 to opt7 longer: each of its parts, in each epoch (lab 11).

Each training is a process of its own. Once it runs as it is; once with what an epoch calls first, its random numbers
and the way back of its losses, called in the warm-up already ("rehearsed"). The device is synchronised at both ends of
each part, so that a part's time is its own; the epochs last a little longer for it.
"""

import importlib
import json
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from labkit.display.spread import Spread
from labkit.paths import SOURCE_CODE
from labkit.training import steps

SCRIPTS = ("main_opt4.py", "main_opt5.py", "main_opt6.py", "main_opt7.py")


class Parts:
    """Milliseconds of each part of each epoch, where one calls another with that inside."""

    def __init__(self, synchronize=lambda: None):
        self.epochs, self.synchronize = [], synchronize

    @contextmanager
    def timed(self, name):
        self.synchronize()
        start = time.perf_counter()
        yield
        self.synchronize()
        if self.epochs:  # none has begun in the warm-up
            self.epochs[-1][name] += 1e3 * (time.perf_counter() - start)

    def timing(self, name, work):
        """``work``, timed at each call under this name."""

        def timed(*arguments, **named):
            with self.timed(name):
                return work(*arguments, **named)

        return timed


def inside(script, flags, rehearsed):
    """Train in this process, a script's ``main``, and print the parts of each epoch as the last line."""
    cuda = steps.pick_device("auto").type == "cuda"
    parts, run = Parts(torch.cuda.synchronize if cuda else lambda: None), steps.Run
    randperm, random, epochs, enter = torch.randperm, torch.Tensor.random_, run.epochs, run.__enter__

    def counted(self):
        for epoch in epochs(self):
            parts.epochs.append(defaultdict(float))
            yield epoch

    def entered(self):
        if rehearsed:
            with torch.random.fork_rng():
                random(torch.zeros(self.steps_an_epoch, dtype=torch.int64, device=self.device))
                order = torch.arange(len(self.digits.train), device=self.device)
                order.copy_(randperm(len(order), device=self.device))
                torch.zeros(self.steps_an_epoch, device=self.device).tolist()
        return enter(self)

    patches = [
        mock.patch.object(steps, "phase", parts.timed),
        mock.patch.object(torch, "randperm", parts.timing("shuffle: randperm", randperm)),
        mock.patch.object(torch.Tensor, "random_", parts.timing("shuffle: random_", random)),
        mock.patch.multiple(run, epochs=counted, __enter__=entered),
    ]
    for method, name in {"log_epoch": "read back", "log_step": "read back", "log_test": "read back, test"}.items():
        patches.append(mock.patch.object(run, method, parts.timing(name, getattr(run, method))))
    timed = run.timed
    patches.append(mock.patch.object(run, "timed", lambda self, name: _both(timed(self, name), parts.timed(name))))
    for patch in patches:
        patch.start()
    sys.argv = [script, *flags]
    importlib.import_module(Path(script).stem).main()
    print(json.dumps(parts.epochs))


@contextmanager
def _both(outer, inner):
    with outer, inner:
        yield


def trained(script, flags, rehearsed):
    """The parts of each epoch of a training in a process of its own."""
    lines = f"from benchmarks import bench_first_epoch\nbench_first_epoch.inside({script!r}, {flags!r}, {rehearsed})"
    done = subprocess.run([sys.executable, "-c", lines], cwd=SOURCE_CODE, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"bench_first_epoch.py: {script} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def rows(script, rehearsed, runs):
    """A row a part: milliseconds in the first, the second and a later epoch, medians over the runs."""
    for part in runs[0][0]:
        each = [[epoch.get(part, 0.0) for epoch in epochs] for epochs in runs]
        first, second = (Spread.of([epochs[number] for epochs in each]).median for number in (0, 1))
        later = Spread.of([Spread.of(epochs[1:]).median for epochs in each]).median
        extra = Spread.of([epochs[0] - Spread.of(epochs[1:]).median for epochs in each])
        row = {"script": script, "rehearsed": rehearsed, "part": part, "first_ms": first, "second_ms": second}
        row |= {"later_ms": later, "extra_ms": extra.median, "extra_range_ms": [extra.low, extra.high]}
        yield row | {"repeats": extra.n}


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--only", choices=SCRIPTS, metavar="SCRIPT", help="this script only")
    parser.add_argument("--repeats", type=steps.at_least(1), default=3, help="processes of each (default: %(default)s)")
    parser.add_argument("--epochs", type=steps.at_least(2), default=4, help="of each process (default: %(default)s)")
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST lies")
    parser.add_argument("--limit", type=steps.at_least(1), help="train on the first N samples only")
    args = parser.parse_args()
    device = steps.pick_device("auto")
    flags = ["--epochs", str(args.epochs), *(["--data-dir", args.data_dir] if args.data_dir else [])]
    flags += ["--limit", str(args.limit)] if args.limit else []
    ways = [(script, rehearsed) for script in SCRIPTS for rehearsed in (False, True) if args.only in (None, script)]
    found = {way: [] for way in ways}
    for _ in range(args.repeats):
        for script, rehearsed in ways:
            found[script, rehearsed].append(trained(script, flags, rehearsed))
    every = [row for way, runs in found.items() for row in rows(*way, runs)]
    for row in every:
        name = f"{row['script']}{', rehearsed' if row['rehearsed'] else ''}: {row['part']}"
        times = f"first {row['first_ms']:7.2f}  second {row['second_ms']:7.2f}  later {row['later_ms']:7.2f} ms"
        print(f"{name:45} {times}  extra {row['extra_ms']:+.2f} ms")
    steps.write_benchmark_record(args, device, every)


if __name__ == "__main__":
    main()
