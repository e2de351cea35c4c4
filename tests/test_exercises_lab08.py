"""Exercises of labs 8 and 9: wrong answers are told what is wrong."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit import exercises
from labkit.pretend.triton import tl

LIMITS = pd.DataFrame({"limit": ["waiting", "memory", "memory"], "mb": [200.0, 100.0, 50.0], "us": [90.0, 30.0, 40.0]})


def test_an_intensity(capsys):
    assert exercises.exercise("8.1", 111.7)
    for wrong in (55.9, 223.5):
        assert not exercises.exercise("8.1", wrong)
    assert "Two operations" in capsys.readouterr().out


def right_roof(rows, columns, inner, dtype, peaks):
    moved = {"bf16": 2, "fp32": 4}[dtype] * (rows * inner + inner * columns + rows * columns)
    return "memory" if 2 * rows * columns * inner / moved < peaks.ridge(dtype) else "arithmetic"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda *_: "memory", "says 'memory'"),
        (lambda *_: "arithmetic", "says 'arithmetic'"),
        (lambda *_: "both", "'memory' or 'arithmetic' is wanted"),
        (lambda m, n, k, dtype, peaks: right_roof(m, n, k, "bf16", peaks), "says"),  # bytes and roof of another type
        (lambda m, n, k, dtype, peaks: right_roof(m / 2, n / 2, k / 2, dtype, peaks), "says"),  # one operation, not two
        (lambda m, n, k, dtype, peaks: right_roof(m, n, max(m, n, k), dtype, peaks), "says"),
        (lambda m, n, k, dtype, peaks: right_roof(2 * m, 2 * n, 2 * k, dtype, peaks), "says"),  # half the bytes
    ],
)  # fmt: skip
def test_a_roof(wrong, said, capsys):
    assert exercises.exercise("8.2", right_roof)
    assert not exercises.exercise("8.2", wrong)
    assert said in capsys.readouterr().out


def test_a_fused_kernel_saves_half_if_memory_limits_it(capsys):
    assert exercises.exercise("8.3", 15.0, LIMITS)
    assert not exercises.exercise("8.3", 45.0, LIMITS), "that one waits"
    assert not exercises.exercise("8.3", 20.0, LIMITS), "that one moves less"
    assert not exercises.exercise("8.3", 30.0, LIMITS)
    assert "look only at kernels" in capsys.readouterr().out


def places(count, block, masked=True):
    at = tl.program_id(0) * block + tl.arange(0, block)
    return at, (at < count if masked else None)


def no_mask(x, bias, y, count, columns, BLOCK):
    at, _ = places(count, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at) + tl.load(bias + at % columns), 0.0))


def no_bias(x, bias, y, count, columns, BLOCK):
    at, mask = places(count, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=mask, other=0.0), 0.0), mask=mask)


def bias_by_row(x, bias, y, count, columns, BLOCK):
    at, mask = places(count, BLOCK)
    value = tl.load(x + at, mask=mask) + tl.load(bias + at // columns % columns, mask=mask)
    tl.store(y + at, tl.maximum(value, 0.0), mask=mask)


def negative(x, bias, y, count, columns, BLOCK):
    at, mask = places(count, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=mask) + tl.load(bias + at % columns, mask=mask), mask=mask)


def one_program(x, bias, y, count, columns, BLOCK):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.load(bias + at % columns, mask=at < count)
    tl.store(y + at, tl.maximum(value, 0.0), mask=at < count)


def twice(x, bias, y, count, columns, BLOCK):
    at, mask = places(count, BLOCK)
    value = (tl.load(x + at, mask=mask) + tl.load(x + at, mask=mask)) / 2 + tl.load(bias + at % columns, mask=mask)
    tl.store(y + at, tl.maximum(value, 0.0), mask=mask)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (no_mask, "a mask is missing"),
        (no_bias, "never adds the bias"),
        (bias_by_row, "belongs to column i % columns"),
        (negative, "some results are negative"),
        (one_program, "were never written"),
        (twice, "numbers where"),
    ],
)
def test_a_fused_kernel(wrong, said, capsys):
    assert not exercises.exercise("9.1", wrong)
    assert said in capsys.readouterr().out


ENTRIES = pd.DataFrame(
    {
        "step": ["main_baseline.py", "main_opt5.py", "main_opt7.py"],
        "process_s": [40.0, 6.0, 3.0],
        "process_low_s": [39.0, 5.8, 2.9],
        "process_high_s": [41.0, 6.2, 3.1],
        "cold_s": [None, None, 9.0],
        "training_s": [30.0, 1.0, 1.0],
    }
)


def test_the_first_time_counts_compiling(capsys):
    assert exercises.exercise("9.2", "main_opt5.py", ENTRIES)
    assert not exercises.exercise("9.2", "main_opt7.py", ENTRIES)
    assert "cold" in capsys.readouterr().out


def test_rungs_whose_ranges_overlap_cannot_be_told_apart():
    near = ENTRIES.assign(process_s=[6.3, 6.0, 3.0], process_low_s=[6.1, 5.8, 2.9])
    assert exercises.exercise("9.2", "main_baseline.py", near) and exercises.exercise("9.2", "main_opt5.py", near)
    assert not exercises.exercise("9.2", "main_baseline.py", ENTRIES)


def test_the_last_factor_of_the_loop_is_little_of_the_process():
    assert exercises.exercise("9.3", 3.0 / 2.5, ENTRIES, 0.5)
    assert not exercises.exercise("9.3", 2.0, ENTRIES, 0.5), "that is the loop's"
    assert not exercises.exercise("9.3", 1.0, ENTRIES, 0.5)


def test_without_a_kernel_that_memory_limits_there_is_nothing_to_answer(capsys):
    assert not exercises.exercise("8.3", None, LIMITS[LIMITS["limit"] == "waiting"])
    assert "nothing to work out" in capsys.readouterr().out


def test_the_last_rung_is_the_one_that_ran():
    assert exercises.exercise("9.3", 3.0 / 2.5, ENTRIES.replace("main_opt7.py", "main_opt6.py"), 0.5)
