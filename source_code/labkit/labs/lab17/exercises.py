"""The exercises of lab 17: a step's length read off its counters, and how long the GPU pauses, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from labkit.exercises.kinds import BOUND, READ, Code, NothingToAnswer, Number, each_of
from labkit.labs.lab17.reports import Counted, counted
from labkit.numbers import number
from stepbudget.report import Report

Reports, Runs = Mapping[str, Report], Mapping[str, Sequence[dict]]  # by arithmetic and backend; by arithmetic


def _sampled(found: Counted) -> Counted:
    """It, where the counters were read."""
    if found.least is None:
        raise NothingToAnswer("the GPU's counters were not read here")
    return found


def _step_ms(reports: Reports, runs: Runs, name: str = "FP16 on JAX") -> float:
    """Milliseconds of a profiled training step, by the bar above its counters."""
    return _sampled(counted(reports[name])).steps.duration_ms / _steps(runs)


def _steps(runs: Runs) -> int:
    """Training steps of an epoch."""
    run = runs["FP16"][0]
    return -(-run["train_samples"] // run["arguments"]["batch_size"])


STEP_LENGTH = Number(
    READ,
    "How long is the black bar, on the axis below it? Share that out among the steps.",
    right=_step_ms,
    wrong={
        "that is the whole bar: all steps of the epoch lie below it": lambda reports, runs: (
            counted(reports["FP16 on JAX"]).steps.duration_ms
        ),
        "that shares out all that is shown: the test is in it": lambda reports, runs: (
            reports["FP16 on JAX"].window().duration_ms / _steps(runs)
        ),
        "that is a step in FP32: FP16 is one row further down": lambda reports, runs: _step_ms(
            reports, runs, "FP32 on JAX"
        ),
        "that is a step on PyTorch, in the last row": lambda reports, runs: _step_ms(reports, runs, "FP16 on PyTorch"),
        "that is for how long kernels run in a step: the pauses belong to it": lambda reports, runs: (
            _step_ms(reports, runs) * (1 - counted(reports["FP16 on JAX"]).least)
        ),
    },
    within=0.1,  # read off a picture
)


def _try_pause_bounds(pause_bounds: Callable) -> str | None:
    for samples, least, most in (
        ([0, 100], 0.5, 0.5),
        ([50, 50, 50], 0.0, 0.5),
        ([0, 0, 0, 20], 0.75, 0.95),
        ([100] * 4, 0.0, 0.0),
    ):
        found = each_of(pause_bounds(list(samples)), "two shares are wanted, the least and the most: two numbers are")
        if len(found) != 2:
            return f"it returns {len(found)} numbers: two shares are wanted, the least and the most"
        found = [number(one) for one in found]
        if not np.isclose(found[0], least):
            return f"the least is {found[0]:g} for {samples}: no kernel ran for certain only where a sample reads 0"
        if not np.isclose(found[1], most):
            return f"the most is {found[1]:g} for {samples}: kernels take the least time if all SMs work at once"
    return None


def _mean_only(samples):
    return 1 - sum(samples) / len(samples) / 100


def _bounds(least: Callable, most: Callable) -> Callable:
    return lambda samples: (least(samples), most(samples))


PAUSE_BOUNDS = Code(
    "Least: the share of samples that read 0. Most: kernels that fill all SMs would need only the samples' mean.",
    _try_pause_bounds,
    wrong={
        "two shares are wanted": _mean_only,
        "the least is 1 for": _bounds(lambda s: sum(one < 30 for one in s) / len(s), _mean_only),
        "the most is 0 for": _bounds(*[lambda s: s.count(0) / len(s)] * 2),
        "the least is 0 for [0, 100]": _bounds(lambda s: 0.0, _mean_only),
        "the least is 50 for": _bounds(lambda s: 100 * s.count(0) / len(s), lambda s: 100 * _mean_only(s)),
        "the most is 1 for": _bounds(lambda s: s.count(0) / len(s), lambda s: 1.0),
    },
)


WITHOUT_PAUSES = Number(
    BOUND,
    "What is certainly a pause goes, the rest of the time stays: one over that rest.",
    right=lambda pauses: 1 / (1 - _sampled(pauses).least),
    wrong={
        "that is the upper bound of the pauses: not all of it is certain": lambda pauses: 1 / (1 - pauses.most),
        "that is one over the pauses: what is left is the rest": lambda pauses: 1 / pauses.least,
        "that is the share that stays: how many times as fast is that?": lambda pauses: 1 - pauses.least,
        "that is the share that goes: how many times as fast is what stays?": lambda pauses: pauses.least,
        "that adds the pauses to the epoch: they leave it": lambda pauses: 1 + pauses.least,
    },
)

EXERCISES = {"17.1": STEP_LENGTH, "17.2": PAUSE_BOUNDS, "17.3": WITHOUT_PAUSES}
