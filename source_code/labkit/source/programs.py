"""What runs a lab's commands, live? The programs of this machine: the scripts, nsys, ncu, PyTorch's profiler."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from labkit.source import command, counting, facts, running, turns


class Programs:
    """This machine. The tests put recorded answers in its place (``labkit.pretend.machines``)."""

    @property
    def facts(self) -> facts.Machine:
        return facts.here()

    def missing(self, *packages: str) -> list[str]:
        """Those of the packages that cannot be imported here."""
        return [package for package in packages if not _is_there(package)]

    def turn(self, what: str, show: Callable[[str], None], gpus: int = 1) -> AbstractContextManager[None]:
        """While this lasts, no other live run is on the GPU, or on so many of them."""
        return turns.turn(what, show, turns.gpus(gpus)) if self.facts.gpu else nullcontext()

    def run(self, words: str, file: Path) -> dict:
        """Run a script with its flags; its record, kept in ``file``."""
        return running.run_once(words, file)

    def run_cold(self, words: str, file: Path) -> dict:
        """The same where compilers find nothing that they made before."""
        return running.run_cold(words, file)

    def trace(self, words: str, file: Path) -> dict:
        """Run ``profile_torch.py STEP …``; its record, kept in ``file``, and its trace beside that."""
        return running.run_traced(words, file)

    def profile(self, words: Sequence[str], report: Path, show: Callable[[str], None]) -> None:
        """Run an ``nsys profile`` command; afterwards ``report`` is there."""
        command.run_profile(list(words), report, show)

    def rank_profiles(self, words: Sequence[str], reports: Sequence[Path]) -> None:
        """Run a ``torchrun … nsys profile`` command; afterwards each of its ranks has left its report."""
        command.run_rank_profiles(shlex.join(words), list(reports))

    def count(self, words: Sequence[str], log: Path, show: Callable[[str], None]) -> None:
        """Run an ``ncu`` command; afterwards ``log`` holds its CSV."""
        counting.run(words, log, show)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it lies in is missing: ``cuda`` of ``cuda.bindings``
        return False
