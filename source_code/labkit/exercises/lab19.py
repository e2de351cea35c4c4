"""The exercises of lab 19: where utilisation flatters, energy saved by a step, and joules from readings of power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isclose

from labkit.exercises.kinds import BOUND, READ, Choice, Code, Number
from labkit.numbers import NotANumber, number, shown
from labkit.topics.profilers import nvml, readings


def _farthest(programs: Sequence[dict]) -> str:
    training = [program for program in programs if len(program["epoch_ends_s"]) > 1]
    said = readings.driver(training).set_index("program")["utilisation %"]
    active = readings.counters(training, {}).set_index(("program", ""))["sm_pct", "driver"]
    apart = (said - active).dropna()
    return apart.idxmax() if len(apart) else "none of them"


FLATTERED = Choice(
    READ,
    "Take the driver's SMs away from its utilisation, a step at a time.",
    right=_farthest,
    wrong={
        "main_opt7.py": "its utilisation is the highest, and nearly as many of its SMs have work",
        "main_baseline.py": "the GPU idles for most of its time, and both numbers say so",
        "main_opt2.py": "its loader makes the GPU wait: both numbers are low, and close to each other",
        "one_kernel.py thread": "farther apart than any, but it is no step, and trains nothing",
        "one_kernel.py product": "that one fills the GPU, and is no step",
    },
)


def _joules(programs: Sequence[dict], step: str) -> float:
    return float(nvml.energy(programs).set_index("program")["all J"][step])


def _left(programs: Sequence[dict], step: str = "main_opt4.py") -> float:
    return _joules(programs, step) / _joules(programs, "main_baseline.py")


ENERGY_SAVED = Number(
    BOUND,
    "One minus what step 4 needs over what the baseline needs, start-up and ten epochs, in per cent.",
    right=lambda programs: 100 * (1 - _left(programs)),
    wrong={
        "that is what step 4 still needs: by how much is it less?": lambda programs: 100 * _left(programs),
        "that is a share of 1: in per cent it is a hundred times as much": lambda programs: 1 - _left(programs),
        "those are joules: what share of the baseline's are they?": lambda programs: (
            _joules(programs, "main_baseline.py") - _joules(programs, "main_opt4.py")
        ),
        "that is how many times as much the baseline needs": lambda programs: 1 / _left(programs),
        "that is held against step 4, not against the baseline": lambda programs: 100 * (1 / _left(programs) - 1),
    },
)

# Power as nvidia-smi writes it down: now and then a reading is late, and the first is not at 0.
TIMES_S = (10.0, 10.5, 11.0, 13.0, 13.5)
POWER_W = (100.0, 300.0, 300.0, 100.0, 100.0)
JOULES = 700.0


def _try_joules(joules: Callable) -> str | None:
    given = joules(list(TIMES_S), list(POWER_W))
    try:
        found = number(given)
    except NotANumber:
        return f"it returns {shown(given)}, not a number"
    said = {
        900.0: "it adds up watts: a joule is a watt for a second, and the readings are not a second apart",
        450.0: "it takes all readings to be as far apart as the first two: one came late",
        630.0: "it takes the mean of the readings: one of them stands for two seconds, others for a half",
        787.5: "it takes all readings to be equally far apart: one came late",
        2430.0: "the first reading is not at 0 seconds: only the time between first and last counts",
        850.0: "each reading stands until the next there: between two, take the mean of both",
        550.0: "each reading stands for the time before it there: between two, take the mean of both",
        0.7: "those are kilojoules",
    }
    for wrong, why in said.items():
        if isclose(found, wrong, rel_tol=1e-6):
            return why
    if not isclose(found, JOULES, rel_tol=1e-6):
        return f"{found:g} is not it: from 10 s to 13.5 s, at 100 to 300 W, it is {JOULES:g} J"
    if not isclose(once := number(joules([4.0, 6.0], [50.0, 70.0])), 120.0, rel_tol=1e-6):
        return f"two readings, 50 and 70 W, two seconds apart, are 120 J: it says {once:g}"
    return None


def _rule(height: Callable[[float, float], float]) -> Callable:
    """Joules by some height between two readings."""

    def joules(times_s, power_w):
        spans = zip(pairwise(times_s), pairwise(power_w), strict=True)
        return sum((after - before) * height(*watts) for (before, after), watts in spans)

    return joules


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


JOULES_FROM_POWER = Code(
    "Go from one reading to the next: the seconds between them, times the mean of the two powers. Add all of that up.",
    _try_joules,
    wrong={
        "it adds up watts": lambda times_s, power_w: sum(power_w),
        "as far apart as the first two": lambda times_s, power_w: (times_s[1] - times_s[0]) * sum(power_w),
        "it takes the mean of the readings": lambda times_s, power_w: _mean(power_w) * (times_s[-1] - times_s[0]),
        "to be equally far apart": lambda times_s, power_w: (times_s[-1] - times_s[0]) * sum(power_w) / 4,
        "the first reading is not at 0 seconds": lambda times_s, power_w: _mean(power_w) * times_s[-1],
        "each reading stands until the next": _rule(lambda before, after: before),
        "each reading stands for the time before it": _rule(lambda before, after: after),
        "those are kilojoules": lambda times_s, power_w: _rule(lambda before, after: (before + after) / 2e3)(
            times_s, power_w
        ),
        "from 10 s to 13.5 s": lambda times_s, power_w: max(power_w) * (times_s[-1] - times_s[0]),
        "are 120 J": lambda times_s, power_w: JOULES,
        "it returns nan, not a number": lambda times_s, power_w: float("nan"),
    },
)

EXERCISES = {"19.1": FLATTERED, "19.2": ENERGY_SAVED, "19.3": JOULES_FROM_POWER}
