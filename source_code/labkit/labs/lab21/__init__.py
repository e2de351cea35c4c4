"""Lab 21: what do more GPUs gain, which rank is late and why, and how far does a model foretell it?"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from labkit.checks import Claim
from labkit.display.spread import Spread
from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, each_of, quietly
from labkit.labs.lab21 import stragglers
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.numbers import number as a_number
from labkit.predictions import Guess
from labkit.source import originals, recorded
from labkit.subjects import accuracy as gate
from labkit.subjects.scaling import model, readings
from labkit.subjects.scaling.collectives import Link
from labkit.subjects.scaling.readings import MACHINE_FOLDER, ON_CPU, PROGRAMS, Records
from stepbudget.ask.ranks import Rank, Ranks
from stepbudget.show.table import Table, table

ACCURACY = re.compile(r"(main_\w+)-accuracy-x(\d+)-\d+\.json")


def gains(found: Records) -> dict[str, Spread]:
    """How many times as fast two GPUs are with the batch of one, by program."""
    runs = readings.frame(found)
    return {name: readings.gained(runs, name, "strong", 2) for name in readings.DDP}


def graph(found: Records, program: str = "ddp_graph") -> Spread:
    """The same of an epoch in one launch, or of another program recorded with it."""
    return readings.gained(readings.frame(found), program, "strong", 2)


def weak(found: Records) -> Spread:
    """How many times the transformer's samples a second two GPUs see, with a full batch each."""
    return readings.gained(readings.frame(found), "text_ddp", "weak", 2)


def communication(found: Ranks, caption: str = "The collectives of each rank, ms") -> Table:
    """What each rank's collectives come to: how long they ran, split twice; and how often the rank came last."""
    columns = {f"{name}_ms": f"{name} ms" for name in ("total", "waiting", "transfer", "hidden", "exposed")}
    rows = [
        {"rank": rank.number, "collectives": round(own["kernels"])}
        | {label: own[name] for name, label in columns.items()}
        | {"came last to": round(own["last"])}
        for rank in found.ranks
        for own in [rank.communication]
    ]
    formats = dict.fromkeys(columns.values(), "{:,.1f}") | {"came last to": "{:,}"}
    return table(pd.DataFrame(rows), caption, formats)


def buckets(found: Records | None = None, programs: Collection[str] = readings.DDP) -> Table:
    """The buckets in which DDP averages gradients, and their sizes in MB."""
    sizes = readings.buckets(found or readings.records())
    rows = [
        (PROGRAMS[name].label, sum(own) / 1e6, len(own), own[0] / 1e6, max(own) / 1e6, own[-1] / 1e6)
        for name, own in sizes.items()
        if name in programs
    ]
    columns = ["program", "gradients MB", "buckets", "first MB", "largest MB", "last MB"]
    formats = dict.fromkeys([name for name in columns if name.endswith("MB")], "{:,.2f}")
    return table(pd.DataFrame(rows, columns=columns), "Gradients and the buckets in which DDP averages them", formats)


def accuracy(where: Path | None = None) -> pd.DataFrame:
    """Whole trainings, a row a script, number of GPUs and seed: ``script``, ``gpus``, ``seed``, ``epochs``, ``pct``.

    Those of a host's folder that ``bench_ranks.py --accuracy`` left there; no rows where there are none.
    """
    rows = []
    for file in sorted(((where or MACHINE_FOLDER) / recorded.RANKS).glob("*-accuracy-x*.json")):
        named = ACCURACY.fullmatch(file.name)
        for row in originals.read(file)["rows"] if named else ():
            trained = row["epochs"]
            script, seed = f"{named[1]}.py", row["arguments"]["seed"]
            rows.append((script, int(named[2]), seed, len(trained), trained[-1]["test_accuracy_pct"]))
    return pd.DataFrame(rows, columns=["script", "gpus", "seed", "epochs", "pct"])


def seeds(found: pd.DataFrame, alone: str = "main_opt4.py") -> Table:
    """Whole trainings, seed by seed (``accuracy``), below those of a step of the ladder without DDP.

    ``p``: Welch's one-sided test against the same script on one GPU. The gate wants as many seeds as the ladder's.
    """
    without = pd.DataFrame({"script": alone, "gpus": 1, "pct": gate.seeds(alone)})
    most, rows = len(without), []
    for (script, gpus), own in [
        *without.groupby(["script", "gpus"]),
        *found.groupby(["script", "gpus"], sort=False),
    ]:
        on_one = found.loc[(found["script"] == script) & (found["gpus"] == 1), "pct"]
        p = gate.below(on_one, own["pct"]) if gpus > 1 and len(on_one) > 1 and len(own) > 1 else None
        passed = own["pct"].mean() >= gate.FLOOR_PCT and (p is None or p >= gate.SIGNIFICANCE)
        verdict = "passed" if passed else "FAILED"
        verdict = verdict if len(own) >= most else f"{verdict}, of few seeds"
        rows.append((script, gpus, verdict, len(own), own["pct"].mean(), own["pct"].min(), own["pct"].max(), p))
    columns = ["script", "GPUs", "gate", "seeds", "mean %", "lowest %", "highest %", "p (below one GPU)"]
    caption = "Test accuracy after ten epochs on MNIST"
    caption += "" if len(found) else "; on several GPUs, no whole trainings are recorded yet"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[4:], "{:.2f}"))


# --- what it claims -----------------------------------------------------------------------------------------


WITHIN_PCT = 15  # of the measured step: as near as a prediction should be
DEALT, PLACES = 10, 12  # of the sampler's trial: four ranks get three each


def second_gpu(gains: Mapping[str, Spread]) -> Iterator[Claim | str]:
    """What the batch of one GPU gains by being shared out between two, by program."""
    times = {name: gain.median for name, gain in gains.items()}
    yield Claim(
        "on two GPUs, the digits on the GPU stay below 1.25×, the transformer exceeds 1.5×",
        times["ddp_on_gpu"] < 1.25 and times["text_ddp"] > 1.5,
        f"{times['ddp_on_gpu']:.2f} and {times['text_ddp']:.2f} times as fast",
        because="a faster CPU launches the small steps sooner; a slow link holds up the transformer",
        so="the next sections show which of the two it is on your host",
    )


def late_for_its_cpu(ranks: Sequence[Rank]) -> Iterator[Claim | str]:
    """The rank that hardly waits is late because of its own CPU, beside which the link is nothing."""
    late = min(ranks, key=lambda rank: rank.communication["waiting_ms"])
    cpu_ms = sum(late.budget.ms[cause] for cause in ON_CPU)
    travel_ms = late.communication["transfer_ms"]
    yield Claim(
        "the late rank's GPU idles for its CPU over ten times as long as gradients travel", cpu_ms > 10 * travel_ms,
        (cpu_ms, travel_ms),
        because="the CPU is faster, or the link between the GPUs slower (PCIe in place of NVLink)",
        so="the transfer is a larger part of your step: its share is in the table of communication",
    )  # fmt: skip
    yield f"Rank {late.number}: idle for its CPU {cpu_ms:.0f} ms, transfer {travel_ms:.1f} ms."


def graph_pays(graphs: Records) -> Iterator[Claim | str]:
    """An epoch in one launch: how many times as fast two GPUs are, round by round."""
    yield Claim("two are faster in each round, as recorded", graph(graphs).low > 1)


def full_batches_pay(found: Records) -> Iterator[Claim | str]:
    """Weak scaling of the transformer: how many times the samples a second of one GPU."""
    gain = weak(found)
    yield Claim(
        "with a full batch each, two GPUs exceed 1.8× for the transformer", gain.median > 1.8, gain.median,
        because="the GPUs are connected by PCIe, or by another host",
        so="look at exposed communication: larger batches or fewer averages hide more of it",
    )  # fmt: skip


def dealt_out(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], told: Sequence[Sequence[int]]
) -> Iterator[Claim | str]:
    """The ranks' shares of two epochs, and of one that ``set_epoch`` told them of: the samples of each, in order."""
    dealt = sorted(sample for share in first for sample in share)
    yield f"{len(dealt)} places for {len(set(dealt))} samples."
    filled = set(dealt) == set(range(DEALT)) and len(dealt) == PLACES
    yield Claim("every sample is dealt, and some twice, so that all ranks have as many", filled)
    yield Claim("a second epoch has the same order", first == second)
    yield Claim("unless set_epoch tells which it is", first != told)


def accuracy_kept(trained: pd.DataFrame) -> Iterator[Claim | str]:
    """The test accuracy of whole trainings passes the gate: a row a script, number of GPUs and seed."""
    gate = seeds(trained).frame["gate"]
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
            f"{network}: beside a second rank, a CPU takes {near.beside:.2f} times as long; a second of collectives "
            f"slows the kernels beside it by {near.slowed:.2f} s; the ranks' work varies by {100 * near.spread:.1f} % "
            f"(from: {PROGRAMS[other].label})"
        )


# --- its exercises ------------------------------------------------------------------------------------------


# Who is late, and why


def _late(found: Ranks) -> float:
    return float(found.late.number)


def _of_rank(found: Ranks, number: float, what: str) -> float:
    return float(next(rank.communication[what] for rank in found.ranks if rank.number == number))


LATE = Number(
    READ,
    "Who comes last to nearly all collectives waits for nobody: see the column 'came last to'.",
    right=_late,
    wrong={
        "that is the rank that waits: its collectives take long because the other one is not there yet": lambda found: (
            1 - _late(found)
        ),
        "that is how often it came last: which rank is it?": lambda found: _of_rank(found, _late(found), "last"),
        "that is how many ranks there are: their numbers begin at 0": lambda found: float(len(found.ranks)),
    },
    within=0.0,
)

# What else one would see if a word were right.
THEN = {
    "loader": "then the late rank's row 'waiting for the loader' would be by far larger than the other's",
    "cpu": "then the late rank's GPU would idle for CPU code, far longer than the other's",
    "computation": "then the late rank's own kernels would take longer: compare the rows of kernels, without the "
    "communication",
    "link": "a transfer has two ends: both ranks' transfers take nearly as long, whoever is late",
    "launches": "then the row 'launch overhead' would be what sets the late rank apart: how much of its delay is it?",
}


def _reason(letter: str) -> Choice:
    right = stragglers.reason(letter)
    wrong = {word: why for word, why in THEN.items() if word != right}
    if right == "cpu":
        wrong["copies"] = "there is a copy, and it is slow: but what does the CPU do with what it fetched?"
    hint = f"Which row is larger on the late rank than on the other? The words are {', '.join(stragglers.REASONS)}."
    return Choice(READ, hint, right=lambda: right, wrong=wrong)


# The least that an all-reduce takes

BYTES = 4  # of a gradient in FP32


@Quantity
def least_ms(weights: float, gpus: int, bytes_per_s: float) -> float:
    return 1e3 * Link(0.0, bytes_per_s).ring("AllReduce", BYTES * weights, gpus).total_s


gpus_given = Quantity(lambda weights, gpus, bytes_per_s: gpus)

LEAST = Number(
    BOUND,
    "Each GPU sends (n − 1)/n of all bytes twice: once while sums are made, once while they go round.",
    right=least_ms,
    wrong={
        "that is half of the way: the sums have to go round, too": least_ms / 2,
        "those are numbers, not bytes: a gradient in FP32 has four": least_ms / BYTES,
        "each step moves an n-th part of the bytes, and all links work at the same time": least_ms * gpus_given,
        "that is one GPU sending all that it has to one other": lambda weights, gpus, bytes_per_s: (
            1e3 * BYTES * weights / bytes_per_s
        ),
        "nearly: each GPU's own n-th part need not travel": least_ms / (1 - 1 / gpus_given),
        "those are seconds: milliseconds are asked for": least_ms / 1e3,
    },
    within=0.005,
)

# A loop that forgets something

SAMPLES, RANKS, EPOCHS = 24, 2, 3


LISTS = "a list of each epoch's samples is"


@quietly
def _try_epochs(epochs: Callable) -> str | None:
    from torch.utils.data import DistributedSampler  # here and below: the recorded labs need none

    found = []
    for rank in range(RANKS):
        sampler = DistributedSampler(range(SAMPLES), RANKS, rank, seed=1)
        given = epochs(sampler, EPOCHS)
        if given is None:
            return "a list of the epochs' samples is wanted: the function returns nothing"
        own = [each_of(epoch, LISTS) for epoch in each_of(given, LISTS)]
        found.append([[int(a_number(sample)) for sample in epoch] for epoch in own])
    if any(len(own) != EPOCHS for own in found):
        return f"{EPOCHS} epochs are asked for, and {len(found[0])} come"
    for number, parts in enumerate(zip(*found, strict=True), 1):
        together = sorted(sample for part in parts for sample in part)
        if len(set(together)) < SAMPLES and len(together) == SAMPLES:
            return f"in epoch {number} some samples come twice and others not at all: do all ranks draw alike?"
        if together != list(range(SAMPLES)):
            return f"in epoch {number} the ranks together train on {len(together)} samples of {SAMPLES}"
    if len({tuple(epoch) for epoch in found[0]}) < EPOCHS:
        return "some epochs have the same order: who tells the sampler that another epoch begins?"
    if len({frozenset(epoch) for epoch in found[0]}) < EPOCHS:
        return "a rank has the same samples in each epoch, in another order: who tells the sampler of a new epoch?"
    return None


def _epochs(
    number: Callable[[object, int], int | None] = lambda sampler, epoch: epoch,
    epoch_of: Callable[[Iterable], list] = list,
    more: int = 0,
) -> Callable:
    def orders(sampler, epochs):
        found = []
        for epoch in range(epochs + more):
            told = number(sampler, epoch)
            if told is not None:
                sampler.set_epoch(told)
            found.append(epoch_of(sampler))
        return found

    return orders


def _shuffled_anew(sampler):
    return torch.randperm(SAMPLES)[: SAMPLES // RANKS].tolist()


EPOCH_ORDER = Code(
    "DistributedSampler draws its order from its seed and the epoch's number. Somebody has to pass that number.",
    _try_epochs,
    wrong={
        "some epochs have the same order": _epochs(lambda sampler, epoch: None),
        "do all ranks draw alike": _epochs(lambda sampler, epoch: 10 * sampler.rank + epoch),
        "some samples come twice": _epochs(epoch_of=_shuffled_anew),
        "the ranks together train on": _epochs(epoch_of=lambda sampler: list(sampler)[:-1]),
        "epochs are asked for": _epochs(more=1),
        "the function returns nothing": lambda sampler, epochs: None,
    },
)

# Several backward passes, one average

PARTS, SIZE = 3, 4  # backward passes before a step, samples in each
OLD = 7.0  # what a gradient holds before the step begins


@quietly
def _try_step(step: Callable) -> str | None:
    torch.manual_seed(1)
    data = torch.randn(RANKS, PARTS, SIZE, 5)
    target = torch.randn(RANKS, PARTS, SIZE, 1)
    network, sums = torch.nn.Linear(5, 1), []
    for rank in range(RANKS):
        model, optimizer = _Pretended(network), torch.optim.SGD(network.parameters(), lr=0.0)
        network.weight.grad, network.bias.grad = torch.full_like(network.weight, OLD), None
        stepped = _watched(optimizer, network)
        step(model, optimizer, torch.nn.functional.mse_loss, list(zip(data[rank], target[rank], strict=True)), RANKS)
        if not stepped:
            return "the optimizer makes no step"
        if len(model.averages) != PARTS:
            return f"there are {PARTS} parts, and the model has seen {len(model.averages)}"
        if not model.averages[-1]:
            return "the last backward pass does not average: the ranks' weights drift apart"
        if sum(model.averages) > 1:
            return f"the gradients are averaged {sum(model.averages)} times: once, in the last part, will do"
        sums.append(stepped[0])
    network.zero_grad()
    torch.nn.functional.mse_loss(network(data.flatten(0, 2)), target.flatten(0, 2)).backward()
    return _compared(sum(sums) / RANKS, network.weight.grad)


def _compared(found, right) -> str | None:
    """What is wrong with a gradient, averaged over the ranks as DDP does; None where it is the whole batch's."""
    if torch.allclose(found, right, rtol=1e-4):
        return None
    if torch.allclose(found, right / RANKS, rtol=1e-4):
        return f"the gradient is divided by {RANKS} once too often: DDP has made the mean over the ranks already"
    if torch.allclose(found, PARTS * right, rtol=1e-4):
        return f"the gradient is {PARTS} times as large: it is the sum of the parts, and the mean is wanted"
    if torch.allclose(found, PARTS / RANKS * right, rtol=1e-4):
        return "the gradient is divided by the ranks, which DDP does already, and not by the number of parts"
    if torch.allclose(found - OLD, right, rtol=1e-3, atol=1e-3):
        return "the gradients of the step before are still in it"
    return "this is not the mean gradient of all parts on all ranks"


class _Pretended:
    """A DistributedDataParallel model on one of RANKS ranks: it notes which forward passes end in an average."""

    def __init__(self, network) -> None:
        self.network, self.averages, self.require_backward_grad_sync = network, [], True

    def __call__(self, data):
        self.averages.append(self.require_backward_grad_sync)
        return self.network(data)

    @contextmanager
    def no_sync(self):
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def __getattr__(self, name: str):
        return getattr(self.network, name)


def _watched(optimizer, network) -> list:
    """The weight's gradient at each step of the optimizer from here on."""
    found: list = []
    optimizer.register_step_pre_hook(lambda *_: found.append(network.weight.grad.clone()))
    return found


def _step(
    divided_by: Callable[[int, int], int] = lambda parts, ranks: parts,
    unsynchronised: Callable[[int, int], bool] = lambda number, parts: number < parts - 1,
    zero: bool = True,
    last: int = 1,
) -> Callable:
    def train_step(model, optimizer, loss_fn, parts, ranks):
        from contextlib import nullcontext

        if zero:
            optimizer.zero_grad()
        for number, (data, target) in enumerate(parts):
            with model.no_sync() if unsynchronised(number, len(parts)) else nullcontext():
                loss = loss_fn(model(data), target) / divided_by(len(parts), ranks)
            loss.backward()
        for _ in range(last):
            optimizer.step()

    return train_step


ONE_AVERAGE = Code(
    "DDP makes the mean over the ranks. Yours is the mean over the parts; all but the last belong under no_sync().",
    _try_step,
    wrong={
        "averaged 3 times": _step(unsynchronised=lambda number, parts: False),
        "divided by 2 once too often": _step(lambda parts, ranks: parts * ranks),
        "it is the sum of the parts": _step(lambda parts, ranks: 1),
        "and not by the number of parts": _step(lambda parts, ranks: ranks),
        "does not average": _step(unsynchronised=lambda number, parts: True),
        "of the step before": _step(zero=False),
        "makes no step": _step(last=0),
        "and the model has seen": lambda model, optimizer, loss_fn, parts, ranks: _step()(
            model, optimizer, loss_fn, parts[:1], ranks
        ),
        "not the mean gradient": _step(lambda parts, ranks: 5),
    },
)


EXERCISES = {
    f"21.{place}.{part}": one
    for place, letter in enumerate("ABC", 1)
    for part, one in enumerate((LATE, _reason(letter)), 1)
} | {"21.4": LEAST, "21.5": EPOCH_ORDER, "21.6": ONE_AVERAGE}


# --- what it asks before it shows ---------------------------------------------------------------------------


LAUNCHES_STAY = "That halves all of the step. The kernels halve; the launches, made by each rank's CPU, don't."


def _of_window(what: str):
    """Per cent of the window in which rank 0's collectives did this."""

    def share(pair: Ranks) -> float:
        first = pair.ranks[0]
        return 100 * first.communication[what] / first.window.duration_ms

    return share


PREDICTIONS = {
    "digits": Guess(
        "two GPUs, digits on the GPU",
        "×",
        lambda gains: gains["ddp_on_gpu"].median,
        wrong={
            LAUNCHES_STAY: lambda gains: 2.0,
            "That's no change. What do two CPUs cost that meet at every step?": lambda gains: 1.0,
        },
    ),
    "loader": Guess(
        "two GPUs, digits with a loader",
        "×",
        lambda gains: gains["ddp"].median,
        wrong={"That halves all of the step. The loaders share it; each rank's launches stay.": lambda gains: 2.0},
    ),
    "text": Guess(
        "two GPUs, transformer",
        "×",
        lambda gains: gains["text_ddp"].median,
        wrong={"Each rank runs the whole optimizer, and all-reduces slow the kernels beside them.": lambda gains: 2.0},
    ),
    "travel": Guess(
        "time in which gradients travel",
        " %",
        _of_window("transfer_ms"),
        wrong={
            "That's all of rank 0's time in all-reduces. Most of it is waiting for rank 1.": _of_window("total_ms"),
            "That's rank 0's exposed time. Most of it is waiting for rank 1.": _of_window("exposed_ms"),
        },
    ),
    "graph": Guess(
        "two GPUs, an epoch in one launch",
        "×",
        lambda graphs: graph(graphs).median,
        wrong={
            "That halves the optimizer's step, too. Each rank runs the whole of it.": lambda graphs: 2.0,
            "That's the step launched kernel by kernel. Here no CPU stands between the kernels.": lambda graphs: (
                graph(graphs, "ddp_on_gpu").median
            ),
        },
    ),
    "weak": Guess(
        "two GPUs with a full batch each, transformer",
        "×",
        lambda found: weak(found).median,
        wrong={
            "That's two GPUs that don't disturb each other. Kernels run slower beside an all-reduce.": lambda found: (
                2.0
            ),
            "That's the batch shared out. A full batch each halves the optimizer's weight.": lambda found: (
                gains(found)["text_ddp"].median
            ),
        },
    ),
}
