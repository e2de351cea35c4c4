"""The exercises of lab 10: wrong answers are told what is wrong with them."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit import exercises
from labkit.source import recorded
from stepbudget.report import open_report

PRODUCTS = pd.DataFrame(
    [
        {"part": part, "dtype": dtype, "varied": varied, "n": n, "us": us}
        for part, dtype, varied, n, us in (
            ("one", "bf16", "n", 4097, 1000.0),
            ("one", "bf16", "n", 4104, 200.0),
            ("one", "tf32", "n", 4097, 3000.0),
            ("all", "bf16", "mnk", 4104, 777.0),
        )
    ]
)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda size, dtype: -(-size // 4) * 4, "no multiple of 16"),
        (lambda size, dtype: -(-size // 8) * 8, "a smaller one would do"),
        (lambda size, dtype: -(-size // 64) * 64, "a smaller one would do"),
        (lambda size, dtype: size // 8 * 8, "smaller than what has to fit"),
        (lambda size, dtype: size + 16 // dtype.itemsize - size % (16 // dtype.itemsize), "a smaller one would do"),
        (lambda size, dtype: float(size), "not a whole number"),
        (lambda size, dtype: None, "not a whole number"),
    ],
)
def test_a_wrong_padding_is_told(wrong, said, capsys):
    assert not exercises.exercise("10.1", wrong)
    assert said in capsys.readouterr().out


def test_an_empty_function_is_no_answer(capsys):
    def unanswered(*_):
        raise NotImplementedError

    assert not exercises.exercise("10.1", unanswered)
    assert "no answer yet" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "said"), [(5.0, "[ok]"), (0.2, "too small"), (3000 / 200, "too large")])
def test_what_padding_gains(answer, said, capsys):
    exercises.exercise("10.2", answer, PRODUCTS)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "said"), [("One input channel", "[ok]"), ("shape", "'not using'")])
def test_the_reason_of_the_idle_operation(answer, said, capsys):
    with open_report(recorded.folder() / "profiles" / "main_opt3_tf32_ops.sqlite.xz") as report:
        exercises.exercise("10.3", answer, report)
    assert said in capsys.readouterr().out
