"""Any step under PyTorch's own profiler: its tables, its trace, its memory, and what profiling costs (lab 18)."""

import gzip
import importlib
import json
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from labkit.subjects import torch_profiler
from labkit.training import ranges, steps
from labkit.training.flags import STEPS
from stepbudget import intervals
from stepbudget.ask.iterations import step_windows
from stepbudget.report import open_report

WAIT, WARM_UP = 4, 5  # steps of the profiled epoch that are left alone, and that are recorded and thrown away
FEW = 3  # steps whose memory is looked at closely
MODES = {
    "off": None,
    "plain": {},
    "shapes, memory, FLOPs": {"record_shapes": True, "profile_memory": True, "with_flops": True},
    "and stacks": {"record_shapes": True, "profile_memory": True, "with_flops": True, "with_stack": True},
}
CATEGORIES = "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd", "other"


class ProfiledRun(steps.Run):
    """A step's run in which each epoch after the first is looked at in another way."""

    latest = None  # the step script makes its run itself: here is where to find it
    looks = ("tables",)  # how each epoch from the second on is looked at; Nsight Systems is shown the second, too

    def __init__(self, args, **more):
        super().__init__(args, **more)
        ProfiledRun.latest = self
        self.step_done = lambda: None
        self.found, self.costs = {}, []
        self.made = tempfile.TemporaryDirectory(prefix="labkit-profile-")  # goes with this process
        self.scratch = Path(self.made.name)
        self.activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        active = self.steps_an_epoch - WAIT - WARM_UP
        if active < 1:
            sys.exit(f"profile_torch.py: an epoch has {self.steps_an_epoch} steps, and {WAIT + WARM_UP + 1} are needed")
        self.plan = {"wait": WAIT, "warmup": WARM_UP, "active": active, "repeat": 1}

    def log_step(self, *told):
        super().log_step(*told)
        self.step_done()

    @contextmanager
    def timed(self, name):
        epoch = self.epoch_records[-1]["epoch"]
        look = ProfiledRun.looks[epoch - 2] if name == "training" and epoch > 1 else "nothing"
        with nullcontext() if look == "nothing" else getattr(self, look)(), super().timed(name):
            yield

    @contextmanager
    def tables(self):
        """Wait, warm up, record the rest of the epoch; tables and trace."""
        options = MODES["shapes, memory, FLOPs"]
        self.reset_peak()
        with ranged(), profile(activities=self.activities, schedule=schedule(**self.plan), **options) as profiler:
            self.step_done = profiler.step
            yield
        self.step_done = lambda: None
        file = self.scratch / "trace.json"
        profiler.export_chrome_trace(str(file))
        self.found["operators"] = [operator(row) for row in profiler.key_averages()]
        self.found["trace"] = json.loads(file.read_text())
        self.found["trace_mb"] = file.stat().st_size / 1e6
        self.found["trace_gz_mb"] = len(gzip.compress(file.read_bytes())) / 1e6
        if self.cuda:
            self.found["peak_allocated_mb"] = torch.cuda.max_memory_allocated() / 1e6
            self.found["peak_reserved_mb"] = torch.cuda.max_memory_reserved() / 1e6

    @contextmanager
    def memory_by_category(self):
        """A few steps with Python's stacks, from which the profiler tells what memory is for.

        ``export_memory_timeline`` is deprecated in favour of memory snapshots, which do not know the categories.
        """
        plan = self.plan | {"active": min(FEW, self.plan["active"])}
        with profile(activities=self.activities, schedule=schedule(**plan), **MODES["and stacks"]) as profiler:
            self.step_done = profiler.step
            yield
        self.step_done = lambda: None
        if hasattr(profiler, "export_memory_timeline"):
            file = self.scratch / "memory.json"
            profiler.export_memory_timeline(str(file), device="cuda:0" if self.cuda else "cpu")
            self.found["memory"] = torch_profiler.memory_by_category(json.loads(file.read_text()), CATEGORIES)

    @contextmanager
    def snapshot(self):
        """What replaces it, the allocator's own history: every allocation of a few steps, and who asked."""
        done = 0

        def count():
            nonlocal done
            done += 1
            if done == WAIT:
                torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
            if done == WAIT + FEW:
                self.found["snapshot"] = torch_profiler.largest_at_peak(torch.cuda.memory._snapshot())
                torch.cuda.memory._record_memory_history(enabled=None)

        self.step_done = count if self.cuda else lambda: None
        yield
        self.step_done = lambda: None

    @contextmanager
    def cost(self):
        """The same work without a profiler and with more and more of it."""
        mode = list(MODES)[len(self.costs) % len(MODES)]
        options = MODES[mode]
        profiler = None if options is None else profile(activities=self.activities, **options)
        start = time.perf_counter()
        if profiler:
            profiler.start()
            self.step_done = profiler.step
        begun = time.perf_counter()
        yield
        ended = time.perf_counter()
        if profiler:
            profiler.stop()
            self.step_done = lambda: None
        row = {"profiler": mode, "start_s": begun - start, "training_s": self.epoch_records[-1]["training_s"]}
        self.costs.append(row | {"stop_s": time.perf_counter() - ended})

    def reset_peak(self):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()


@contextmanager
def ranged():
    """Meanwhile the steps' phases are ranges of PyTorch's profiler; elsewhere they are nothing, as in a timed run."""
    global named
    named = True
    yield
    named = False


named = False


def phase(name):
    return record_function(name) if named else nullcontext()


def operator(row):
    """One row of ``key_averages()``, in milliseconds."""
    return {
        "name": row.key,
        "calls": row.count,
        "self_cpu_ms": row.self_cpu_time_total / 1e3,
        "cpu_ms": row.cpu_time_total / 1e3,
        "self_gpu_ms": row.self_device_time_total / 1e3,
        "gpu_ms": row.device_time_total / 1e3,
        "mflop": row.flops / 1e6 if row.flops else None,
        "on_gpu": "CUDA" in str(row.device_type),
        "range": bool(row.is_user_annotation),
    }


def main():
    parser = steps.script_parser(__doc__, "the tables", epilog="All other flags go to the step.")
    parser.add_argument("step", choices=STEPS, metavar="STEP", help="such as main_opt2.py")
    parser.add_argument("--trace", type=steps.output, metavar="FILE", help="write the slim trace (.json.gz) to FILE")
    parser.add_argument("--memory", action="store_true", help="also look at what the memory is for")
    parser.add_argument("--overhead", type=steps.at_least(0), default=0, metavar="N", help="time its cost, N rounds")
    args, flags = parser.parse_known_args()

    steps.phase = ranges.phase = phase
    steps.Run = ProfiledRun
    script = importlib.import_module(Path(args.step).stem)
    memory = ("memory_by_category", "snapshot") if args.memory else ()
    ProfiledRun.looks = ("tables", *memory, *["cost"] * len(MODES) * args.overhead)
    sys.argv = [script.__file__, "--epochs", str(1 + len(ProfiledRun.looks)), *flags]
    script.main()

    run = ProfiledRun.latest
    found = run.found
    trace = torch_profiler.slim(found.pop("trace"))
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "trace.json.gz"
        file.write_bytes(packed)
        report = open_report(file)
        window = report.window()
        table = torch_profiler.kernels(report, window).drop(columns="key")
        busy_ms = intervals.total(torch_profiler.busy(report, window)) / 1e6
        held = torch_profiler.waits(report, window)
    if args.trace:
        Path(args.trace).write_bytes(packed)
    print(f"{len(step_windows(report))} steps in {window.duration_ms:.1f} ms, the GPU busy for {busy_ms:.1f} ms")
    print(f"trace: {found['trace_mb']:.1f} MB, slim {len(packed) / 1e6:.2f} MB; operators: {len(found['operators'])}")
    sys.argv = [__file__]
    found |= {"first_step": WAIT + WARM_UP + 1, "schedule": run.plan, "window_ms": window.duration_ms}
    found |= {"busy_ms": busy_ms, "waits": held.to_dict("records"), "kernels": table.to_dict("records")}
    found |= {"slim_trace_mb": len(packed) / 1e6, "step_arguments": vars(run.args), "data_source": run.digits.source}
    steps.write_benchmark_record(args, run.device, run.costs, **found)


if __name__ == "__main__":
    main()
