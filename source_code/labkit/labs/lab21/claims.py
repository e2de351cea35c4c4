"""What lab 21 claims: a second GPU gains what its CPU allows; a long all-reduce is waiting; a model foretells both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.labs.lab21 import measured
from labkit.subjects.scaling import model
from labkit.subjects.scaling.model import Step
from labkit.subjects.scaling.readings import ON_CPU, PROGRAMS
from stepbudget.ask.ranks import Rank

SPLITS = (("waiting_ms", "transfer_ms", "unmatched_ms"), ("hidden_ms", "exposed_ms"))  # of a rank's collectives
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


def splits_add_up(of_each: Sequence[Mapping[str, float]]) -> Iterator[Claim | str]:
    """A rank's time in collectives is waiting and transfer, and it is hidden or exposed; the splits of each rank."""
    off_ms = [own["total_ms"] - sum(own[part] for part in split) for own in of_each for split in SPLITS]
    yield Claim("both splits add up to each rank's time in collectives", max(map(abs, off_ms)) < 1e-3)


def late_for_its_cpu(ranks: Sequence[Rank]) -> Iterator[Claim | str]:
    """The rank that hardly waits is late because of its own CPU, beside which the link is nothing."""
    late = min(ranks, key=lambda rank: rank.communication["waiting_ms"])
    cpu_ms = sum(late.budget.ms[cause] for cause in ON_CPU)
    travel_ms = late.communication["transfer_ms"]
    yield f"Rank {late.number}: idle for its CPU {cpu_ms:.0f} ms, transfer {travel_ms:.1f} ms."
    yield Claim(
        "the late rank's GPU idles for its own CPU ten times as long as gradients travel", cpu_ms > 10 * travel_ms,
        (cpu_ms, travel_ms),
        because="the CPU is faster, or the link between the GPUs slower (PCIe in place of NVLink)",
        so="the transfer is a larger part of your step: its share is in the table of collectives",
    )  # fmt: skip


def graph_pays(graph: Spread) -> Iterator[Claim | str]:
    """An epoch in one launch: how many times as fast two GPUs are, round by round."""
    yield Claim("two are faster in each round, as recorded", graph.low > 1)


def full_batches_pay(weak: Spread) -> Iterator[Claim | str]:
    """Weak scaling of the transformer: how many times the samples a second of one GPU."""
    yield Claim(
        "with a full batch each, two GPUs lose the transformer less than a tenth", weak.median > 1.8, weak.median,
        because="the GPUs are connected by PCIe, or by another host",
        so="look at exposed communication: larger batches or fewer averages hide more of it",
    )  # fmt: skip


def hidden_by_work(ranks: Sequence[Rank]) -> Iterator[Claim | str]:
    """How much of each rank's all-reduces other kernels hide."""
    for rank in ranks:
        own = rank.communication
        hidden_pct = 100 * own["hidden_ms"] / own["total_ms"]
        yield f"rank {rank.number}: {hidden_pct:.0f} % of the all-reduces' time is hidden"


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
    """The model foretells the steps on two GPUs, a row each, and what it takes from where for a second rank's CPU."""
    within = int((scored["off_pct"].abs() <= WITHIN_PCT).sum())
    yield f"within {WITHIN_PCT} %: {within} of {len(scored)} steps on two GPUs"
    for network, other in model.OTHER.items():
        beside = model.network(programs=[other]).beside
        yield f"{network}: a CPU beside a second rank takes {beside:.2f} times ({PROGRAMS[other].label})"
    yield Claim("all of them, as recorded", within == len(scored))


def bound_first(steps: Sequence[Step]) -> Iterator[Claim | str]:
    """What binds on how many GPUs, on paper; the first step is that of the small network on one GPU."""
    for sentence in model.bound_by(steps):
        yield sentence[0].upper() + sentence[1:]
    no_faster = all(
        model.efficiency(one, steps[0]) <= 1 / one.n + 1e-9
        for one in steps
        if one.scaling == "strong" and one.job.program == "ddp_on_gpu"
    )
    yield Claim("launched one by one, the small network gains nothing by more GPUs", no_faster)
