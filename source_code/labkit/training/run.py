"""One training run: its settings, its clock and its record.

A step script holds one idea: its training loop. Seeds, FP32 settings, the profiler's bracket, the clock and the record
from which every table of the course is built are here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path

import torch

from labkit.errors import LabError, one_sentence
from labkit.training import ending, machine, manifest, ranges
from labkit.training.data import Digits, DigitSet, load_digits, transform
from labkit.training.devices import pick_device, set_fp32_precision
from labkit.training.ranges import phase
from labkit.training.record import RECORD_FORMAT, keep, seconds_since_process_start, surroundings, write_json

PROFILED_EPOCH = 2  # the first holds warm-up: library loading, algorithm choice, memory pools


class Run:
    """One training run: its settings, its clock and its record.

    Use as a context manager around the epochs. On leaving, the record is complete, or marked ``interrupted`` or
    ``failed`` with what had been measured by then.
    """

    operators_ranged = False  # only in the epoch that --profile brackets, and only under --profile-ops

    def __init__(
        self, args: argparse.Namespace, tf32: bool = False, loader: bool = True, needs_bf16: bool = False
    ) -> None:
        """Seed, precision, device, digits; raises SystemExit(2) with one sentence if something named is not there.

        ``loader`` says that the step fetches digits one by one, for which torchvision is imported now: it takes a
        while, and loader processes that start later inherit it. ``needs_bf16``: the step's kernels, where they run on
        a GPU, multiply in BF16.
        """
        self.args = args
        self.script = Path(sys.argv[0]).name
        self.started = datetime.now(timezone.utc)
        self.epoch_records: list[dict] = []
        self.extras: dict = {}  # what a step has to tell beyond the common record
        self.startup_s: float | None = None
        with one_sentence():
            self.device = pick_device(args.device)
            if needs_bf16 and self.device.type == "cuda" and not machine.has_bf16():
                raise LabError(f"{self.script} needs BF16, and {machine.gpu_name()} has none (Ampere and newer do).")
            self.digits: Digits = load_digits(args.data_dir, args.limit)
        if loader:
            transform()
        torch.manual_seed(args.seed)
        set_fp32_precision(tf32)
        ranges.switch(args.profile)
        self.cuda = self.device.type == "cuda"
        self.gpu = torch.cuda.get_device_name(self.device) if self.cuda else None
        if self.cuda and hasattr(args, "amp_dtype") and not machine.has_bf16():
            print("This GPU has no BF16: mixed precision is FP16 unless you ask for another type.")
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
        status = ending.status(error)
        self._write_record(status)
        sentence = ending.sentence(error)
        if sentence is None:
            return False
        kept = f" The record in {self.args.record} is marked '{status}'." if self.args.record else ""
        print(f"\n{self.script}: {sentence}{kept}", file=sys.stderr, flush=True)
        sys.exit(ending.exit_status(error))

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

    def log_step(self, epoch: int, step: int, loss: torch.Tensor) -> None:
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

    def _write_record(self, status: str) -> None:
        """The record as it stands. On a disk that is full by now the training goes on: the end tries again."""
        if not self.args.record:
            return
        if status == "running":
            with suppress(OSError):
                write_json(Path(self.args.record), self.record(status))
        else:  # with the code behind it: that takes a moment
            keep(self.args.record, self.record(status) | manifest.for_record())


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
