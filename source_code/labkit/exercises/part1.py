"""The exercises of labs 1 to 5."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from labkit.checks import answer_choice, answer_function, answer_number
from stepbudget.ask.budget import budget
from stepbudget.ask.compare import compare
from stepbudget.ask.idle import idle
from stepbudget.ask.iterations import step_windows
from stepbudget.ask.predict import bounds
from stepbudget.report import Report
from stepbudget.window import Window


def _busy_share(number: str, answer: float | None, report: Report, window: Window) -> bool:
    found = budget(report, window)
    hint = "The stretch less its idle time, as a share of the stretch."
    return answer_number(number, answer, 100 * (1 - found.idle_ms / window.duration_ms), hint)


def _stopwatch(number: str, answer: Callable | None) -> bool:
    def trial(measure: Callable) -> str | None:
        gpu = PretendGPU()
        gpu.launch(0.2)  # somebody else's work is still running
        seconds = measure(lambda: gpu.launch(0.05), gpu.synchronize)
        if not isinstance(seconds, float):
            return f"it returns {seconds!r}, not seconds"
        if seconds < 0.04:
            return f"it says {seconds:.3f} s for 0.05 s of work: the clock stops before the GPU has finished"
        if seconds > 40:
            return f"it says {seconds:.0f} for 0.05 s of work: did you return milliseconds?"
        if seconds > 0.15:
            return f"it says {seconds:.3f} s for 0.05 s of work: it counts work that was there before the clock started"
        return None

    return answer_function(number, answer, trial)


def _waiting_steps(number: str, answer: int | None, report: Report) -> bool:
    largest = budget(report).over(step_windows(report)).idxmax(axis=1)
    hint = "idxmax(axis=1) names the largest cause of each step; count the steps where it is 'loader'."
    return answer_number(number, answer, int((largest == "loader").sum()), hint)


def _loader_bound(number: str, answer: float | None, report: Report) -> bool:
    hint = "What is left of the epoch when the time of the cause 'loader' is gone?"
    return answer_number(number, answer, bounds(report, budget(report))["loader"].at_most_times, hint)


def _hidden_copies(number: str, answer: float | None, report: Report) -> bool:
    right = budget(report).ms["copies"]
    hint = "Overlap hides what the copies take with no kernel beside them: a row of the budget."
    return answer_number(number, answer, right, hint, within=0.15)  # the row counts memory fills too


def _pinned_copy(number: str, answer: Callable | None) -> bool:
    def trial(to_gpu: Callable) -> str | None:
        batch = PretendBatch()
        to_gpu(batch, "cuda")
        if not batch.said.get("copied"):
            return "it never copies the batch to the device"
        if not batch.said.get("from_pinned"):
            return "the batch is copied from pageable memory: pin it first"
        if not batch.said.get("non_blocking"):
            return "the copy still waits: the call has to be told not to block"
        return None

    return answer_function(number, answer, trial)


def _smallest_half(number: str, answer: float | None) -> bool:
    right = float(torch.tensor(1, dtype=torch.int16).view(torch.float16))  # all bits 0 but the last
    hint = "The smallest exponent is -14, and a subnormal number has ten more bits below it."
    return answer_number(number, answer, right, hint)


def _amp_step(number: str, answer: Callable | None) -> bool:
    def trial(amp_step: Callable) -> str | None:
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        kinds = []
        model.register_forward_hook(lambda _, __, out: kinds.append(out.dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = SpyScaler(optimizer)
        before = model.weight.detach().clone()
        amp_step(model, nn.MSELoss(), torch.randn(4, 8), torch.full((4, 1), 10.0), optimizer, scaler, 1.0)
        called = scaler.called
        if not kinds or kinds[0] == torch.float32:
            return "the forward pass runs in FP32: it belongs into torch.autocast"
        for name, why in (
            ("scale", "the loss is never scaled"),
            ("step", "scaler.step(optimizer) is missing"),
            ("update", "scaler.update() is missing"),
        ):
            if name not in called:
                return why
        if "unscale_" not in called or called.index("unscale_") > called.index("step"):
            return "the gradients are clipped while they are still scaled: call scaler.unscale_(optimizer) first"
        if scaler.norm_at_step > 1.0 + 1e-3:
            return f"the gradients' norm is {scaler.norm_at_step:.3g} at the step: clip them to 1.0 after unscaling"
        if torch.equal(before, model.weight):
            return "the weights did not move"
        return None

    return answer_function(number, answer, trial)


def _share_of_bound(number: str, answer: float | None, before: Report, after: Report) -> bool:
    if answer is None:
        return answer_number(number, None, 0.0, "")
    made = compare(before, after)
    right = 100 * made.gained_ms / made.bounds["mixed_precision"].at_most_ms
    hint = "By how much the epoch became shorter, over what the first of the two reports says is possible."
    return answer_number(number, answer, right, hint)


def _idle_bound(number: str, answer: float | None, report: Report) -> bool:
    found = idle(report)
    hint = "If the GPU never idled, the epoch would last as long as the GPU is busy now."
    right = found.window.duration_ms / found.busy_ms if found.busy_ms else math.inf
    return answer_number(number, answer, right, hint)


def _next_after_loader(number: str, answer: str | None, report: Report) -> bool:
    found = {fix: bound.at_most_ms for fix, bound in bounds(report, budget(report)).items() if fix != "loader"}
    return answer_choice(number, answer, max(found, key=found.__getitem__), "Compare what each fix gains at most.")


class PretendGPU:
    """Asynchronous like a GPU: ``launch`` returns at once, ``synchronize`` returns when the work is done."""

    def __init__(self) -> None:
        self._free_at = time.perf_counter()

    def launch(self, seconds: float) -> None:
        self._free_at = max(self._free_at, time.perf_counter()) + seconds

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._free_at - time.perf_counter()))


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
        self.said.update(copied=True, from_pinned=self._pinned, non_blocking=non_blocking)
        return self

    def cuda(self, device: object = None, non_blocking: bool = False) -> PretendBatch:
        return self.to(device, non_blocking)


class SpyScaler(torch.amp.GradScaler):
    """A GradScaler that remembers what it was asked, and the gradients' norm at the step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.called: list[str] = []
        self.norm_at_step = float("inf")
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def scale(self, outputs):
        self.called.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer):
        self.called.append("unscale_")
        return super().unscale_(optimizer)

    def step(self, optimizer, *args, **kwargs):
        self.called.append("step")
        self.norm_at_step = float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in self._parameters])))
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        self.called.append("update")
        return super().update(new_scale)


EXERCISES = {
    "1.1": _busy_share,
    "1.2": _stopwatch,
    "2.1": _waiting_steps,
    "2.2": _loader_bound,
    "3.1": _hidden_copies,
    "3.2": _pinned_copy,
    "4.1": _smallest_half,
    "4.2": _amp_step,
    "4.3": _share_of_bound,
    "5.1": _idle_bound,
    "5.2": _next_after_loader,
}
