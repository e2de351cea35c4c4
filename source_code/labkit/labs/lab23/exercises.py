"""The exercises of lab 23: where FP8 begins to pay, what it gains of a whole step, and a step in the right order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, quietly
from labkit.labs.lab23.fp8 import us
from labkit.lazily import torch
from labkit.numbers import Quantity

# --- 23.1: from which width on does FP8 pay? ------------------------------------------------------------------


COMPILED = " compiled"


def _gains(record: dict, ending: str):
    found = us(record, "layers").reindex(columns=[f"bf16{ending}", f"fp8{ending}"]).dropna()
    return found.iloc[:, 0] / found.iloc[:, 1]


def smallest_width(record: dict) -> float:
    """The smallest measured width at which FP8 is faster than BF16, both compiled."""
    gains = _gains(record, COMPILED)
    if not (gains > 1).any():
        raise NothingToAnswer("FP8 was faster at none of the widths that were measured here")
    return float(gains.index[gains > 1][0])


def _index(record: dict, wanted: Callable, ending: str = COMPILED) -> float:
    gains = _gains(record, ending)
    found = gains.index[wanted(gains)]
    return float(found[0]) if len(found) else float("nan")


def _between(record: dict) -> float:
    """The largest width below the right one that was measured as PyTorch runs it, and not compiled."""
    compiled, right = set(_gains(record, COMPILED).index), smallest_width(record)
    return float(
        max((width for width in _gains(record, "").index if width not in compiled and width < right), default=0)
    )


SMALLEST_WIDTH = Number(
    READ,
    "Find the blue line, and the first of its points above 1.",
    right=smallest_width,
    wrong={
        "there FP8 is still slower: 1 means as fast as BF16": lambda record: _index(record, lambda g: g < 1),
        "there it gains most; or is it the orange line? Asked is where the blue one's gain begins": lambda record: (
            float(_gains(record, COMPILED).idxmax())
        ),
        "at that width nothing compiled was measured: a line between two dots is no measurement": lambda record: (
            _between(record)
        ),
        "that is the gain itself: asked is the width": lambda record: float(_gains(record, COMPILED).max()),
    },
    within=0.001,
)

# --- 23.2: what FP8 gains of a whole step ---------------------------------------------------------------------


@Quantity
def most_gained(share: float, ratio: float) -> float:
    """How many times as fast a step becomes at most, of which a ``share`` becomes ``ratio`` times as fast."""
    return 1 / (1 - share + share / ratio)


MOST_GAINED = Number(
    BOUND,
    "The rest of the step stays as it is: what part of the old time is left, and what is 1 over that?",
    right=most_gained,
    wrong={
        "that is the gain of the products alone: the rest of the step stays": lambda share, ratio: ratio,
        "shares of time add up, gains do not": lambda share, ratio: 1 - share + share * ratio,
        "that is what is left of the time: the gain is 1 over it": 1 / most_gained,
        "that would make the products cost nothing": lambda share, ratio: 1 / (1 - share),
        "that is the share of the time that is saved": 1 - 1 / most_gained,
    },
    within=0.01,
)

# --- 23.3: accumulation, clipping, a scaler and a fused optimizer, in order -----------------------------------

MAX_NORM, LR, PARTS = 0.5, 0.1, 4
SMALL = 1e-3


@quietly
def _try_step(step: Callable) -> str | None:
    torch.manual_seed(0)
    data = list(torch.randn(PARTS, 8, 6))
    model, exact = torch.nn.Linear(6, 1), torch.nn.Linear(6, 1)
    exact.load_state_dict(model.state_dict())
    scaler, optimizer = _Counted("cpu", init_scale=2.0**10), torch.optim.SGD(model.parameters(), LR, fused=True)

    def loss_of(net, part):
        return 20 * net(part).square().mean()

    def right(parts, factor=1.0):
        exact.zero_grad()
        for part in parts:
            (factor * loss_of(exact, part) / len(parts)).backward()
        norm = torch.nn.utils.clip_grad_norm_(exact.parameters(), MAX_NORM)
        with torch.no_grad():
            for one in exact.parameters():
                one -= LR * one.grad
        return norm

    def differs():
        return not all(
            torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), exact.parameters(), strict=True)
        )

    before, before_bias = model.weight.detach().clone(), model.bias.detach().clone()
    assert right(data) > 2 * MAX_NORM  # so that clipping shows
    step(model, loss_of, data, optimizer, scaler)
    if torch.equal(model.weight, before):
        return "the weights do not move: after `unscale_` and clipping comes `scaler.step(optimizer)`"
    if scaler.seen["step"] > 1:
        return f"{scaler.seen['step']} steps were taken: one for all parts together"
    if scaler.seen["step"] == 0:
        return "the optimizer stepped without the scaler, which then leaves out no bad step"
    if scaler.early:
        return "`update` comes after `step`, not before it"
    moved = (
        float(torch.cat([(model.weight.detach() - before).flatten(), model.bias.detach() - before_bias]).norm()) / LR
    )
    if moved < MAX_NORM / 100:
        return "clipped were gradients that are still scaled: `unscale_` comes before it"
    if moved > 1.05 * MAX_NORM:
        return f"the gradients are not clipped to {MAX_NORM:g}: they came to {moved:.2g}"
    if scaler.seen["update"] != 1:
        return "the scaler wants one `update` a step: without it its scale never changes"
    if moved < 0.95 * MAX_NORM:
        return f"the gradients came to {moved:.2g} and not to {MAX_NORM:g}: clip to that, and change nothing afterwards"
    if differs():
        return "the weights moved in a direction that is not that of all parts' mean: is every part's gradient kept?"
    before, old = model.weight.detach().clone(), exact.weight.detach().clone()
    right(data, SMALL)  # too small to be clipped
    step(model, lambda net, part: SMALL * loss_of(net, part), data, optimizer, scaler)
    if torch.allclose(model.weight - before, PARTS * (exact.weight - old), rtol=1e-3):
        return "the loss of a part counts once: divide it by how many parts there are"
    way, wanted = model.weight.detach() - before, exact.weight.detach() - old
    if differs() and torch.allclose(way / way.norm(), wanted / wanted.norm(), atol=1e-3):
        times = float(way.norm() / wanted.norm())
        return f"the second step, too short to clip, is {times:.2g} times the mean's: what is the loss divided by?"
    if differs():
        return "the second step went wrong: are gradients of the first one left?"
    kept, scale = model.weight.detach().clone(), scaler.get_scale()
    step(model, loss_of, [data[0] * float("inf"), *data[1:]], optimizer, scaler)
    if not torch.equal(kept, model.weight):
        return "a step with gradients that are not finite must be left out"
    if scaler.get_scale() != scale / 2:
        return "after a step that was left out the scale is halved"
    return None


def _Counted(*given, **named):
    """A scaler that counts its calls, in ``seen``."""

    class Scaler(torch.amp.GradScaler):
        def __init__(self):
            super().__init__(*given, **named)
            self.early = False
            self.seen = {"unscale_": 0, "step": 0, "update": 0}

        def unscale_(self, optimizer):
            self.seen["unscale_"] += 1
            return super().unscale_(optimizer)

        def step(self, optimizer, *args, **more):
            self.seen["step"] += 1
            return super().step(optimizer, *args, **more)

        def update(self, new_scale=None):
            self.early |= self.seen["update"] >= self.seen["step"]
            self.seen["update"] += 1
            return super().update(new_scale)

    return Scaler()


def _step(
    zeroed: bool = True,
    divided: bool = True,
    unscaled: bool = True,
    max_norm: float = MAX_NORM,
    stepped: str = "scaler",
    updated: bool = True,
    each: bool = False,
    kept: bool = True,
) -> Callable:
    """A step with all that belongs to it, in order, but for what is said otherwise."""

    def step(model, loss_of, parts, optimizer, scaler):
        def finish():
            if unscaled:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if stepped == "scaler":
                scaler.step(optimizer)
            elif stepped == "optimizer":
                optimizer.step()
            if updated:
                scaler.update()

        if zeroed:
            optimizer.zero_grad()
        for part in parts:
            if not kept:
                optimizer.zero_grad()
            loss = loss_of(model, part)
            scaler.scale(loss / len(parts) if divided else loss).backward()
            if each:
                finish()
        if not each:
            finish()

    return step


def _clipped_before(unscaled: bool = False) -> Callable:
    """A step that clips what is still scaled, and then calls ``unscale_``, or leaves it out."""

    def step(model, loss_of, parts, optimizer, scaler):
        optimizer.zero_grad()
        for part in parts:
            scaler.scale(loss_of(model, part) / len(parts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    return step


def _nothing(model, loss_of, parts: Sequence, optimizer, scaler):
    optimizer.zero_grad()


STEP_IN_ORDER = Code(
    "zero_grad; for each part: its loss over their number, scale, backward; then once: unscale_, clip, step, update.",
    _try_step,
    wrong={
        "the weights do not move": _nothing,
        "are still scaled": _clipped_before(),
        "`unscale_` comes before it": _clipped_before(unscaled=True),
        "are not clipped to": _step(max_norm=1e9),
        "steps were taken: one for all parts": _step(each=True),
        "stepped without the scaler": _step(stepped="optimizer"),
        "wants one `update` a step": _step(updated=False),
        "is every part's gradient kept": _step(kept=False),
        "are gradients of the first one left": _step(zeroed=False),
        "divide it by how many parts there are": _step(divided=False),
    },
)

EXERCISES = {"23.1": SMALLEST_WIDTH, "23.2": MOST_GAINED, "23.3": STEP_IN_ORDER}
