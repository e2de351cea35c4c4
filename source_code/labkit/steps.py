"""The command line and the run record that every step script shares.

A step script holds one idea: its training loop. Everything around it is here: flags, seeds, FP32 settings, NVTX
ranges, the profiler's bracket, the clock, and the JSON record from which every table of the course is built.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path

import torch

from labkit import machine
from labkit.data import Digits, DigitSet, load_digits, transform
from labkit.errors import LabError, one_sentence

RECORD_FORMAT = 1
PROFILED_EPOCH = 2  # the first holds warm-up: library loading, algorithm choice, memory pools

_ranges_on = False  # NVTX ranges exist only under --profile: a timed run carries none


def spare_cores() -> int:
    """Loader workers to start by default: the usable cores, less one for the training loop and one for the system."""
    return max(1, machine.usable_cores() - 2)


def parse_args(
    doc: str, workers: int | None = None, amp: bool = False, amp_dtype: str | None = None
) -> argparse.Namespace:
    """The command line that all steps share; ``doc`` is the script's docstring.

    ``workers`` is the step's default number of loader workers (spare_cores() if None); ``amp`` adds the flags of
    automatic mixed precision, ``amp_dtype`` that of its type alone, and its default.
    Wrong arguments end the program with argparse's error and status 2.
    """
    workers = spare_cores() if workers is None else workers
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0])
    add = parser.add_argument
    add("--epochs", type=_at_least(1), default=10, help="passes over the training set (default: %(default)s)")
    add("--batch-size", type=_at_least(1), default=1024, help="samples a step (default: %(default)s)")
    add(
        "--test-batch-size",
        type=_at_least(1),
        default=1000,
        help="samples a test batch (default: %(default)s)",
    )
    add("--lr", type=_positive, default=1.0, help="Adadelta's learning rate (default: %(default)s)")
    add("--gamma", type=_positive, default=0.7, help="learning-rate factor an epoch (default: %(default)s)")
    add("--seed", type=_at_least(0), default=1, help="random seed (default: %(default)s)")
    add("--workers", type=_at_least(0), default=workers, help="loader processes (default here: %(default)s)")
    add("--data-dir", metavar="DIR", help="where MNIST lies (default: LAB_DATA_DIR, then the cache folder)")
    add("--limit", type=_at_least(1), metavar="N", help="train on the first N samples only")
    add("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one")
    add("--log-interval", type=_at_least(1), default=10, metavar="N", help="print the loss every N steps")
    add("--record", metavar="FILE", help="write the run's record, one JSON object, to FILE")
    add("--profile", action="store_true", help="bracket one epoch for the profiler and switch NVTX ranges on")
    add("--profile-ops", action="store_true", help="with --profile: a range for each operator too, with its shapes")
    if amp or amp_dtype:
        dtypes = ("float16", "bfloat16", "float32")
        add(
            "--amp-dtype",
            choices=dtypes,
            default=amp_dtype or "float16",
            help="float32: no autocast (default: %(default)s)",
        )
    if amp:
        add("--tf32", action="store_true", help="let FP32 convolutions and products use TF32 on Tensor Cores")
        add("--no-grad-scaler", dest="grad_scaler", action="store_false", help="FP16 without loss scaling")
    args = parser.parse_args()
    if args.profile_ops and not args.profile:
        parser.error("argument --profile-ops: only with --profile")
    return args


def set_fp32_precision(tf32: bool) -> None:
    """True FP32 arithmetic, or TF32, for FP32 convolutions and matrix products.

    PyTorch's own default is mixed: TF32 for convolutions, FP32 for matrix products. A baseline that means FP32 has to
    say so. The setting is ``fp32_precision`` from torch 2.9 on and ``allow_tf32`` before.
    """
    if hasattr(torch.backends.cudnn, "conv") and hasattr(torch.backends.cudnn.conv, "fp32_precision"):
        precision = "tf32" if tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision
        torch.backends.cudnn.rnn.fp32_precision = precision
    else:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


def phase(name: str) -> AbstractContextManager[None]:
    """An NVTX range around a ``with`` block: a named bar in Nsight Systems' timeline. Nothing at all in a timed run."""
    return _nvtx_range(name) if _ranges_on else nullcontext()


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def loading(loader: Iterable) -> Iterator:
    """The loader's batches, with an NVTX range around each wait for one; the first holds the start of the workers."""
    end = object()
    batches = None
    while True:
        with phase("data loading"):
            batches = iter(loader) if batches is None else batches
            batch = next(batches, end)
        if batch is end:
            return
        yield batch


class Run:
    """One training run: its settings, its clock and its record.

    Use as a context manager around the epochs. On leaving, the record is complete, or marked ``interrupted`` or
    ``failed`` with what had been measured by then.
    """

    operators_ranged = False  # only in the epoch that --profile brackets, and only under --profile-ops

    def __init__(self, args: argparse.Namespace, tf32: bool = False, loader: bool = True) -> None:
        """Seed, precision, device, digits; raises SystemExit(2) with one sentence if something named is not there.

        ``loader`` says that the step fetches digits one by one, for which torchvision is imported now: it takes a
        while, and loader processes that start later inherit it.
        """
        global _ranges_on
        self.args = args
        self.script = Path(sys.argv[0]).name
        self.started = datetime.now(timezone.utc)
        self.epoch_records: list[dict] = []
        self.extras: dict = {}  # what a step has to tell beyond the common record
        self.startup_s: float | None = None
        with one_sentence():
            self._check_record_file()
            self.device = pick_device(args.device)
            self.digits: Digits = load_digits(args.data_dir, args.limit)
        if loader:
            transform()
        _silence_workers_that_lose_us()
        torch.manual_seed(args.seed)
        set_fp32_precision(tf32)
        _ranges_on = args.profile and torch.version.cuda is not None  # a CPU build of PyTorch has no NVTX
        self.cuda = self.device.type == "cuda"
        self.gpu = torch.cuda.get_device_name(self.device) if self.cuda else None
        where = self.gpu or f"no GPU used: training on {machine.usable_cores()} CPU cores, slowly"
        print(f"{self.script}: {args.epochs} epochs, batch {args.batch_size}, seed {args.seed} | {where}")
        precision = "TF32" if tf32 else "true FP32 (TF32 off)"
        print(
            f"Data: {self.digits.source} | FP32 arithmetic: {precision} | loader workers: {args.workers}",
            flush=True,
        )

    def __enter__(self) -> Run:
        self.startup_s = seconds_since_process_start()
        return self

    def __exit__(self, kind, error, traceback) -> bool:
        status = "complete"
        if error is not None:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        self._write_record(status)
        sentence = _what_went_wrong(error)
        if sentence is None:
            return False
        kept = f" The record in {self.args.record} is marked '{status}'." if self.args.record else ""
        print(f"\n{self.script}: {sentence}{kept}", file=sys.stderr, flush=True)
        sys.exit(130 if status == "interrupted" else 1)

    def epochs(self) -> Iterator[int]:
        """The numbers 1 to ``--epochs``; under ``--profile`` the profiler sees one of them only."""
        for epoch in range(1, self.args.epochs + 1):
            profiled = self.args.profile and self.cuda and epoch == min(PROFILED_EPOCH, self.args.epochs)
            if profiled:
                torch.cuda.profiler.start()
            self.operators_ranged = profiled and self.args.profile_ops
            self.epoch_records.append({"epoch": epoch})
            yield epoch
            if profiled:
                torch.cuda.profiler.stop()
            self._write_record("running")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a part of the epoch (``"training"`` or ``"test"``), with the device synchronised at both ends."""
        self.synchronize()
        start = time.perf_counter()
        with phase(name), self._operator_ranges(name):
            yield
            self.synchronize()
        self.epoch_records[-1][f"{name}_s"] = time.perf_counter() - start

    def on_device(self, digits: DigitSet) -> tuple[torch.Tensor, torch.Tensor]:
        """A whole set on the device: images, uint8 ``(N, 28, 28)``, and labels, int64 ``(N,)``."""
        return digits.data.to(self.device), digits.targets.to(self.device)

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Measure what goes before the first epoch (compilation, graph capture): ``warm_up_s`` in the extras."""
        self.synchronize()
        start = time.perf_counter()
        with phase("warm-up"):
            yield
            self.synchronize()
        self.extras["warm_up_s"] = self.extras.get("warm_up_s", 0.0) + time.perf_counter() - start

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """``work`` as a CUDA graph: recorded now, not run; each call of the result launches all of it at once.

        Everything that happens once only (library start-up, compilation, an optimizer's first step) must have happened
        before. Tensors that ``work`` reads keep their place: new contents are copied into them. PyTorch's own random
        numbers differ from launch to launch. On the CPU the result is ``work`` itself.
        """
        if not self.cuda:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def _operator_ranges(self, name: str) -> AbstractContextManager:
        """An NVTX range around every operator of the profiled training, named with its input shapes."""
        if name == "training" and self.operators_ranged:
            return torch.autograd.profiler.emit_nvtx(record_shapes=True)
        return nullcontext()

    def synchronize(self) -> None:
        """Wait until the GPU has finished all that was launched."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def log_step(self, epoch: int, step: int, loss: torch.Tensor, loader=None) -> None:
        """Print the usual training line every ``--log-interval`` steps (reading the loss waits for the GPU)."""
        if step % self.args.log_interval == 0:
            self._log_loss(epoch, step, loss.item())

    def log_epoch(self, epoch: int, losses: torch.Tensor) -> None:
        """Print the usual training lines of a whole epoch from the loss of each of its steps: one wait for the GPU."""
        for step, loss in enumerate(losses.tolist()):
            if step % self.args.log_interval == 0:
                self._log_loss(epoch, step, loss)

    def _log_loss(self, epoch: int, step: int, loss: float) -> None:
        seen, total = step * self.args.batch_size, len(self.digits.train)
        percent = 100.0 * step / self.steps_an_epoch
        self.epoch_records[-1]["train_loss"] = loss
        print(f"Train Epoch: {epoch} [{seen}/{total} ({percent:.0f}%)]\tLoss: {loss:.6f}")

    @property
    def steps_an_epoch(self) -> int:
        """Training steps in an epoch; the last one may be short."""
        return -(-len(self.digits.train) // self.args.batch_size)

    def log_test(self, loss: float, correct: int, total: int) -> None:
        """Print the usual test line and keep both numbers; ``loss`` is the mean over the test set."""
        accuracy = 100.0 * correct / total
        self.epoch_records[-1].update(test_loss=loss, test_accuracy_pct=accuracy)
        print(
            f"\nTest set: Average loss: {loss:.4f}, Accuracy: {correct}/{total} ({accuracy:.0f}%)\n",
            flush=True,
        )

    def record(self, status: str) -> dict:
        """The run's record as it stands: what was run, on what, how long it took, and what came out."""
        peak = torch.cuda.max_memory_allocated(self.device) if self.cuda else None
        last = next((epoch for epoch in reversed(self.epoch_records) if "test_loss" in epoch), {})
        return {
            "format": RECORD_FORMAT,
            "script": self.script,
            "status": status,
            "arguments": vars(self.args),
            "profiled": self.args.profile,
            "started": self.started.isoformat(timespec="seconds"),
            "wall_s": seconds_since_process_start(),
            "startup_s": self.startup_s,
            "training_s": sum(epoch.get("training_s", 0.0) for epoch in self.epoch_records),
            "test_s": sum(epoch.get("test_s", 0.0) for epoch in self.epoch_records),
            "epochs": self.epoch_records,
            "test_loss": last.get("test_loss"),
            "test_accuracy_pct": last.get("test_accuracy_pct"),
            "extras": self.extras,
            "peak_gpu_memory_mb": peak and peak / 1e6,
            "data_source": self.digits.source,
            "train_samples": len(self.digits.train),
            "test_samples": len(self.digits.test),
            **surroundings(self.device),
        }

    def _check_record_file(self) -> None:
        """Fail before training, not after it, where the record could not be written."""
        if self.args.record:
            folder = Path(self.args.record).resolve().parent
            if Path(self.args.record).is_dir():
                raise LabError(f"cannot write a record into {self.args.record}: it is a folder. Name a file.")
            try:
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise LabError(f"cannot write a record into {folder}: {error.strerror}.") from error

    def _write_record(self, status: str) -> None:
        if self.args.record:
            write_json(Path(self.args.record), self.record(status))


def surroundings(device: torch.device) -> dict:
    """What a measurement depends on beside the code: device, GPU, driver, CPU, versions."""
    cuda = device.type == "cuda"
    return {
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if cuda else None,
        "driver": machine.driver_version() if cuda else None,
        "cpu": machine.cpu_name(),
        "cpu_cores": machine.usable_cores(),
        "versions": {
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
    }


@contextmanager
def rehearsal(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let some steps be taken that leave no trace but what they set up: parameters, state and random numbers go back.

    On a stream of its own, as a capture wants its warm-up. The optimizer's state, new before, ends at zero.
    """
    before = [parameter.detach().clone() for parameter in model.parameters()]
    device = before[0].device
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        if cuda:
            torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()) if cuda else nullcontext():
            yield
        if cuda:
            torch.cuda.synchronize()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
    optimizer.zero_grad()


def found_digits(args: argparse.Namespace) -> Digits:
    """The digits that ``--data-dir`` and ``--limit`` ask for; ends the program with one sentence if there are none."""
    with one_sentence():
        return load_digits(args.data_dir, args.limit)


def need_gpu() -> torch.device:
    """The GPU; ends the program with one sentence where there is none."""
    with one_sentence():
        return pick_device("cuda")


def write_benchmark_record(args: argparse.Namespace, device: torch.device, rows: list[dict], **more: str | int) -> None:
    """Write a benchmark's rows, with where they were measured, to ``--record FILE``; nothing without that flag."""
    if args.record:
        record = {"format": RECORD_FORMAT, "script": Path(sys.argv[0]).name, "status": "complete"}
        record |= {"arguments": vars(args), "rows": rows, **more, **surroundings(device)}
        write_json(Path(args.record), record)


def write_json(file: Path, content: dict) -> None:
    """Write ``content`` as JSON so that the file is either the old one or the new one, never half of one."""
    text = json.dumps(content, indent=1) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=file.resolve().parent, suffix=".tmp", delete=False) as stream:
        stream.write(text)
    draft = Path(stream.name)
    draft.chmod(0o644)  # as an ordinary file: temporary ones are for their owner only
    draft.replace(file)


def seconds_since_process_start() -> float:
    """Seconds since the operating system started this process (Linux, 10 ms steps), so that imports count too."""
    stat = Path("/proc/self/stat")
    if not stat.is_file():
        return time.perf_counter()
    started_ticks = int(stat.read_text().rpartition(")")[2].split()[19])  # field 22 of proc(5), after "(comm)"
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - started_ticks / os.sysconf("SC_CLK_TCK")


def pick_device(wanted: str) -> torch.device:
    """The device for ``--device auto|cuda|cpu``; LabError where ``cuda`` is asked for and not there."""
    if wanted == "cuda" and machine.gpu_name() is None:
        raise LabError(f"no GPU that CUDA can use on this machine ({machine.gpu_problem() or 'none was found'}).")
    if wanted == "auto":
        wanted = "cuda" if machine.gpu_name() else "cpu"
    return torch.device(wanted)


def _what_went_wrong(error: BaseException | None) -> str | None:
    """One sentence for the failures that a reader can mend; None leaves the traceback to speak."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "error: out of GPU memory. Lower --batch-size, or free the GPU from other programs."
    text = str(error) if isinstance(error, RuntimeError) else ""
    if "shared memory" in text or "Bus error" in text:
        return "error: the loader workers ran out of shared memory. In a container, add --ipc=host (or --shm-size=8g)."
    if "DataLoader worker" in text:
        return "error: a loader worker was killed. Is the machine out of memory? Lower --workers."
    return None


def _silence_workers_that_lose_us() -> None:
    """After Ctrl-C a loader worker may find this process gone in mid-talk: its traceback would tell nobody anything."""
    main, usual = os.getpid(), sys.excepthook

    def hook(kind, error, traceback) -> None:
        if os.getpid() == main or not issubclass(kind, (ConnectionError, EOFError, KeyboardInterrupt)):
            usual(kind, error, traceback)

    sys.excepthook = hook


def _at_least(smallest: int):
    def integer(text: str) -> int:
        value = int(text)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is less than {smallest}")
        return value

    return integer


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
