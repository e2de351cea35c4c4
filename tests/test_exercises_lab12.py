"""Exercises of lab 12: wrong answers are told what is wrong."""

import pandas as pd
import pytest

from labkit import exercises


def only_transposed(weight, channels, rows, columns):
    return weight.T


def not_transposed(weight, channels, rows, columns):
    return weight


def rows_and_columns_swapped(weight, channels, rows, columns):
    return weight.reshape(-1, channels, rows, columns).transpose(3, 2, 1, 0).reshape(-1, len(weight))


def never_grows(scale, overflowed, growth_steps):
    return scale / 2 ** sum(overflowed)


def counts_all_good_steps(scale, overflowed, growth_steps):
    return never_grows(scale, overflowed, growth_steps) * 2 ** (overflowed.count(False) // growth_steps)


def grows_once(scale, overflowed, growth_steps):
    good = 0
    for one in overflowed:
        good = 0 if one else good + 1
        scale = scale / 2 if one else scale * 2 if good == growth_steps else scale
    return scale


def mean_only(samples):
    return 1 - sum(samples) / len(samples) / 100


def low_samples_are_pauses(samples):
    return sum(sample < 30 for sample in samples) / len(samples), mean_only(samples)


def nothing_above_zero_pauses(samples):
    least = samples.count(0) / len(samples)
    return least, least


@pytest.mark.parametrize(
    ("number", "wrong", "said"),
    [
        ("12.1", only_transposed, "channel by channel"),
        ("12.1", not_transposed, "its shape is (5, 48)"),
        ("12.1", rows_and_columns_swapped, "the products differ"),
        ("12.2", never_grows, "doubles it"),
        ("12.2", counts_all_good_steps, "starts the count of good steps anew"),
        ("12.2", grows_once, "after a doubling"),
        ("12.4", mean_only, "two shares are wanted"),
        ("12.4", low_samples_are_pauses, "the least is 1"),
        ("12.4", nothing_above_zero_pauses, "the most is 0"),
    ],
)
def test_a_wrong_answer_is_told(number, wrong, said, capsys):
    assert not exercises.exercise(number, wrong)
    assert said in capsys.readouterr().out


def test_the_row_with_a_fixed_scale(capsys):
    ways = pd.DataFrame({"way": ["asked for", "asked for and kept"], "fixed_scale": [None, 1024.0]})
    assert not exercises.exercise("12.3", "asked for", ways)
    assert "not what compile left" in capsys.readouterr().out
    assert exercises.exercise("12.3", "asked for and kept", ways)


@pytest.mark.parametrize("answer", ["asked for", "asked for and kept"])
def test_a_newer_keras_may_keep_the_scale_in_either_way(answer, capsys):
    ways = pd.DataFrame({"way": ["asked for", "asked for and kept"], "fixed_scale": [1024.0, 1024.0]})
    assert exercises.exercise("12.3", answer, ways)
    ways["fixed_scale"] = None
    assert not exercises.exercise("12.3", answer, ways)
