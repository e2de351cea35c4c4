"""The exercises of lab 10: a fused kernel, the first run on a new machine, and what the last factor is worth."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number


def _try_bias_relu(bias_relu: Callable) -> str | None:
    import torch

    from labkit.pretend.triton import PretendError, launch

    generator = torch.Generator().manual_seed(0)
    for rows, columns in ((8, 8), (7, 10), (1, 100), (33, 3)):
        x, bias = torch.randn(rows, columns, generator=generator), torch.randn(columns, generator=generator)
        y, count, block = torch.full_like(x, torch.nan), x.numel(), 16
        try:
            work = launch(bias_relu, (-(-count // block),), x, bias, y, count, columns, BLOCK=block)
        except PretendError as error:
            return str(error)
        right = torch.relu(x + bias)
        if y.isnan().any():
            return f"of {count} numbers of y, {int(y.isnan().sum())} were never written, or are not a number"
        if (y < 0).any():
            return "some results are negative: max(…, 0) is missing"
        if torch.allclose(y, torch.relu(x)):
            return "it never adds the bias"
        if torch.allclose(y, torch.relu(x) + bias.clamp(min=0)) or torch.allclose(y, (torch.relu(x) + bias).relu()):
            return "the bias is added after the maximum: add it before"
        if not torch.allclose(y, right):
            return f"with {columns} columns some results are wrong: number i of x belongs to column i % columns"
        if work.loaded > 2 * count:
            return f"it reads {work.loaded} numbers where {2 * count} are enough: each of x once, and its bias"
    return None


def _places(count, block):
    from labkit.pretend.triton import tl

    at = tl.program_id(0) * block + tl.arange(0, block)
    return tl, at, at < count


def _no_mask(x, bias, y, count, columns, BLOCK):
    tl, at, _ = _places(count, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at) + tl.load(bias + at % columns), 0.0))


def _no_bias(x, bias, y, count, columns, BLOCK):
    tl, at, mask = _places(count, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=mask, other=0.0), 0.0), mask=mask)


def _bias_by_row(x, bias, y, count, columns, BLOCK):
    tl, at, mask = _places(count, BLOCK)
    value = tl.load(x + at, mask=mask) + tl.load(bias + at // columns % columns, mask=mask)
    tl.store(y + at, tl.maximum(value, 0.0), mask=mask)


def _negative(x, bias, y, count, columns, BLOCK):
    tl, at, mask = _places(count, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=mask) + tl.load(bias + at % columns, mask=mask), mask=mask)


def _one_program(x, bias, y, count, columns, BLOCK):
    tl, _, _ = _places(count, BLOCK)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count) + tl.load(bias + at % columns, mask=at < count)
    tl.store(y + at, tl.maximum(value, 0.0), mask=at < count)


def _twice(x, bias, y, count, columns, BLOCK):
    tl, at, mask = _places(count, BLOCK)
    value = (tl.load(x + at, mask=mask) + tl.load(x + at, mask=mask)) / 2 + tl.load(bias + at % columns, mask=mask)
    tl.store(y + at, tl.maximum(value, 0.0), mask=mask)


def _bias_afterwards(x, bias, y, count, columns, BLOCK):
    tl, at, mask = _places(count, BLOCK)
    value = tl.maximum(tl.load(x + at, mask=mask), 0.0) + tl.load(bias + at % columns, mask=mask)
    tl.store(y + at, tl.maximum(value, 0.0), mask=mask)


BIAS_RELU = Code(
    "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), a mask for at < count, and bias + at % columns.",
    _try_bias_relu,
    wrong={
        "a mask is missing": _no_mask,
        "never adds the bias": _no_bias,
        "belongs to column i % columns": _bias_by_row,
        "some results are negative": _negative,
        "were never written": _one_program,
        "are enough: each of x once": _twice,
        "the bias is added after the maximum": _bias_afterwards,
    },
)


def _first_times(entries: pd.DataFrame) -> set[str]:
    """The rung of the shortest first process, and those whose own runs reach as low: nothing tells these apart."""
    cold = entries["cold_s"].astype(float)
    best = cold.fillna(entries["process_s"]).idxmin()
    reaches = cold.fillna(entries["process_high_s"])[best]
    return {entries.loc[best, "step"], *entries.loc[cold.fillna(entries["process_low_s"]) <= reaches, "step"]}


FIRST_TIME = Choice(
    READ,
    "Take the cold process where there is one, else the usual one, and compare the seconds.",
    right=_first_times,
    wrong={
        "main_opt7.py": "its kernels are compiled in the first process: look at its cold seconds",
        "main_opt6.py": "it is compiled in the first process: look at its cold seconds",
        "main_baseline.py": "nothing is compiled, and it takes the longest all the same: compare the seconds",
        "main_opt3.py": "nothing is compiled, but the loader is still there: a later rung has none",
    },
)


def _at_the_floor(entries: pd.DataFrame, floor_s: float) -> tuple[float, float]:
    """Seconds of the last rung's process, and what would be left of them with its loop at the floor."""
    last = entries.iloc[-1]
    return float(last["process_s"]), float(last["process_s"] - (last["training_s"] - floor_s))


AT_THE_FLOOR = Number(
    BOUND,
    "The process less what the loop saves; the rest stays as it is.",
    right=lambda entries, floor_s: _at_the_floor(entries, floor_s)[0] / _at_the_floor(entries, floor_s)[1],
    wrong={
        "that is how many times as fast the loop becomes: the process holds more than the loop": lambda e, floor_s: (
            e.iloc[-1]["training_s"] / floor_s
        ),
        "that is the process without any training: the floor stays": lambda e, floor_s: (
            e.iloc[-1]["process_s"] / (e.iloc[-1]["process_s"] - e.iloc[-1]["training_s"])
        ),
        "that is as if the whole process came down to the floor": lambda e, floor_s: e.iloc[-1]["process_s"] / floor_s,
        "that is turned over: the share of the process that is left": lambda e, floor_s: (
            _at_the_floor(e, floor_s)[1] / _at_the_floor(e, floor_s)[0]
        ),
    },
    within=0.005,
)

EXERCISES = {"10.1": BIAS_RELU, "10.2": FIRST_TIME, "10.3": AT_THE_FLOOR}
