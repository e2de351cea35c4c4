"""What runs a lab's commands, live? The programs of this machine: the scripts, nsys, ncu, PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from labkit.source import command, counting, facts, running, turns
from labkit.training import machine


class Programs:
    """This machine. The tests put recorded answers in its place (``labkit.pretend.machines``)."""

    # A script's words, its record's file → its record
    run = staticmethod(running.run_once)
    run_cold = staticmethod(running.run_cold)
    trace = staticmethod(running.run_traced)
    # The words of nsys or ncu, what they are to leave, where their output is shown
    profile = staticmethod(command.run_profile)
    rank_profiles = staticmethod(command.run_rank_profiles)
    count = staticmethod(counting.run)
    missing = staticmethod(machine.missing)

    @property
    def facts(self) -> facts.Machine:
        return facts.here()

    def turn(self, what: str, show: Callable[[str], None], gpus: int = 1) -> AbstractContextManager[None]:
        """While this lasts, no other live run is on the GPU, or on so many of them."""
        return turns.turn(what, show, turns.gpus(gpus)) if self.facts.gpu else nullcontext()
