"""A data-parallel run made by hand: a report a rank, each on a clock of its own, with a straggler if asked for.

A step, in microseconds of true time: the loader's wait, forward and backward on the GPU, an all-reduce in the middle of
backward and one at its end, the optimizer, and what the program writes to its log. An all-reduce begins on each rank
when its part is ready and ends TRANSFER after it has begun on the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from synthetic import SyntheticReport

SGEMM = "ampere_sgemm_128x64_nn"
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
LOADER, FORWARD, BACKWARD, TRANSFER, OPTIMIZER = 20, 100, 200, 50, 30
NEXT = 15  # from the end of one step's last call to the next step


@dataclass
class Ddp:
    """A run; ``write`` makes the reports."""

    ranks: int = 2
    steps: int = 10
    loader: dict[int, float] = field(default_factory=dict)  # rank → how much longer a step waits for its batch (µs)
    backward: dict[int, float] = field(default_factory=dict)  # rank → how much longer its backward takes
    logging: dict[int, float] = field(default_factory=dict)  # rank → for how long it writes a log after each step
    offsets: tuple[float, ...] = ()  # by how much true time is ahead of a rank's clock (µs)
    drifts: tuple[float, ...] = ()  # and by how much more of each second that passes, as a share
    jitter: float = 0.0  # by how much the ends of one collective differ at most (µs)
    uneven: float = 0.0  # by how much steps differ in length at most (µs)
    skipped: dict[int, int] = field(default_factory=dict)  # rank → steps that its capture missed at the start
    groups: tuple[tuple[int, ...], ...] = ()  # communicators with few ranks: one more all-reduce each, after backward
    written: bool = False  # does NCCL write communicator and size? And whether as bytes, whether it wrote the ranks
    as_bytes: bool = False
    init: bool = False
    in_one: bool = False  # one report for all ranks, each on a GPU of its own, and one clock
    seed: int = 0

    def write(self, folder: Path, name: str = "rank{}.sqlite", extra=None) -> list[Path]:
        """The reports; ``extra(rank, report)`` adds to each."""
        made = [SyntheticReport(folder / name.format(rank)) for rank in range(1 if self.in_one else self.ranks)]
        made = made * self.ranks if self.in_one else made
        for rank, report in enumerate(made):
            report.program("python3", process=rank + 11)
            if self.init:
                written = {"NCCL communicator ID": 0xF00D << 48, "No. of ranks": self.ranks, "Rank": rank}
                self._nccl(report, rank, 0, 1, "ncclCommInitRankConfig", written)
        random = np.random.default_rng(self.seed)
        now, begun = [10.0] * self.ranks, [None] * self.ranks
        for step in range(self.steps):
            slower = random.uniform(0, self.uneven)
            now = self._step(made, step, now, slower, random, begun)
        for rank, report in enumerate(made):
            self._range(report, rank, begun[rank], now[rank], "training")
            if extra:
                extra(rank, report)
        return [report.write() for report in (made[:1] if self.in_one else made)]

    def own(self, rank: int, true: float) -> float:
        """A moment of true time on the rank's clock."""
        offset = self.offsets[rank] if self.offsets else 0.0
        return true - offset - (self.drifts[rank] if self.drifts else 0.0) * true

    def _step(self, made, step, now, slower, random, begun) -> list[float]:
        here = [step >= self.skipped.get(rank, 0) for rank in range(self.ranks)]
        begun[:] = [now[r] if begun[r] is None and here[r] else begun[r] for r in range(self.ranks)]
        ready = []
        for rank, report in enumerate(made):
            wait = LOADER + self.loader.get(rank, 0)
            called = now[rank] + wait
            half = (BACKWARD + self.backward.get(rank, 0) + slower) / 2
            forward = called + 5 + FORWARD
            if here[rank]:
                self._range(report, rank, now[rank], called, "data loading")
                self._os(report, rank, now[rank], called)
                self._kernel(report, rank, called + 5, forward, SGEMM, called)
                self._kernel(report, rank, forward, forward + half, SGEMM, called + 1)
                self._kernel(report, rank, forward + half, forward + 2 * half, SGEMM, called + 2)
            ready.append((called, forward + half, forward + 2 * half))
        ends = [0.0] * self.ranks
        for bucket in (1, 2):
            at = [max(own[bucket], end) for own, end in zip(ready, ends, strict=True)]
            ends = self._all_reduce(made, here, range(self.ranks), at, [own[0] + 2 + bucket for own in ready], random)
        for number, group in enumerate(self.groups):
            at = [end + 1 for end in ends]
            called = [own[0] + 6 for own in ready]
            ends = self._all_reduce(made, here, group, at, called, random, f"{number + 1}") + ends[len(group) :]
        following = []
        for rank, report in enumerate(made):
            start = max(ends[rank], ready[rank][2])
            logged = start + OPTIMIZER + self.logging.get(rank, 0)
            if here[rank]:
                self._kernel(report, rank, start, start + OPTIMIZER, SGEMM, ready[rank][0] + 8)
                self._api(report, rank, ready[rank][0] + 10, start + OPTIMIZER, "cudaStreamSynchronize_v3020")
            following.append(logged + NEXT)
        return following

    def _all_reduce(self, made, here, group, at, called, random, communicator="") -> list[float]:
        done = max(at[rank] for rank in group) + TRANSFER
        ends = []
        for rank in group:
            end = done + random.uniform(-self.jitter, self.jitter) / 2
            ends.append(end)
            if here[rank]:
                self._kernel(made[rank], rank, at[rank], end, ALLREDUCE, called[rank], stream=20)
                if self.written:
                    number = int(communicator) + 0xF00D if communicator else 0xF00D
                    written = {"NCCL communicator ID": number << 48, "Message size [bytes]": 4_000_000}
                    self._nccl(made[rank], rank, called[rank] - 0.2, called[rank] + 0.8, "ncclAllReduce", written)
        return ends

    def _kernel(self, report, rank, start, end, name, call, stream=7) -> None:
        calls = (self.own(rank, call), self.own(rank, call + 0.5))
        times = (self.own(rank, start), self.own(rank, end))
        device = rank if self.in_one else 0
        report.kernel(*times, name, call=calls, device=device, stream=stream, process=rank + 11)

    def _range(self, report, rank, start, end, name) -> None:
        report.range(self.own(rank, start), self.own(rank, end), name, process=rank + 11)

    def _os(self, report, rank, start, end) -> None:
        report.os_call(self.own(rank, start), self.own(rank, end), "poll", process=rank + 11)

    def _api(self, report, rank, start, end, name) -> None:
        report.api(self.own(rank, start), self.own(rank, end), name, process=rank + 11)

    def _nccl(self, report, rank, start, end, name, written) -> None:
        times = (self.own(rank, start), self.own(rank, end))
        report.nccl(*times, name, process=rank + 11, written=written, as_bytes=self.as_bytes)
