"""Exercises of lab 7: wrong answers are told what is wrong."""

import pytest

from labkit import exercises


def wrong_item(weight, gradient, rate, limit):
    weight.sub_(rate * min(1.0, limit / gradient.norm().item()) * gradient)


def wrong_if(weight, gradient, rate, limit):
    if gradient.norm() > limit:
        weight.sub_(rate * limit / gradient.norm() * gradient)
    else:
        weight.sub_(rate * gradient)


def always_clipped(weight, gradient, rate, limit):
    weight.sub_(rate * limit / gradient.norm() * gradient)


def never_clipped(weight, gradient, rate, limit):
    weight.sub_(rate * gradient)


def fixed_rate(weight, gradient, rate, limit):
    weight.sub_(0.5 * (limit / gradient.norm()).clamp(max=1.0) * gradient)


def fixed_norm(weight, gradient, rate, limit):
    weight.sub_(rate * (gradient / 10).clamp(min=-limit, max=limit))


def not_in_place(weight, gradient, rate, limit):
    weight = weight - rate * (limit / gradient.norm()).clamp(max=1.0) * gradient


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (wrong_item, "a capture refuses it"),
        (wrong_if, "a capture refuses it"),
        (always_clipped, "its choice was made once"),
        (never_clipped, "not clipped"),
        (fixed_rate, "fixed at the capture"),
        (fixed_norm, "wrong for a small one"),
        (not_in_place, "in their place"),
    ],
)
def test_a_step_for_a_graph(wrong, said, capsys):
    assert not exercises.exercise("7.2", wrong)
    assert said in capsys.readouterr().out


def run(process_s: float, epoch_s: float) -> dict:
    return {"process_s": process_s, "epochs": [{"training_s": epoch_s - 0.1, "test_s": 0.1}] * 10}


def test_the_break_even_of_a_cold_start(capsys):
    runs, cold = [run(7.0, 0.5)] * 3, run(20.0, 0.25)  # fixed: 2 and 17.5 s
    assert exercises.exercise("7.1", 62, runs, cold)
    assert not exercises.exercise("7.1", 52, runs, cold), "the process seconds hold epochs too"
    assert not exercises.exercise("7.1", 31, runs, cold)
    assert "too small" in capsys.readouterr().out


def test_without_a_cold_run_there_is_nothing_to_answer(capsys):
    assert not exercises.exercise("7.1", 60, [], None)
    assert "nothing to work out" in capsys.readouterr().out
