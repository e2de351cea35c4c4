"""How long will it take here? From how long it took on the recorded machine, and how this one has compared so far."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from labkit.errors import LabError
from labkit.source import originals, recorded
from labkit.source.quick import shortened, whole

LONG_S = 5.0  # what takes less is not announced


@dataclass
class Pace:
    """Seconds of what was run in this session, here and on the recorded machine."""

    here_s: float = 0.0
    recorded_s: float = 0.0

    def note(self, expected_s: float | None, took_s: float) -> None:
        """A run ended that took so long on the recorded machine (None: unknown), and so long here."""
        if expected_s:
            self.here_s += took_s
            self.recorded_s += expected_s

    @property
    def ratio(self) -> float | None:
        """How many times as long things take here; None while nothing is known."""
        return self.here_s / self.recorded_s if self.recorded_s else None

    def announcement(self, expected: Iterable[float | None]) -> str | None:
        """How long a cell is going to take, by what its runs took on the recorded machine; None where that is short."""
        expected = list(expected)
        there_s = sum(filter(None, expected))
        if there_s * (self.ratio or 1.0) < LONG_S:
            return None
        unknown = expected.count(None)
        more = f", and {unknown} that {'was' if unknown == 1 else 'were'} not recorded" if unknown else ""
        if self.ratio is None:
            return f"the recorded machine took {duration(there_s)}{more}"
        times, word = max(self.ratio, 1 / self.ratio), "slow" if self.ratio >= 1 else "fast"
        so_far = f"this one has been {times:.1f} times as {word} so far"
        return f"about {roughly(there_s * self.ratio)}{more} (recorded machine: {duration(there_s)}; {so_far})"


def duration(seconds: float) -> str:
    """``45 s``, ``2 min 10 s``, ``1 h 5 min``"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def roughly(seconds: float) -> str:
    """The same for a forecast: to 5 s below a minute, else to a minute."""
    return f"{5 * round(seconds / 5)} s" if seconds < 60 else f"{round(seconds / 60)} min"


def recorded_s(kind: str, command: str) -> float | None:
    """How long a run of ``command`` took on the recorded machine (process, median); None where it was not recorded."""
    try:
        if kind == recorded.TRACES:
            return originals.read(recorded.held(partial(recorded.traced_file, command))[0])["process_s"]
        return statistics.median(record["process_s"] for record in recorded.long_or_short(kind, command))
    except LabError:
        return None


def recorded_cold_s(command: str) -> float | None:
    """The same of a run with cold caches; ``command``: as the mode has it run."""
    for record in map(originals.read, recorded.cold_files(whole(command), recorded.folder())):
        return (record if record["command"] == command else shortened(record))["process_s"]
    return None
