"""What lab 21 claims: a second GPU gains what its CPU allows; a long all-reduce is waiting; a model foretells both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.labs.lab21 import measured
from labkit.subjects.scaling import model
from labkit.subjects.scaling.readings import ON_CPU, PROGRAMS, Records
from stepbudget.ask.ranks import Rank

WITHIN_PCT = 15  # of the measured step: as near as a prediction should be
SAMPLES, PLACES = 10, 12  # of the sampler's trial: four ranks get three each


def second_gpu(gains: Mapping[str, Spread]) -> Iterator[Claim | str]:
    """What the batch of one GPU gains by being shared out between two, by program."""
    times = {name: gain.median for name, gain in gains.items()}
    yield Claim(
        "a second GPU gains the small network less than a quarter, the transformer over a half",
        times["ddp_on_gpu"] < 1.25 and times["text_ddp"] > 1.5,
        times,
        because="a faster CPU launches the small steps sooner; a slow link holds up the transformer",
        so="the next sections show which of the two it is on your host",
    )


def late_for_its_cpu(ranks: Sequence[Rank]) -> Iterator[Claim | str]:
    """The rank that hardly waits is late because of its own CPU, beside which the link is nothing."""
    late = min(ranks, key=lambda rank: rank.communication["waiting_ms"])
    cpu_ms = sum(late.budget.ms[cause] for cause in ON_CPU)
    travel_ms = late.communication["transfer_ms"]
    yield Claim(
        "the late rank's GPU idles for its own CPU ten times as long as gradients travel", cpu_ms > 10 * travel_ms,
        (cpu_ms, travel_ms),
        because="the CPU is faster, or the link between the GPUs slower (PCIe in place of NVLink)",
        so="the transfer is a larger part of your step: its share is in the table of communication",
    )  # fmt: skip
    yield f"Rank {late.number}: idle for its CPU {cpu_ms:.0f} ms, transfer {travel_ms:.1f} ms."


def graph_pays(graphs: Records) -> Iterator[Claim | str]:
    """An epoch in one launch: how many times as fast two GPUs are, round by round."""
    yield Claim("two are faster in each round, as recorded", measured.graph(graphs).low > 1)


def full_batches_pay(found: Records) -> Iterator[Claim | str]:
    """Weak scaling of the transformer: how many times the samples a second of one GPU."""
    weak = measured.weak(found)
    yield Claim(
        "with a full batch each, two GPUs lose the transformer less than a tenth", weak.median > 1.8, weak.median,
        because="the GPUs are connected by PCIe, or by another host",
        so="look at exposed communication: larger batches or fewer averages hide more of it",
    )  # fmt: skip


def dealt_out(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], told: Sequence[Sequence[int]]
) -> Iterator[Claim | str]:
    """The ranks' shares of two epochs, and of one that ``set_epoch`` told them of: the samples of each, in order."""
    dealt = sorted(sample for share in first for sample in share)
    yield f"{len(dealt)} places for {len(set(dealt))} samples."
    filled = set(dealt) == set(range(SAMPLES)) and len(dealt) == PLACES
    yield Claim("every sample is dealt, and some twice, so that all ranks have as many", filled)
    yield Claim("a second epoch has the same order", first == second)
    yield Claim("unless set_epoch tells which it is", first != told)


def accuracy_kept(trained: pd.DataFrame) -> Iterator[Claim | str]:
    """The test accuracy of whole trainings passes the gate: a row a script, number of GPUs and seed."""
    gate = measured.seeds(trained).frame["gate"]
    yield Claim(
        "no script fails the accuracy gate with the seeds that it has", not gate.str.startswith("FAILED").any(),
        because="few seeds can fail by chance",
        so="train ten more seeds before you share a batch out",
    )  # fmt: skip


def two_as_predicted(scored: pd.DataFrame) -> Iterator[Claim | str]:
    """The model foretells the steps on two GPUs, a row each, and what it takes from the other network's reports."""
    within = int((scored["off_pct"].abs() <= WITHIN_PCT).sum())
    yield Claim(f"all of them within {WITHIN_PCT} %, as recorded", within == len(scored))
    for network, other in model.OTHER.items():
        near = model.network(programs=[other])
        yield (
            f"{network}: a CPU beside a second rank takes {near.beside:.2f} times, a second beside a collective costs "
            f"kernels {near.slowed:.2f} s, the ranks' work varies by {100 * near.spread:.1f} % "
            f"({PROGRAMS[other].label})"
        )
