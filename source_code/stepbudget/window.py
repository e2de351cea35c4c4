"""Which stretch of the clock is asked about?"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Window:
    """A stretch of the report's clock, in nanoseconds, and what it is called."""

    start: int
    end: int
    name: str
    thread: int | None = field(default=None, compare=False)  # of the NVTX range that it is, if it is one
    only_process: int | None = field(default=None, compare=False)  # that is asked about, where no range says it
    gpu: int | None = field(default=None, compare=False)  # the card that is asked about; None: all of them

    @property
    def duration_ms(self) -> float:
        return (self.end - self.start) / 1e6

    @property
    def process(self) -> int | None:
        """The process that is asked about: the one whose range the window is, if it is one; None: all of them."""
        return self.only_process if self.thread is None else self.thread >> 24
