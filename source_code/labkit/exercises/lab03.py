"""The exercises of lab 3: what overlap hides, copies that nobody waits for, and a bar that is read off."""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from unittest.mock import patch

from labkit.exercises.kinds import BOUND, READ, Code, Number
from stepbudget.ask.budget import budget
from stepbudget.ask.copies import copies
from stepbudget.report import Report


def _to_gpu_ms(report: Report, column: str) -> float:
    found = copies(report)
    return float(found.loc[found["direction"] == "host to device", column].sum())


HIDDEN_COPIES = Number(
    BOUND,
    "Overlap hides what the copies take with no kernel beside them: a row of the budget.",
    right=lambda report: budget(report).ms["copies"],
    wrong={
        "that is the wait for the loader: a second stream hides copies, not the loader": (
            lambda report: budget(report).ms["loader"]
        ),
        "those are seconds: milliseconds are asked for": lambda report: budget(report).ms["copies"] / 1e3,
        "that is all idle time: the GPU waits for other things than copies, too": lambda report: budget(report).idle_ms,
        "that is for how long the copies held the program, which goes on at once: for how long does the GPU copy?": (
            lambda report: _to_gpu_ms(report, "api_ms")
        ),
        "that is one copy: an epoch has one for each batch": lambda r: _to_gpu_ms(r, "longest_gpu_us") / 1e3,
        "that is the whole epoch": lambda report: budget(report).window.duration_ms,
    },
    within=0.15,  # the row counts memory fills too
)


class PretendBatch:
    """A tensor that notes in ``said`` how it was copied, for machines without a GPU."""

    def __init__(self, said: dict, pinned: bool = False, device: str = "cpu") -> None:
        self.said, self.device, self._pinned = said, device, pinned

    def pin_memory(self, *_: object) -> PretendBatch:
        self.said["pinned in the loop"] = True
        return PretendBatch(self.said, True)

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, device: object = None, *_: object, non_blocking: bool = False, **__: object) -> PretendBatch:
        self.said.update(pinned=self._pinned, non_blocking=non_blocking)
        return PretendBatch(self.said, device=str(device))

    def cuda(self, device: object = "cuda", non_blocking: bool = False) -> PretendBatch:
        return self.to(device, non_blocking=non_blocking)


class PretendLoader:
    """A DataLoader of three batches, pinned ahead of time if it is told so; ``made`` are all that were."""

    made: list[PretendLoader]

    def __init__(self, dataset: Sequence, batch_size: int = 1, shuffle: bool = False, pin_memory: bool = False, **_):
        self.dataset, self.batch_size, self.shuffle, self._pinned = dataset, batch_size, shuffle, pin_memory
        self.made.append(self)

    def __iter__(self) -> Iterator[tuple[PretendBatch, PretendBatch]]:
        for said in self.dataset:
            yield tuple(PretendBatch(said[part], self._pinned) for part in ("data", "target"))


def _says_that_there_is_a_gpu(epoch: Callable) -> ExitStack:
    """Where the function asks PyTorch for a GPU (``pin_memory=torch.cuda.is_available()``), there is one meanwhile."""
    pretended = ExitStack()
    asks = "torch" in getattr(getattr(epoch, "__code__", None), "co_names", ())
    torch = importlib.import_module("torch") if asks else sys.modules.get("torch")
    for name in ("cuda", "accelerator"):
        if hasattr(torch, name):  # torch.accelerator is younger
            pretended.enter_context(patch.object(getattr(torch, name), "is_available", lambda: True))
    return pretended


def _try_epoch(epoch: Callable) -> str | None:
    batches, trained, device = [{"data": {}, "target": {}} for _ in range(3)], [], "cuda:1"
    loader = type("DataLoader", (PretendLoader,), {"made": []})
    with _says_that_there_is_a_gpu(epoch):
        epoch(loader, batches, device, lambda data, target: trained.append((data, target)))
    for own in loader.made:
        if own.dataset is not batches or own.batch_size != 1024:
            return "it changes what is trained: the same digits, in batches of 1,024"
        if not own.shuffle:
            return "it changes what is trained: the digits are no longer shuffled"
    if len(trained) != len(batches):
        return f"train_step is called {len(trained)} times for {len(batches)} batches"
    for data, target in trained:
        for name, given in (("data", data), ("target", target)):
            if not isinstance(given, PretendBatch):
                return f"train_step gets no batch as {name}: hand it the copies"
            if given.device == "cpu":
                return f"train_step gets the {name} that still lies with the CPU: hand it the copy"
            if given.device != device:
                return f"the {name} is copied to {given.device}, not to the device that was given"
            if given.said.get("pinned in the loop"):
                return (
                    "pin_memory() in the loop makes the CPU copy every batch once more before the GPU may fetch it: "
                    "let the loader pin ahead of time"
                )
            if not given.said["pinned"]:
                return f"the {name} is copied from pageable memory: the loader can pin its batches"
            if not given.said["non_blocking"]:
                return f"the copy of the {name} still waits: the call has to be told not to block"
    return None


def _epoch(pin: bool = True, copy: Callable | None = None, labels: Callable | None = None, **changed) -> Callable:
    copy = copy or (lambda batch, device: batch.to(device, non_blocking=True))
    options = {"batch_size": 1024, "shuffle": True, "pin_memory": pin} | changed

    def epoch(DataLoader, digits, device, train_step):
        for data, target in DataLoader(digits, **options):
            train_step(copy(data, device), (labels or copy)(target, device))

    return epoch


def _copies_and_trains_on_the_old(DataLoader, digits, device, train_step):
    for data, target in DataLoader(digits, batch_size=1024, shuffle=True, pin_memory=True):
        data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        train_step(data, target)


UNNOTICED_COPIES = Code(
    "Two switches: one for the DataLoader, one for the copies; both tensors are copied.",
    _try_epoch,
    wrong={
        "the data is copied from pageable memory": _epoch(pin=False),
        "the copy of the data still waits": _epoch(copy=lambda batch, device: batch.to(device)),
        "the copy of the target still waits": _epoch(labels=lambda batch, device: batch.to(device)),
        "let the loader pin ahead of time": _epoch(
            False, lambda b, device: b.pin_memory().to(device, non_blocking=True)
        ),
        "not to the device that was given": _epoch(copy=lambda batch, device: batch.to("cuda", non_blocking=True)),
        "still lies with the CPU": _copies_and_trains_on_the_old,
        "the same digits, in batches of 1,024": _epoch(batch_size=1),
        "the digits are no longer shuffled": _epoch(shuffle=False),
        "gets no batch as data": _epoch(copy=lambda batch, device: None),
        "is called 0 times": lambda DataLoader, digits, device, train_step: None,
    },
)

BATCH_MB = 3.2  # 1,024 digits


def _done_and_returned_us(transfers: Sequence[dict], memory: str, non_blocking: bool) -> tuple[float, float]:
    rows = [row for record in transfers for row in record["rows"]]
    wanted = (BATCH_MB, memory, non_blocking)
    own = [row for row in rows if (row["size_mb"], row["memory"], row["non_blocking"]) == wanted]
    return tuple(statistics.median(row[field] for row in own) for field in ("done_us", "returned_us"))


def _free_pct(transfers: Sequence[dict], memory: str = "pinned", non_blocking: bool = True) -> float:
    done_us, returned_us = _done_and_returned_us(transfers, memory, non_blocking)
    return 100 * (1 - returned_us / done_us)


FREE_SHARE = Number(
    READ,
    "The dark part of the bar is the call, the pale part what is left of the copy: its share of the whole bar.",
    right=_free_pct,
    wrong={
        "that is the share for which the program is held": lambda transfers: 100 - _free_pct(transfers),
        "that is the bar of a pinned copy that blocks": lambda transfers: _free_pct(transfers, non_blocking=False),
        "that is the bar of a pageable copy": lambda transfers: _free_pct(transfers, "pageable"),
        "that is a share of 1: in per cent it is a hundred times as much": lambda transfers: _free_pct(transfers) / 100,
    },
    within=0.05,  # read off a picture
)

EXERCISES = {"3.1": HIDDEN_COPIES, "3.2": UNNOTICED_COPIES, "3.3": FREE_SHARE}
