"""The exercises of the lab on the speedrun: seeds that reach 99 % themselves, a floor of its time, smoothed labels."""

from __future__ import annotations

from collections.abc import Callable

from labkit.exercises.kinds import BOUND, READ, Code, Number, quietly
from labkit.speedrun import rules


def _own(record: dict) -> list[float]:
    return [row["accuracy_pct"] for row in record["rows"]]


THEMSELVES = Number(
    READ,
    "Count the rows of the table that have the goal or more in the last column; a dot on the line reaches it.",
    right=lambda record: sum(one >= rules.GOAL_PCT for one in _own(record)),
    wrong={
        "that is all of them: the rule asks for the mean, and single seeds may fall below it": lambda record: len(
            _own(record)
        ),
        "those are the ones that do not reach it": lambda record: sum(one < rules.GOAL_PCT for one in _own(record)),
        "that is a share in percent: the number of seeds is wanted": lambda record: (
            100 * sum(one >= rules.GOAL_PCT for one in _own(record)) / len(_own(record))
        ),
    },
    within=1e-9,
)

# --- What the products alone would take -----------------------------------------------------------------------


def _bound_ms(steps: int, batch: int, mflop: float, tflops: float) -> float:
    return steps * batch * mflop * 1e6 / (tflops * 1e12) * 1e3


AT_THE_ROOF = Number(
    BOUND,
    "Digits taken in all, times the operations for one, over the operations a second.",
    right=_bound_ms,
    wrong={
        "that is one step: all of them are wanted": lambda steps, *rest: _bound_ms(1, *rest),
        "that is one epoch of 60,000: this recipe takes fewer or more digits": lambda steps, batch, *rest: _bound_ms(
            1, rules.TRAIN_SAMPLES, *rest
        ),
        "that is in seconds: milliseconds are wanted": lambda *given: _bound_ms(*given) / 1e3,
    },
)


@quietly
def _try_gradient(gradient: Callable) -> str | None:
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    for count, smoothing in ((1, 0.1), (7, 0.2), (64, 0.0)):
        logits = torch.randn(count, 10, generator=generator, dtype=torch.float64).requires_grad_()
        labels = torch.randint(0, 10, (count,), generator=generator)
        [right] = torch.autograd.grad(F.cross_entropy(logits, labels, label_smoothing=smoothing), logits)
        found = gradient(logits.detach().clone(), labels.clone(), smoothing)
        if not isinstance(found, torch.Tensor) or found.shape != right.shape:
            return f"a tensor like the logits is wanted, ({count}, 10)"
        found = found.double()  # float32 is precise enough
        if torch.allclose(found, right, atol=1e-6):
            continue
        if torch.allclose(found, count * right, atol=1e-6):
            return "that is the gradient of the sum over the batch: the loss is its mean"
        if torch.allclose(found, -right, atol=1e-6):
            return "its sign is wrong: probabilities less target, not the other way round"
        others = _on_the_others(logits.detach(), labels, smoothing)
        if torch.allclose(found, others, atol=1e-6):
            return "the share goes to all ten, the true digit too"
        if abs(float(found.sum())) > 1e-6:
            return "the gradients of a digit's ten logits must add up to 0: does your target add up to 1?"
        return "it is not the derivative of the loss"
    return None


def _right(logits, labels, smoothing):
    import torch.nn.functional as F

    target = F.one_hot(labels, 10) * (1 - smoothing) + smoothing / 10
    return (logits.softmax(1) - target) / len(labels)


def _no_mean(logits, labels, smoothing):
    return _right(logits, labels, smoothing) * len(labels)


def _turned(logits, labels, smoothing):
    return -_right(logits, labels, smoothing)


def _no_share(logits, labels, smoothing):
    import torch.nn.functional as F

    return (logits.softmax(1) - F.one_hot(labels, 10) * (1 - smoothing)) / len(labels)


def _on_the_others(logits, labels, smoothing):
    import torch.nn.functional as F

    true = F.one_hot(labels, 10)
    return (logits.softmax(1) - true * (1 - smoothing) - (1 - true) * smoothing / 9) / len(labels)


SMOOTHED = Code(
    "The gradient of log-softmax and cross-entropy together is the probabilities less the target, over the batch.",
    _try_gradient,
    wrong={
        "that is the gradient of the sum over the batch": _no_mean,
        "its sign is wrong": _turned,
        "must add up to 0": _no_share,
        "the share goes to all ten, the true digit too": _on_the_others,
    },
)

EXERCISES = {"28.1": THEMSELVES, "28.2": AT_THE_ROOF, "28.3": SMOOTHED}
