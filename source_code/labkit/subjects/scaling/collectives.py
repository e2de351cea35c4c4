"""How long does a collective take, on paper? Steps, each with its latency, and bytes over a bandwidth.

A message of s bytes takes α + s / B (Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994).
In LogP's words (Culler et al., PPoPP 1993), α is what latency and overhead come to, and 1/B the gap of a long message.

In a ring of n, all-gather and reduce-scatter are n − 1 steps of a message of S/n each, S being all that is gathered
or reduced: (n − 1)·α + (n − 1)/n · S/B. An all-reduce is a reduce-scatter and an all-gather, so twice that. Where GPUs
add, no algorithm moves fewer bytes through a link (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69, 2009; the factor is that of the bus bandwidth in nccl-tests, doc/PERFORMANCE.md).
Where the switch adds (NVLS inside a host, SHARP between hosts), about half as many do. NVLS was off in all records
here (``nccl_nvls``: 0), and neither is in this model.

An all-reduce over several hosts: reduce-scatter inside each host, all-reduce of each GPU's part with its peers of the
other hosts, all-gather inside (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19, 2005, for the composition). Between m hosts it goes round a ring or through a pair of trees, which
needs 2·log2(m) steps in place of 2·(m − 1) and moves 2·S/B (Sanders, Speck, Träff, "Two-tree algorithms for full
bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009; NCCL's since 2.4): the faster of both counts.

All-gather and reduce-scatter go round one ring through all n GPUs, as NCCL's do: n − 1 steps, m − 1 of them between
hosts (NCCL, src/graph/tuning.cc: nsteps, nInterSteps). Each host's GPUs use all its network links at once. (NCCL 2.23
brought PAT, with log2(n) steps, for one GPU a host.)

α is fitted on two GPUs, where a collective has one step or two. What a kernel takes once, however many steps it has,
cannot be told from what each step takes there. NCCL's own table has 8.4 µs once, and 3.4 µs a step over NVLink (ring,
Simple). ``Network.once`` is the other end: all of α paid once. The truth lies between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkit.errors import LabError

TURNS = {"AllReduce": 2, "AllGather": 1, "ReduceScatter": 1}  # of a ring


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective: those that its steps' latencies take, and those in which bytes move."""

    latency_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.latency_s + self.transfer_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.latency_s + other.latency_s, self.transfer_s + other.transfer_s)

    def times(self, factor: float) -> Cost:
        return Cost(factor * self.latency_s, factor * self.transfer_s)


@dataclass(frozen=True)
class Link:
    """What one GPU has to another: seconds that each step takes at least, bytes a second in one direction."""

    latency_s: float
    bytes_per_s: float

    def ring(self, function: str, size: float, n: int) -> Cost:
        """A collective of ``size`` bytes in all, among n in a ring."""
        steps = TURNS[function] * (n - 1)
        return Cost(steps * self.latency_s, steps * size / n / self.bytes_per_s)

    def trees(self, size: float, n: int) -> Cost:
        """An all-reduce through a pair of trees."""
        if n == 1:
            return Cost()
        return Cost(2 * math.ceil(math.log2(n)) * self.latency_s, 2 * size / self.bytes_per_s)


# 400 Gb/s InfiniBand (NDR) for each GPU: a ConnectX-7 each, as NVIDIA's DGX H200 User Guide has it. The latency of a
# step is NCCL's own guess for a ring over a network (the table of hardware latencies in src/graph/tuning.cc: NET, Ring,
# Simple: 14.0 µs; older releases have 9.6). The protocol for short messages, LL128, has 4.0.
NDR = Link(14.0e-6, 400e9 / 8)
GPUS_A_HOST = 8  # as many as NVLink and its switches connect in an HGX or DGX host


@dataclass(frozen=True)
class Network:
    """Hosts with GPUs: a link inside each, another between them, one for each GPU.

    ``beside``: how many times as long a rank's CPU takes for a step as it takes without other ranks. ``slowed``: how
    many seconds longer kernels take for each second in which a collective runs beside them. ``spread``: standard
    deviation of a GPU's work of a step over the ranks, as a share of it. ``base_s``: paid once for each of a
    collective's passes, however many steps it has.
    """

    inside: Link
    between: Link = NDR
    per_host: int = GPUS_A_HOST
    beside: float = 1.0
    slowed: float = 0.0
    spread: float = 0.0
    base_s: float = 0.0

    @property
    def once(self) -> Network:
        """The same, were all the latency inside a host a kernel's own, and none of it a step's."""
        inside = Link(0.0, self.inside.bytes_per_s)
        return replace(self, inside=inside, base_s=self.base_s + self.inside.latency_s)

    def cost(self, function: str, size: float, n: int) -> Cost:
        """A collective of ``size`` bytes in all, among n GPUs. LabError where they do not fill their hosts."""
        if n == 1:
            return Cost()
        base = Cost(TURNS[function] * self.base_s)
        if n <= self.per_host:
            return base + self.inside.ring(function, size, n)
        if n % self.per_host:
            raise LabError(f"{n} GPUs do not fill hosts of {self.per_host}.")
        hosts, part = n // self.per_host, size / self.per_host
        if function != "AllReduce":
            return base + self._one_ring(function, size, n, hosts)
        ways = self.between.ring(function, part, hosts), self.between.trees(part, hosts)
        return base + self.inside.ring(function, size, self.per_host) + min(ways, key=lambda cost: cost.total_s)

    def _one_ring(self, function: str, size: float, n: int, hosts: int) -> Cost:
        """A ring through all n GPUs; each host's links to the others carry it together."""
        turns, slowest = TURNS[function], min(self.inside.bytes_per_s, self.per_host * self.between.bytes_per_s)
        latency_s = turns * ((n - hosts) * self.inside.latency_s + (hosts - 1) * self.between.latency_s)
        return Cost(latency_s, turns * (n - 1) / n * size / slowest)


def fitted(messages: pd.DataFrame) -> Link:
    """The link that comes nearest to measured messages (columns of ``readings.messages``), by relative error.

    Least squares; a latency below zero becomes zero. LabError where there are fewer than two sizes.
    """
    if len(messages) < 2:
        raise LabError("latency and bandwidth need messages of two sizes at least.")
    steps = messages["function"].map(TURNS) * (messages["ranks"] - 1)
    seconds = messages["us"].to_numpy(float) / 1e6
    parts = np.array([steps, steps * messages["bytes"] / messages["ranks"]], dtype=float) / seconds
    latency_s, per_byte = np.linalg.lstsq(parts.T, np.ones(len(messages)), rcond=None)[0]
    if latency_s < 0:
        latency_s, per_byte = 0.0, parts[1].sum() / (parts[1] ** 2).sum()
    if per_byte <= 0:
        raise LabError("larger messages took no longer than small ones: no bandwidth can be told.")
    return Link(float(latency_s), 1 / float(per_byte))
