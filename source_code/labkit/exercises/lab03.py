"""The exercises of lab 3: what overlap hides, and a copy that does not wait."""

from __future__ import annotations

from collections.abc import Callable

from labkit.checks import answer_function, answer_number
from stepbudget.ask.budget import budget
from stepbudget.report import Report


def _hidden_copies(number: str, answer: float | None, report: Report) -> bool:
    right = budget(report).ms["copies"]
    hint = "Overlap hides what the copies take with no kernel beside them: a row of the budget."
    return answer_number(number, answer, right, hint, within=0.15)  # the row counts memory fills too


def _pinned_copy(number: str, answer: Callable | None) -> bool:
    def trial(to_gpu: Callable) -> str | None:
        batch = PretendBatch()
        result = to_gpu(batch, "cuda:1")
        if not batch.said.get("copied"):
            return "it never copies the batch to the device"
        if batch.said["device"] != "cuda:1":
            return f"it copies to {batch.said['device']}, not to the device that it was given"
        if not isinstance(result, PretendBatch):
            return f"it returns {result!r}, not the copy"
        if not batch.said.get("from_pinned"):
            return "the batch is copied from pageable memory: pin it first"
        if not batch.said.get("non_blocking"):
            return "the copy still waits: the call has to be told not to block"
        return None

    return answer_function(number, answer, trial)


class PretendBatch:
    """A tensor that remembers how it was copied, for machines without a GPU."""

    def __init__(self, pinned: bool = False, said: dict | None = None) -> None:
        self._pinned = pinned
        self.said: dict = {} if said is None else said

    def pin_memory(self) -> PretendBatch:
        return PretendBatch(True, self.said)

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, device: object = None, non_blocking: bool = False, **_: object) -> PretendBatch:
        self.said.update(copied=True, device=str(device), from_pinned=self._pinned, non_blocking=non_blocking)
        return PretendBatch(False, self.said)

    def cuda(self, device: object = None, non_blocking: bool = False) -> PretendBatch:
        return self.to(device, non_blocking)


EXERCISES = {"3.1": _hidden_copies, "3.2": _pinned_copy}
