"""The exercises of lab 4: the smallest FP16 number, a step in mixed precision, and the score of a bound."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from labkit.checks import answer_function, answer_number
from stepbudget.ask.compare import compare
from stepbudget.report import Report


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


EXERCISES = {"4.1": _smallest_half, "4.2": _amp_step, "4.3": _share_of_bound}
