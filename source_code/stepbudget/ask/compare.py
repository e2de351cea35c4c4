"""Did the fix do what was predicted? Reports of the same work, before and after.

First: are they comparable? The same GPU, the same range with as many steps, the same bytes copied to the device, the
same kernels. Then the budgets stand side by side, and the prediction made from the first report is scored, as far as
the noise allows: two profiles of one program differ, above all in what the loader takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from math import comb, isnan
from statistics import fmean, median

import pandas as pd

from stepbudget.ask import copies, iterations, tensor_cores
from stepbudget.ask.budget import CAUSES, Budget, budget
from stepbudget.ask.phases import phase_ranges
from stepbudget.ask.predict import FIXES, Bound, bounds, known
from stepbudget.errors import ReportError
from stepbudget.report import Report
from stepbudget.signs import signed
from stepbudget.window import Window

TOLERANCE = 0.01  # of a count or an amount: what two runs of one program may differ by
NOISE = 0.02  # of the window: what two profiles of one program may differ by
CHANCE = 0.05  # that profiles of one program all differ in the same direction: above it NOISE counts


@dataclass(frozen=True)
class Change:
    """By how much something takes longer in the second side's profiles, and between what that lies: milliseconds."""

    before_ms: tuple[float, ...]  # one a profile, in the order in which they were given
    after_ms: tuple[float, ...]
    paired: bool  # were the first of either side made together, the second, and so on?
    ms: float  # of the medians or, paired, the median of the pairs' changes; negative: shorter
    low_ms: float
    high_ms: float

    @property
    def beyond_noise(self) -> bool:
        """Do the profiles agree on whether it became longer or shorter?"""
        return self.low_ms > 0 or self.high_ms < 0

    def exceeds(self, share: float) -> bool:
        """Does it take longer by more than this share of what it took before, whatever of the spread is noise?"""
        return self.low_ms > share * median(self.before_ms)


def change(before_ms: Sequence[float], after_ms: Sequence[float], noise_ms: float) -> Change:
    """The change from some profiles to others, which are pairs where each side has as many, two or more.

    It lies between the least and the greatest of the pairs' changes; without pairs, between the shortest after less the
    longest before and the reverse. Profiles of one program all differ in the same direction by chance in 1 of 2ⁿ cases
    (pairs: a sign test), or in 1 of (n + m over n) (else: a permutation test; Good 2005, "Permutation, Parametric and
    Bootstrap Tests of Hypotheses"). Where that is more than CHANCE, the change is uncertain by ``noise_ms`` at least.
    """
    paired = len(before_ms) == len(after_ms) > 1
    if paired:
        changes = [after - before for before, after in zip(before_ms, after_ms, strict=True)]
        ms, low, high, chance = median(changes), min(changes), max(changes), 0.5 ** len(changes)
    else:
        ms = median(after_ms) - median(before_ms)
        low, high = min(after_ms) - max(before_ms), max(after_ms) - min(before_ms)
        chance = 1 / comb(len(before_ms) + len(after_ms), len(before_ms))
    floor_ms = noise_ms if chance > CHANCE else 0.0
    return Change(tuple(before_ms), tuple(after_ms), paired, ms, min(low, ms - floor_ms), max(high, ms + floor_ms))


@dataclass(frozen=True)
class Side:
    """The budgets of one side's profiles, the shortest window first.

    The profile of median length stands for them, or the mean of the two about it: so their causes still add up.
    """

    budgets: tuple[Budget, ...]

    @property
    def middle(self) -> tuple[Budget, ...]:
        """The profile of median length, or the two about it."""
        return _middle(self.budgets)

    @property
    def duration_ms(self) -> float:
        return fmean(own.window.duration_ms for own in self.middle)

    @property
    def ms(self) -> dict[str, float]:
        """Milliseconds of each cause; they add up to the duration."""
        return {cause: fmean(own.ms[cause] for own in self.middle) for cause in CAUSES}

    @property
    def untold(self) -> frozenset[str]:
        """The causes that one of the profiles cannot tell."""
        return frozenset().union(*(own.untold for own in self.budgets))

    def known_ms(self, cause: str) -> float | None:
        """Milliseconds of a cause; None where a profile cannot tell it."""
        return None if cause in self.untold else self.ms[cause]

    @property
    def spread_ms(self) -> float:
        """By how much the longest and the shortest window differ: 0 for a single profile."""
        return self.budgets[-1].window.duration_ms - self.budgets[0].window.duration_ms


@dataclass(frozen=True)
class Comparison:
    """Two windows held against each other, each from one profile or from several."""

    first: Side
    second: Side
    obstacles: tuple[str, ...]  # why the two are not comparable; empty where they are
    remarks: tuple[str, ...]  # what differs and may be the fix's own doing
    bounds: dict[str, Bound]  # the predictions from the first side
    change: Change  # of the window or, where one was named, of a range's median
    causes: dict[str, Change]  # of each cause's time
    kernels: pd.DataFrame  # kernel by kernel: kernel, before, after (counts), before_ms, after_ms, change_ms
    each: str | None = None  # the range, such as a kind of step, that ``change`` is about
    made: str | None = None  # the fix of FIXES that was made, where the caller knows it

    @property
    def before(self) -> Budget:
        """The budget of the first side's profile; of several, of the one of median length."""
        return self.first.middle[0]

    @property
    def after(self) -> Budget:
        """The same of the second side."""
        return self.second.middle[0]

    @property
    def comparable(self) -> bool:
        return not self.obstacles

    @property
    def gained_ms(self) -> float:
        """By how many milliseconds the second window is shorter (negative: longer)."""
        return self.first.duration_ms - self.second.duration_ms

    @property
    def noise_ms(self) -> float:
        """What the gain may be off by: what the profiles of each side differ by, and no less than NOISE."""
        return max(NOISE * self.first.duration_ms, self.first.spread_ms + self.second.spread_ms)

    @property
    def speedup(self) -> float:
        """How many times as fast the second is."""
        after_ms = self.second.duration_ms
        return self.first.duration_ms / after_ms if after_ms else float("inf")

    @property
    def shrank_ms(self) -> dict[str, float]:
        """By how much each cause has shrunk (negative: grown); 0 for what one of the sides cannot tell."""
        second_ms, untold = self.second.ms, self.first.untold | self.second.untold
        return {cause: 0.0 if cause in untold else ms - second_ms[cause] for cause, ms in self.first.ms.items()}

    def table(self) -> pd.DataFrame:
        """One row a cause that occurs in either: cause, before_ms, after_ms, change_ms; NaN: not known."""
        rows = []
        for cause, words in CAUSES.items():
            both = [side.known_ms(cause) for side in (self.first, self.second)]
            if any(both):
                before, after = (float("nan") if ms is None else ms for ms in both)
                rows.append((words, before, after, after - before))
        return pd.DataFrame(rows, columns=["cause", "before_ms", "after_ms", "change_ms"])

    def removed_ms(self, fix: str) -> float:
        """By how much the causes that a fix treats have shrunk, less what came back as a cause that they turn into."""
        back_ms = sum(min(0.0, self.shrank_ms[cause]) for cause in FIXES[fix].becomes)
        return sum(self.shrank_ms[cause] for cause in FIXES[fix].causes) + back_ms

    @property
    def likely_fix(self) -> str | None:
        """The fix that was made or, where nobody says, whose causes shrank most; None if none shrank."""
        if self.made:
            return self.made
        shrank_ms = {fix: sum(self.shrank_ms[cause] for cause in own.causes) for fix, own in FIXES.items()}
        fix = max(shrank_ms, key=shrank_ms.__getitem__)
        return fix if shrank_ms[fix] > 0 else None

    @property
    def verdict(self) -> str:
        """What came of the prediction, in one sentence; empty where the two are not comparable."""
        if not self.comparable:
            return ""
        score = self.score()
        unknown = f"{FIXES[self.likely_fix].label}: not known what it could gain" if self.likely_fix else ""
        said = str(score) if score else unknown or "no cause that a fix here treats has shrunk"
        if abs(self.gained_ms) <= self.noise_ms:
            return said
        grew = self.gained_ms < 0
        most = (min if grew else max)(self.shrank_ms, key=self.shrank_ms.__getitem__)
        if not grew and self.likely_fix and most in FIXES[self.likely_fix].causes:
            return said
        moved = signed(f"{-self.shrank_ms[most]:+,.1f} ms")
        if grew:
            slower = f"the second is slower by {-self.gained_ms:,.1f} ms"
            return f"{slower}; what grew most: {CAUSES[most]} ({moved}); {said}"
        start = "What" if "the whole gained" in said else f"The whole is {self.gained_ms:,.1f} ms shorter; what"
        return f"{said}. {start} shrank most: {CAUSES[most]} ({moved})"

    def score(self, fix: str | None = None, noise_ms: float = 0.0) -> Score | None:
        """How the prediction for a fix (default: the likely one) came out; None without one, or not comparable.

        ReportError where no fix has that name.
        ``noise_ms``: by how much two runs of the same program are known to differ; it counts where it is more than what
        these profiles show themselves.
        """
        fix = known(fix) if fix is not None else self.likely_fix
        if fix is None or not self.comparable or isnan(self.bounds[fix].at_most_ms):
            return None
        treated = FIXES[fix].causes
        beside = {cause: ms for cause, ms in self.shrank_ms.items() if ms > 0 and cause not in treated}
        noise_ms = max(noise_ms, self.noise_ms)
        return Score(self.bounds[fix], self.gained_ms, self.removed_ms(fix), noise_ms, beside)


@dataclass(frozen=True)
class Score:
    """A prediction and what came of it: first in the rows that the fix treats, then in the whole window."""

    bound: Bound
    gained_ms: float  # by how much the window is shorter
    removed_ms: float  # by how much the causes that the fix treats have shrunk
    noise_ms: float = 0.0  # what the gain may be off by
    beside: dict[str, float] = field(
        default_factory=dict
    )  # causes that the fix does not treat: by how much each shrank

    @property
    def kept(self) -> bool:
        """Did the gain stay within the bound, as far as the noise allows to tell?"""
        return self.gained_ms <= self.bound.at_most_ms + self.noise_ms

    @property
    def share(self) -> float:
        """What is gone from the rows that the fix treats, as a share of the bound."""
        return self.removed_ms / self.bound.at_most_ms if self.bound.at_most_ms else 0.0

    def __str__(self) -> str:
        broken = "" if self.kept else f"; the whole gained {self.gained_ms:,.1f} ms, so more has changed than this fix"
        share = f" ({100 * self.share:.0f} %)" if 0 <= self.share <= 1 else ""
        return (
            f"{FIXES[self.bound.fix].label}: {signed(f'{self.removed_ms:,.1f}')} of at most "
            f"{self.bound.at_most_ms:,.1f} ms are gone from the rows that it treats{share}{broken}"
        )


def compare(
    before: Report | Sequence[Report],
    after: Report | Sequence[Report],
    window: Window | Sequence[Window] | None = None,
    other: Window | Sequence[Window] | None = None,
    device: int | None = None,
    each: str | None = None,
    fix: str | None = None,
) -> Comparison:
    """Hold the window of one report (default: training) against that of another; ``device``: number of the card.

    A side may be several profiles of the same program (then ``window`` and ``other``, if given, hold one of each): what
    is compared is the medians, and what the profiles of a side differ by is noise. As many on each side are pairs.
    ``each``: name of a range that comes again, such as a kind of step; ``change`` is then of its median in a profile.
    ``fix``: what was changed, by its name in FIXES (default: whose causes shrank most); its prediction is scored.
    ReportError where a profile's window holds no such range, or where no fix has that name.

    Of the answer, ``comparable`` says whether both did the same work (``obstacles``: why not), ``gained_ms`` how many
    milliseconds the second is shorter, ``verdict`` what came of the prediction, ``table()`` the causes on both sides.
    """
    if fix is not None:
        known(fix)
    sides = _looked_at(before, window, device), _looked_at(after, other, device)
    first, second = (sorted(side, key=lambda one: one[1].window.duration_ms) for side in sides)
    differences = [_differences(*one, *another) for one, another in product(first, second)]
    obstacles, remarks = (tuple(dict.fromkeys(chain(*kind))) for kind in zip(*differences, strict=True))
    standing = [bounds(report, own) for report, own in _middle(first)]
    of_all = {fix: _mean([one[fix] for one in standing]) for fix in FIXES}
    noise_ms = NOISE * median(own.window.duration_ms for _, own in first)
    causes = {cause: change(*([own.ms[cause] for _, own in side] for side in sides), noise_ms) for cause in CAUSES}
    took = [[_took_ms(report, own.window, each) for report, own in side] for side in sides]
    return Comparison(
        *(Side(tuple(own for _, own in side)) for side in (first, second)),
        obstacles,
        remarks,
        of_all,
        change(*took, NOISE * median(took[0])),
        causes,
        _kernels(_middle(first), _middle(second)),
        each,
        fix,
    )


def _took_ms(report: Report, window: Window, each: str | None) -> float:
    """How long the window lasts or, where a range is named, its median within the window."""
    if each is None:
        return window.duration_ms
    ranges = phase_ranges(report, window)
    own = ranges[ranges["name"] == each]
    if own.empty:
        known = ", ".join(ranges["name"].unique()[:20])
        raise ReportError(f"{report.path.name} holds no range '{each}' in '{window.name}'. There: {known or 'none'}.")
    return float((own["end"] - own["start"]).median()) / 1e6


def _kernels(first: Sequence[tuple[Report, Budget]], second: Sequence[tuple[Report, Budget]]) -> pd.DataFrame:
    """Counts and milliseconds of each kernel name on both sides (means of the profiles), what changed most first."""
    columns = {}
    for when, side in (("before", first), ("after", second)):
        table = pd.concat([tensor_cores.verdicts(report, own.window) for report, own in side])
        sums = table.groupby("kernel")[["count", "gpu_ms"]].sum() / len(side)
        columns |= {when: sums["count"], f"{when}_ms": sums["gpu_ms"]}
    found = pd.DataFrame(columns).fillna(0.0).rename_axis("kernel").reset_index()
    found["change_ms"] = found["after_ms"] - found["before_ms"]
    return found.sort_values("change_ms", key=abs, ascending=False, kind="stable", ignore_index=True)


def _middle(ordered: Sequence) -> Sequence:
    """The middle one, or the middle two."""
    before = (len(ordered) - 1) // 2
    return ordered[before : len(ordered) - before]


def _looked_at(
    reports: Report | Sequence[Report], windows: Window | Sequence[Window] | None, device: int | None
) -> list[tuple[Report, Budget]]:
    """Each report of a side with the budget of its window, in the order in which they were given."""
    reports = [reports] if isinstance(reports, Report) else reports
    windows = [windows] * len(reports) if windows is None or isinstance(windows, Window) else windows
    return [(report, budget(report, own, device)) for report, own in zip(reports, windows, strict=True)]


def _mean(found: Sequence[Bound]) -> Bound:
    return Bound(found[0].fix, fmean(one.at_most_ms for one in found), fmean(one.of_ms for one in found))


def _differences(before: Report, first: Budget, after: Report, second: Budget) -> tuple[list[str], list[str]]:
    """What makes the two incomparable, and what else differs."""
    obstacles, remarks = [], []
    for report, own in ((before, first), (after, second)):
        obstacles += [f"{report.path.name}: {text}" for text in (own.missing.said if own.missing else [])]
    gpus = [gpu_name(report, own) for report, own in ((before, first), (after, second))]
    if None in gpus:
        remarks.append("a report does not name its GPU")
    elif gpus[0] != gpus[1]:
        obstacles.append(f"different GPUs: {gpus[0]}, {gpus[1]}")
    if first.window.name != second.window.name:
        obstacles.append(f"different ranges: '{first.window.name}', '{second.window.name}'")
    steps = [len(iterations.step_windows(report, own.window)) for report, own in ((before, first), (after, second))]
    if not all(steps):
        remarks.append("steps: not looked at (no range marks them)")
    elif steps[0] != steps[1]:
        obstacles.append(f"{steps[0]} steps before, {steps[1]} after")
    sent = [_bytes_to_device(report, own.window) for report, own in ((before, first), (after, second))]
    if _far(*sent):
        obstacles.append(f"{sent[0] / 1e6:,.1f} MB copied to the device before, {sent[1] / 1e6:,.1f} after")
    names = [_kernel_names(report, own) for report, own in ((before, first), (after, second))]
    counts = [sum(own.values()) for own in names]
    if not all(counts):
        obstacles.append("no kernels in one of the two")
    else:
        shared = sum(min(count, names[1].get(name, 0)) for name, count in names[0].items())
        if _far(*counts) or shared < (1 - TOLERANCE) * max(counts):
            remarks.append(
                f"kernels: {counts[0]:,} launches before, {counts[1]:,} after, {shared:,} of the same name; "
                "the comparison holds if that is the fix's own doing"
            )
    for report, own, other in ((before, first, second), (after, second, first)):
        if lacking := [CAUSES[cause] for cause in CAUSES if cause in own.untold - other.untold]:
            remarks.append(f"{report.path.name} does not tell {', '.join(lacking)}: no change of it is known")
    return obstacles, remarks


def gpu_name(report: Report, own: Budget) -> str | None:
    """The name of the card that a budget is about; None if the report tells none."""
    names = report.gpus
    mine = names[names["gpu"] == own.device]
    return mine["name"].iloc[0] if len(mine) else report.gpu


def _bytes_to_device(report: Report, window: Window) -> int:
    table = copies.labelled(report, window)
    return int(table.loc[table["direction"] == "host to device", "bytes"].sum())


def _kernel_names(report: Report, own: Budget) -> dict[str, int]:
    table = report.kernels
    inside = table["start"].between(own.window.start, own.window.end, inclusive="left") & (table["gpu"] == own.device)
    return table.loc[inside, "name"].value_counts().to_dict()


def _far(first: float, second: float) -> bool:
    return abs(first - second) > TOLERANCE * max(first, second)
