"""What would a profiler see of a training loop? A GPU that works behind the program, and a bracket around some of it.

``Cuda`` stands in for ``torch.cuda``: a kernel is put into a queue and runs when those before it have ended, whatever
the program does meanwhile; ``profiler``, ``nvtx`` and ``synchronize`` are what they are there. Its clock counts in
milliseconds that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LAUNCH_MS = 0.1  # of the program, for each kernel


@dataclass(frozen=True)
class Kernel:
    """One kernel: of which step of the program, when it ran."""

    step: int
    start: float
    end: float


@dataclass(frozen=True)
class Range:
    """A named stretch of the program, and the names that were open around it, outermost first."""

    name: str
    start: float
    end: float
    within: tuple[str, ...]


class Cuda:
    """A GPU and what can be asked of it. ``now``: the program's clock."""

    def __init__(self) -> None:
        self.now = self._done = 0.0
        self.kernels: list[Kernel] = []
        self.ranges: list[Range] = []
        self.open: list[tuple[str, float]] = []
        self.waits: list[float] = []  # when the program asked for the GPU's end
        self.captured: tuple[float, float] | None = None
        self._since: float | None = None
        self.nvtx = self.profiler = self

    def work(self, ms: float, step: int) -> None:
        """Queue a kernel that runs so long."""
        self.now += LAUNCH_MS
        start = max(self.now, self._done)
        self._done = start + ms
        self.kernels.append(Kernel(step, start, self._done))

    def synchronize(self) -> None:
        self.waits.append(self.now)
        self.now = max(self.now, self._done)

    # torch.cuda.profiler

    def start(self) -> None:
        self._since = self.now

    def stop(self) -> None:
        if self._since is not None:
            self.captured, self._since = (self._since, self.now), None

    @property
    def seen(self) -> list[Kernel]:
        """The kernels that lie in the report: those that began and ended while the profiler looked."""
        first, last = self.captured or (0.0, -1.0)
        return [one for one in self.kernels if first <= one.start and one.end <= last]

    # torch.cuda.nvtx

    def range_push(self, name: str) -> None:
        self.open.append((name, self.now))

    def range_pop(self) -> None:
        if self.open:
            name, start = self.open.pop()
            self.ranges.append(Range(name, start, self.now, tuple(other for other, _ in self.open)))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.range_push(name)
        try:
            yield
        finally:
            self.range_pop()
