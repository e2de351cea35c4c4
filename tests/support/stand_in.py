"""A machine for tests of the door: it says what it is, and does what the test hands it in the place of programs."""

from __future__ import annotations

from contextlib import nullcontext

from labkit.source import Machine, Programs

A_GPU = Machine(
    gpu="NVIDIA Test GPU",
    capability=(9, 0),
    cores=16,
    driver="580.1",
    nsys="2025.3.1",
    ncu=True,
    counters=True,
)
NO_GPU = Machine(gpu=None, capability=None, cores=4, driver=None, nsys="2025.3.1", ncu=False, counters=False)


class StandIn(Programs):
    """``StandIn(run=…)``: what is not handed in is run on this machine."""

    def __init__(self, machine: Machine = A_GPU, **does) -> None:
        self.machine = machine
        vars(self).update(does)

    def turn(self, what, show, gpus=1):
        return nullcontext()  # nothing is measured

    @property
    def facts(self) -> Machine:
        return self.machine
