"""The exercises of lab 4: the smallest FP16 number, a step in mixed precision, and the score of a bound."""

from __future__ import annotations

from collections.abc import Callable

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number
from stepbudget.ask.compare import compare
from stepbudget.report import Report

SMALLEST_HALF = Number(
    READ,
    "The smallest exponent is -14, and a subnormal number has ten more bits below it.",
    right=lambda: 2.0**-24,
    wrong={
        "that is the smallest normal number: below it are the subnormal ones": lambda: 2.0**-14,
        "that is what is rounded to zero: half of the smallest number": lambda: 2.0**-25,
        "that is the distance from 1 to the next number: near zero numbers are finer": lambda: 2.0**-10,
        "that is BF16's smallest normal number: it has FP32's exponents, FP16 has fewer": lambda: 2.0**-126,
        "that is the exponent alone: the number is a power of two": lambda: -24.0,
    },
)

SCALE = 1024.0
STALE = 1e5  # each gradient of the step before: far more than this step's, even scaled


class StepTrial:
    """One call of the reader's step on a small network, and what its scaler saw."""

    def __init__(self, amp_step: Callable, max_norm: float) -> None:
        import torch  # here and below: the recorded labs need none
        from torch import nn

        torch.manual_seed(0)
        self.max_norm, self.types = max_norm, []
        self.model, own = nn.Linear(8, 1), nn.Linear(8, 1)
        own.load_state_dict(self.model.state_dict())
        data, target = torch.randn(4, 8), torch.full((4, 1), 10.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, STALE)
        self.stale, self.before = self._flat(self.model), self._weights()
        self.model.register_forward_hook(lambda _, __, out: self.types.append(out.dtype))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.scaler = self._spy(torch.amp.GradScaler("cpu", init_scale=SCALE))
        self.error: Exception | None = None
        try:
            amp_step(self.model, nn.MSELoss(), data, target, optimizer, self.scaler, max_norm)
        except (AssertionError, RuntimeError) as error:  # a scaler that is used in another order
            if isinstance(error, NotImplementedError):
                raise
            self.error = error
        self.moved = self.before - self._weights()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(own(data), target)
        loss.backward()
        self.gradient = self._flat(own)

    def _spy(self, scaler):
        """The scaler, noting what it was asked, and the gradients as they were then."""
        self.asked: dict = {}

        def noting(name: str, own: Callable) -> Callable:
            def noted(*arguments, **named):
                self.asked.setdefault(name, self._flat(self.model))
                return own(*arguments, **named)

            return noted

        for name in ("scale", "unscale_", "step", "update"):
            setattr(scaler, name, noting(name, getattr(scaler, name)))
        return scaler

    @staticmethod
    def _flat(model):
        import torch

        gradients = [parameter.grad for parameter in model.parameters()]
        if any(one is None for one in gradients):
            return None
        return torch.cat([one.detach().flatten() for one in gradients]).clone()

    def _weights(self):
        import torch

        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).clone()

    def said(self) -> str | None:
        """What is wrong with the step, or None."""
        import torch

        if self.error and not self.types:
            raise self.error
        if torch.float32 in self.types or not self.types:
            return "the forward pass runs in FP32: it belongs into torch.autocast, for the data's device"
        if torch.bfloat16 in self.types:
            return "autocast computes in BF16, which needs no scaler: name torch.float16"
        if "scale" not in self.asked:
            return "the loss is never scaled"
        cleared = "there are no gradients at the step: is zero_grad() called after backward()?"
        if self.error:
            if self.asked.keys() & {"unscale_", "step"} and list(self.asked.values())[-1] is None:
                return cleared
            raise self.error
        for name, why in (
            ("step", "scaler.step(optimizer) is missing: it leaves out steps that overflow"),
            ("update", "scaler.update() is missing"),
        ):
            if name not in self.asked:
                return why
        order = list(self.asked)
        unscaled_first = "unscale_" in order and order.index("unscale_") < order.index("step")
        scaled = self.asked["unscale_" if unscaled_first else "step"]  # as backward, or a clip, left them
        if self._same(scaled, SCALE * self.gradient + self.stale):
            return "the gradients of the step before are still in it: optimizer.zero_grad() is missing"
        if scaled is None or not scaled.any():
            return cleared
        if self._same(scaled, self.gradient):
            return "backward() starts from the loss that is not scaled"
        if not self._same(scaled, SCALE * self.gradient):
            return "the gradients are clipped while they are still scaled: call scaler.unscale_(optimizer) first"
        if not unscaled_first:
            return "the gradients are not clipped before the step, or only after it"
        return self._clipped(self.asked["step"])

    def _clipped(self, gradient) -> str | None:
        import torch

        norm, own, most = gradient.norm(), self.gradient.norm(), self.max_norm
        if torch.nn.functional.cosine_similarity(gradient, self.gradient, dim=0) < 0.999:
            return "the gradients point elsewhere after the clip: clip their norm, not each number"
        wanted = min(float(own), most)
        if norm > 1.01 * wanted:
            return f"the gradients' norm is {norm:.3g} at the step: clip them to max_norm, {most:g} here"
        if norm < 0.99 * wanted:
            return f"the gradients' norm is {norm:.3g} at the step, where {own:.3g} may stay up to {most:g}"
        if not self._same(self.moved, gradient):
            return "the weights do not move by one step: is the optimizer asked twice, or before the clip?"
        return None

    @staticmethod
    def _same(found, wanted) -> bool:
        import torch

        return found is not None and torch.allclose(found, wanted, rtol=0.02, atol=1e-3 * float(wanted.norm()))


def _try_amp_step(amp_step: Callable) -> str | None:
    for max_norm in (1.0, 0.25, 1e4):  # clipped, more so, and not at all
        if said := StepTrial(amp_step, max_norm).said():
            return said
    return None


def _amp_step(
    kind: str = "float16",
    zero: str = "first",
    scaled: bool = True,
    unscale: str = "before the clip",
    clip: Callable | None = None,
    step: Callable | None = None,
    update: bool = True,
) -> Callable:
    """A step with all that belongs to it, but for what is said otherwise."""

    def amp_step(model, loss_fn, data, target, optimizer, scaler, max_norm):
        import torch

        if zero == "first":
            optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, kind), enabled=kind != "float32"):
            loss = loss_fn(model(data), target)
        (scaler.scale(loss) if scaled is True else loss).backward()
        if scaled == "and thrown away":
            scaler.scale(loss)
        if zero == "after backward":
            optimizer.zero_grad()
        if unscale == "before the clip":
            scaler.unscale_(optimizer)
        (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), max_norm)
        if unscale == "after the clip":
            scaler.unscale_(optimizer)
        (step or (lambda scaler, optimizer: scaler.step(optimizer)))(scaler, optimizer)
        if update:
            scaler.update()

    return amp_step


def _clip_values(parameters, max_norm):
    import torch

    torch.nn.utils.clip_grad_value_(parameters, max_norm)


def _clip_to(norm: float) -> Callable:
    def clip(parameters, max_norm):
        import torch

        torch.nn.utils.clip_grad_norm_(parameters, norm)

    return clip


def _always_to_max_norm(parameters, max_norm):
    own = list(parameters)
    norm = sum(float(one.grad.norm()) ** 2 for one in own) ** 0.5
    for one in own:
        one.grad *= max_norm / norm


def _twice(scaler, optimizer):
    scaler.step(optimizer)
    optimizer.step()


AMP_STEP = Code(
    "zero_grad, autocast for the forward pass, scale and backward, unscale_, clip_grad_norm_, step, update.",
    _try_amp_step,
    wrong={
        "the forward pass runs in FP32": _amp_step(kind="float32"),
        "autocast computes in BF16": _amp_step(kind="bfloat16"),
        "the loss is never scaled": _amp_step(scaled=False),
        "backward() starts from the loss that is not scaled": _amp_step(scaled="and thrown away"),
        "optimizer.zero_grad() is missing": _amp_step(zero="never"),
        "is zero_grad() called after backward()?": _amp_step(zero="after backward"),
        "clipped while they are still scaled": _amp_step(unscale="after the clip"),
        "clipped while they are still scaled: call": _amp_step(unscale="never"),
        "clip their norm, not each number": _amp_step(clip=_clip_values),
        "is 0.01 at the step, where": _amp_step(clip=_clip_to(0.01)),
        "clip them to max_norm, 0.25 here": _amp_step(clip=_clip_to(1.0)),
        "clip them to max_norm, 1 here": _amp_step(clip=lambda *_: None),
        "clip them to max_norm, 10000 here": _amp_step(clip=_always_to_max_norm),
        "not clipped before the step": _amp_step(clip=lambda *_: None, unscale="never"),
        "scaler.step(optimizer) is missing": _amp_step(step=lambda scaler, optimizer: optimizer.step()),
        "scaler.update() is missing": _amp_step(update=False),
        "is the optimizer asked twice": _amp_step(step=_twice),
    },
)


def _gained_ms(before: Report, after: Report) -> float:
    return compare(before, after).gained_ms


def _bound_ms(before: Report, after: Report) -> float:
    bound_ms = compare(before, after).bounds["mixed_precision"].at_most_ms
    if not bound_ms:
        raise NothingToAnswer("mixed precision has nothing to gain in this report")
    return bound_ms


def _epoch_ms(report: Report) -> float:
    return report.window().duration_ms


SHARE_OF_BOUND = Number(
    BOUND,
    "By how much the epoch became shorter, over what the first of the two reports says is possible.",
    right=lambda before, after: 100 * _gained_ms(before, after) / _bound_ms(before, after),
    wrong={
        "that is a share of 1: in per cent it is a hundred times as much": lambda b, a: (
            _gained_ms(b, a) / _bound_ms(b, a)
        ),
        "those are the milliseconds gained: what share of the bound are they?": _gained_ms,
        "that is the bound itself, in milliseconds": _bound_ms,
        "that is the gain as a share of the whole epoch, not of its bound": lambda b, a: (
            100 * _gained_ms(b, a) / _epoch_ms(b)
        ),
        "that is the bound over the gain: the other way round": lambda b, a: 100 * _bound_ms(b, a) / _gained_ms(b, a),
        "that is held against the bound of the second report: the first one promised it": lambda b, a: (
            100 * _gained_ms(b, a) / compare(a, b).bounds["mixed_precision"].at_most_ms
        ),
    },
)

EXERCISES = {"4.1": SMALLEST_HALF, "4.2": AMP_STEP, "4.3": SHARE_OF_BOUND}
