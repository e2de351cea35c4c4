"""The exercises of lab 21: three late ranks, the least that an all-reduce takes, two loops of several ranks mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number, each_of, quietly
from labkit.labs.lab21 import stragglers
from labkit.numbers import number as a_number
from labkit.subjects.scaling.collectives import Link
from stepbudget.ask import ranks
from stepbudget.ask.ranks import Ranks

# Who is late, and why


def _late(found: Ranks) -> float:
    return float(ranks.late(found).number)


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
    "link": "a transfer has two ends: both ranks' transfers take as long, whoever is late",
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


def _least_ms(weights: float, gpus: int, bytes_per_s: float) -> float:
    return 1e3 * Link(0.0, bytes_per_s).ring("AllReduce", BYTES * weights, gpus).total_s


LEAST = Number(
    BOUND,
    "Each GPU sends (n − 1)/n of all bytes twice: once while sums are made, once while they go round.",
    right=_least_ms,
    wrong={
        "that is half of the way: the sums have to go round, too": lambda *given: _least_ms(*given) / 2,
        "those are numbers, not bytes: a gradient in FP32 has four": lambda *given: _least_ms(*given) / BYTES,
        "each step moves an n-th part of the bytes, and all links work at the same time": lambda *given: (
            _least_ms(*given) * given[1]
        ),
        "that is one GPU sending all that it has to one other": lambda weights, gpus, bytes_per_s: (
            1e3 * BYTES * weights / bytes_per_s
        ),
        "nearly: each GPU's own n-th part need not travel": lambda weights, gpus, bytes_per_s: (
            _least_ms(weights, gpus, bytes_per_s) * gpus / (gpus - 1)
        ),
        "those are seconds: milliseconds are asked for": lambda *given: _least_ms(*given) / 1e3,
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
    import torch

    return torch.randperm(SAMPLES)[: SAMPLES // RANKS].tolist()


EPOCH_ORDER = Code(
    "DistributedSampler draws its order from its seed and the number of the epoch, of which somebody has to tell it.",
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
    import torch

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
    import torch

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
        self.network, self.averages, self._averages = network, [], True

    def __call__(self, data):
        self.averages.append(self._averages)
        return self.network(data)

    @contextmanager
    def no_sync(self):
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before


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
