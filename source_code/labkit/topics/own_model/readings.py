"""Did each mend do what its bound promised, and what is it worth to a whole process? As data.

A bound is of the profiled window. What is scored is the step as it was timed without a profiler, three rounds of all
mends in turn: the bound's share of its window is taken of that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.display.runs import in_rounds, is_beyond_noise
from labkit.display.spread import MEASURED, Spread, paired, spread
from labkit.recording import plan
from labkit.topics.own_model import mends
from labkit.topics.own_model.mends import Mend, budget_of, report, runs
from labkit.topics.own_model.scripts import before

NOISE_SHARE = 0.02  # of a step: what two timings of one program may differ by, whatever their spread; see compare.NOISE


@dataclass(frozen=True)
class Scored:
    """A mend, what was promised, and what came of it: milliseconds of one step.

    ``slow`` and ``fast``: the timed runs before and after it, one a round.
    """

    mend: Mend
    slow: Sequence[dict]
    fast: Sequence[dict]
    share: float  # of the window, that the bound says can go at most

    @property
    def before(self) -> Spread:
        return spread(self.slow, "step_ms")

    @property
    def after(self) -> Spread:
        return spread(self.fast, "step_ms")

    @property
    def ratio(self) -> Spread:
        """How many times as fast a step is, round by round."""
        return paired(self.slow, self.fast, "step_ms")

    @property
    def best_ms(self) -> float:
        """What a step takes at best by the report before."""
        return self.before.median * (1 - self.share)

    @property
    def promised_ms(self) -> float:
        return self.before.median * self.share

    @property
    def gained_ms(self) -> float:
        return self.before.median - self.after.median

    @property
    def at_most_times(self) -> float:
        return self.before.median / self.best_ms if self.best_ms > 0 else float("inf")

    @property
    def noise_ms(self) -> float:
        """What the rounds of either side differ by, and no less than NOISE_SHARE."""
        apart = (self.before.high - self.before.low) + (self.after.high - self.after.low)
        return max(NOISE_SHARE * self.before.median, apart)

    @property
    def shows(self) -> bool:
        """Is the difference beyond what the rounds differ by?"""
        return is_beyond_noise(self.ratio) and abs(self.ratio.median - 1) > NOISE_SHARE

    @property
    def kept(self) -> bool:
        """Did the gain stay within the bound, as far as the rounds can tell?"""
        return self.gained_ms <= self.promised_ms + self.noise_ms

    @property
    def verdict(self) -> str:
        if not self.kept:
            return "more than the bound"
        if not self.shows:
            return "no difference shows"
        return "gained" if self.gained_ms > 0 else "lost"

    @property
    def sentence(self) -> str:
        """Promise and outcome, in words."""
        promised = f"{self.mend.label}: at best {MEASURED}{self.best_ms:.1f} ms a step, by the report before"
        return f"{promised}; timed {self.after.text('ms')}, {in_rounds(self.ratio)}: {self.verdict}."


def score(mend: Mend) -> Scored:
    """A mend's bound, from the report before it, against the timed steps before and after."""
    previous = before(mend.report)
    own, found = report(previous), budget_of(previous)
    share = min(1.0, mend.bound_ms(own, found) / found.window.duration_ms)
    return Scored(mend, runs(previous), runs(mend.report), share)


def scores(patient: str) -> list[Scored]:
    """All mends of a script, in order; LabError for a name that is none of ``mends.PATIENTS``."""
    return [score(mend) for mend in mends.mends(patient)]


def gains(scored: Sequence[Scored]) -> dict[str, float]:
    """Milliseconds that each mend gained, by its word: the last of its report's name."""
    return {one.mend.word: one.gained_ms for one in scored}


@dataclass(frozen=True)
class Whole:
    """A script as it was and with all mends, as whole processes of so many timed steps, after the same warm-up."""

    steps: int
    before: Sequence[dict]
    after: Sequence[dict]
    predicted_s: tuple[float, float]  # of a process before and after, from runs of few steps

    @property
    def process(self) -> Spread:
        """How many times as fast the process is, round by round."""
        return paired(self.before, self.after)

    @property
    def step(self) -> Spread:
        """The same of a step in these processes."""
        return paired(self.before, self.after, "step_ms")

    @property
    def predicted_times(self) -> float:
        return self.predicted_s[0] / self.predicted_s[1]


def whole(patient: str) -> Whole:
    """Whole processes of a script of ``mends.PATIENTS``, first as it was, then with all mends."""
    ends = patient, mends.mends(patient)[-1].report
    steps = plan.EXAMPLE_LONG[patient]
    predicted = (longer_s(runs(name), steps) for name in ends)
    return Whole(steps, *(runs(name, steps) for name in ends), tuple(predicted))


def longer_s(short: Sequence[dict], steps: int) -> float:
    """Seconds that a process of so many steps takes, by runs of fewer: start and warm-up stay, steps are added."""
    more = steps - short[0]["arguments"]["steps"]
    return spread(short).median + more * spread(short, "step_ms").median / 1e3
