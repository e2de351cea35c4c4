"""The exercises of lab 2: steps that wait for the loader, what is left to gain, and a loader for any machine."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Code, Number
from stepbudget.ask.budget import budget
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.predict import bound
from stepbudget.report import Report


def _by_step(report: Report) -> pd.DataFrame:
    return budget(report).over(step_windows(report))


WAITING_STEPS = Number(
    READ,
    "idxmax(axis=1) names the largest cause of each step; count the steps where it is 'loader'.",
    right=lambda report: int((_by_step(report).idxmax(axis=1) == "loader").sum()),
    wrong={
        "those are all steps of the epoch": lambda report: len(step_windows(report)),
        "so many wait at all: in how many is it the largest cause?": lambda r: int((_by_step(r)["loader"] > 0).sum()),
        "those are milliseconds of waiting, not steps": lambda report: _by_step(report)["loader"].sum(),
        "those are the steps whose largest cause is another": lambda report: int(
            (_by_step(report).idxmax(axis=1) != "loader").sum()
        ),
    },
    within=0.0,
)


def _times(report: Report, without_ms: float) -> float:
    whole_ms = budget(report).window.duration_ms
    return whole_ms / (whole_ms - without_ms)


LOADER_BOUND = Number(
    BOUND,
    "The epoch, over what is left of it without all the time for which the loader held the program (held_ms, and no "
    "more than all idle time): tables.bounds(after) has it.",
    right=lambda report: bound(report, budget(report), "loader").at_most_times,
    wrong={
        "that takes away the budget's row, which counts only while the GPU idles: the loader holds longer": (
            lambda report: _times(report, budget(report).ms["loader"])
        ),
        "that is the epoch over the wait: divide by what is left without it": lambda report: (
            budget(report).window.duration_ms / budget(report).ms["loader"]
        ),
        "that is without any idle time: the other causes stay": lambda r: _times(r, budget(r).idle_ms),
        "that is the share that is left: how many times as fast is the epoch then?": lambda report: (
            1 / bound(report, budget(report), "loader").at_most_times
        ),
        "those are milliseconds: how many times as fast?": lambda r: bound(r, budget(r), "loader").at_most_ms,
    },
)


class PretendLoader:
    """Takes what ``torch.utils.data.DataLoader`` takes, refuses what it refuses, and starts nothing."""

    def __init__(self, dataset, batch_size=1, shuffle=False, *, num_workers=0, persistent_workers=False, **others):
        if num_workers == 0 and persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if shuffle and others.get("sampler") is not None:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        self.dataset, self.batch_size, self.shuffle = dataset, batch_size, shuffle
        self.workers, self.kept, self.others = num_workers, persistent_workers, others


def _shuffles(loader: PretendLoader) -> bool:
    """By itself, or by a sampler: each digit once, and in another order than theirs."""
    sampler = loader.others.get("sampler")
    if sampler is None:
        return bool(loader.shuffle)
    order, own = list(sampler), list(range(len(loader.dataset)))
    return order != own and sorted(order) == own


def _try_loader(make_loader: Callable) -> str | None:
    digits = range(5000)
    for cores in (16, 4, 3, 2, 1, 64):
        most = max(1, cores - 2)
        try:
            loader = make_loader(PretendLoader, digits, cores)
        except ValueError as error:
            return f"with {cores} cores the DataLoader refuses: {error}"
        if not isinstance(loader, PretendLoader):
            return "it does not return the loader that it made"
        if loader.dataset is not digits or loader.batch_size != 1024:
            return "it changes what is trained: the same digits, in batches of 1,024"
        if not _shuffles(loader):
            return "it changes what is trained: the digits are no longer shuffled"
        if loader.workers == 0:
            return f"with {cores} cores it has no worker: the training loop itself fetches every digit"
        if loader.workers > most:
            more = "leave one core for the training loop and one for the system, and one worker at least"
            return f"with {cores} cores it starts {loader.workers} workers: {more}"
        if loader.workers < most:
            return f"with {cores} cores it starts {loader.workers}, and {most} workers have a core to themselves"
        if not loader.kept:
            return "its workers end with each epoch and start anew: keep them alive"
        if loader.others.get("drop_last"):
            return "it changes what is trained: the last, short batch is dropped"
    return None


def _loader(workers: Callable[[int], int], kept: bool = True, **others) -> Callable:
    options = {"batch_size": 1024, "shuffle": True, "persistent_workers": kept} | others
    return lambda DataLoader, digits, cores: DataLoader(digits, num_workers=workers(cores), **options)


def _spare(cores: int) -> int:
    return max(1, cores - 2)


ANY_MACHINE = Code(
    "num_workers and persistent_workers are the two arguments; max(1, …) keeps one worker where cores are few.",
    _try_loader,
    wrong={
        "with 16 cores it starts 1, and 14 workers": _loader(lambda cores: 1),
        "with 16 cores it starts 16 workers": _loader(lambda cores: cores),
        "with 4 cores it starts 14 workers": _loader(lambda cores: 14),
        "with 2 cores the DataLoader refuses": _loader(lambda cores: cores - 2),
        "with 2 cores it has no worker": lambda DataLoader, digits, cores: _loader(lambda n: n - 2, cores > 2)(
            DataLoader, digits, cores
        ),
        "start anew: keep them alive": _loader(_spare, kept=False),
        "with 64 cores it starts 14, and 62 workers": _loader(lambda cores: min(14, _spare(cores))),
        "no longer shuffled": _loader(_spare, shuffle=False),
        "it changes what is trained: the digits are no longer shuffled": _loader(_spare, shuffle=False, sampler=None),
        "are no longer shuffled": lambda DataLoader, digits, cores: _loader(
            _spare, shuffle=False, sampler=range(len(digits))
        )(DataLoader, digits, cores),
        "in batches of 1,024": _loader(_spare, batch_size=4096),
        "short batch is dropped": _loader(_spare, drop_last=True),
        "does not return the loader": lambda DataLoader, digits, cores: None,
    },
)

EXERCISES = {"2.1": WAITING_STEPS, "2.2": LOADER_BOUND, "2.3": ANY_MACHINE}
