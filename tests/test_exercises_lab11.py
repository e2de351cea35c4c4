"""Exercises of lab 11: wrong answers are told what is wrong."""

from __future__ import annotations

import pytest

from labkit import exercises

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


def finite(model) -> bool:
    return all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def divided(model, scale: float) -> None:
    for parameter in model.parameters():
        parameter.grad /= scale


def right(model, loss, optimizer, scale):
    (loss * scale).backward()
    if finite(model):
        divided(model, scale)
        optimizer.step()


def forgets_to_scale(model, loss, optimizer, scale):
    loss.backward()
    optimizer.step()


def forgets_to_divide(model, loss, optimizer, scale):
    (loss * scale).backward()
    if finite(model):
        optimizer.step()


def forgets_to_look(model, loss, optimizer, scale):
    (loss * scale).backward()
    divided(model, scale)
    optimizer.step()


def never_steps(model, loss, optimizer, scale):
    (loss * scale).backward()
    divided(model, scale)


def not_begun(model, loss, optimizer, scale):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (right, "[ok] exercise 11.1"),
        (forgets_to_scale, "not scaled"),
        (forgets_to_divide, "divided before the step"),
        (forgets_to_look, "must be left out"),
        (never_steps, "do not move"),
        (lambda *_: None, "no backward pass"),
        (not_begun, "no answer yet"),
    ],
)
def test_a_step_with_a_fixed_scale(step, said, capsys):
    assert exercises.exercise("11.1", step) == (step is right)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (64.0, "[ok]"),
        (32.0, "too small"),
        (128.0, "too large"),
        (6, "too small"),
        (-6, "a factor"),
        (None, "no answer"),
    ],
)
def test_the_smallest_scale(answer, said, capsys):
    exercises.exercise("11.2", answer, [0.02, 0.48, 0.5], -30)
    assert said in capsys.readouterr().out


def windows(skipped=0, zero=0.1, subnormal=0.1) -> list[dict]:
    healthy = {"skipped": 0, "zero_share": 0.0, "subnormal_share": 0.0}
    return [healthy, {"skipped": skipped, "zero_share": zero, "subnormal_share": subnormal}]


LOGS = [windows(skipped=1), windows(zero=0.9, subnormal=0.08), windows(skipped=10)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (("healthy", "underflow", "Overflow "), "[ok]"),
        (("underflow", "underflow", "overflow"), "log A"),
        (("healthy", "overflow", "overflow"), "log B"),
        (("healthy", "underflow", "healthy"), "log C"),
        ("healthy", "Name 3 diagnoses"),
        (None, "no answer"),
    ],
)
def test_the_logs(answer, said, capsys):
    exercises.exercise("11.3", answer, *LOGS)
    assert said in capsys.readouterr().out
