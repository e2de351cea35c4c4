"""Did the fix do what was predicted? Two reports of the same work, before and after.

First: are they comparable? The same GPU, the same range with as many steps, the same bytes copied to the device, the
same kernels. Then the budgets stand side by side, and the prediction made from the first report is scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stepbudget.ask import copies, iterations
from stepbudget.ask.budget import CAUSES, Budget, budget
from stepbudget.ask.predict import FIXES, Bound, bounds
from stepbudget.report import Report
from stepbudget.window import Window

TOLERANCE = 0.01  # of a count or an amount: what two runs of one program may differ by
NOISE = 0.02  # of the window: what two profiles of one program may differ by


@dataclass(frozen=True)
class Comparison:
    """Two windows held against each other."""

    before: Budget
    after: Budget
    obstacles: tuple[str, ...]  # why the two are not comparable; empty where they are
    remarks: tuple[str, ...]  # what differs and may be the fix's own doing
    bounds: dict[str, Bound]  # the predictions from the first report

    @property
    def comparable(self) -> bool:
        return not self.obstacles

    @property
    def gained_ms(self) -> float:
        """By how many milliseconds the second window is shorter (negative: longer)."""
        return self.before.window.duration_ms - self.after.window.duration_ms

    @property
    def speedup(self) -> float:
        """How many times as fast the second is."""
        after_ms = self.after.window.duration_ms
        return self.before.window.duration_ms / after_ms if after_ms else float("inf")

    def table(self) -> pd.DataFrame:
        """One row a cause that occurs in either: cause, before_ms, after_ms, change_ms."""
        rows = [
            (CAUSES[cause], before, after, after - before)
            for cause, before, after in zip(CAUSES, self.before.ms.values(), self.after.ms.values(), strict=True)
            if before or after
        ]
        return pd.DataFrame(rows, columns=["cause", "before_ms", "after_ms", "change_ms"])

    def removed_ms(self, fix: str) -> float:
        """By how much the causes that a fix removes have shrunk."""
        return sum(self.before.ms[cause] - self.after.ms[cause] for cause in FIXES[fix].causes)

    @property
    def likely_fix(self) -> str | None:
        """The fix whose causes shrank most; None if none shrank."""
        fix = max(FIXES, key=self.removed_ms)
        return fix if self.removed_ms(fix) > 0 else None

    def score(self, fix: str | None = None) -> Score | None:
        """How the prediction for a fix (default: the likely one) came out; None without a fix, or not comparable."""
        fix = fix or self.likely_fix
        if fix is None or not self.comparable:
            return None
        return Score(self.bounds[fix], self.gained_ms, self.removed_ms(fix))


@dataclass(frozen=True)
class Score:
    """A prediction and what came of it."""

    bound: Bound
    gained_ms: float
    removed_ms: float  # by how much the causes that the fix treats have shrunk

    @property
    def kept(self) -> bool:
        """Did the gain stay within the bound (and the noise of profiles)?"""
        return self.gained_ms <= self.bound.at_most_ms + NOISE * self.bound.of_ms

    @property
    def share(self) -> float:
        """The gain as a share of the bound."""
        return self.gained_ms / self.bound.at_most_ms if self.bound.at_most_ms else 0.0

    def __str__(self) -> str:
        verdict = "the bound held" if self.kept else "the bound was broken: more has changed than this fix"
        return (
            f"{FIXES[self.bound.fix].label}: predicted at most {self.bound.at_most_ms:,.1f} ms of "
            f"{self.bound.of_ms:,.1f}, gained {self.gained_ms:,.1f} ({100 * self.share:.0f} %); {verdict}"
        )


def compare(
    before: Report,
    after: Report,
    window: Window | None = None,
    other: Window | None = None,
    device: int | None = None,
) -> Comparison:
    """Hold the window of one report (default: training) against that of another; ``device``: number of the card."""
    first, second = (budget(report, own, device) for report, own in ((before, window), (after, other)))
    obstacles, remarks = _differences(before, first, after, second)
    return Comparison(first, second, tuple(obstacles), tuple(remarks), bounds(before, first))


def _differences(before: Report, first: Budget, after: Report, second: Budget) -> tuple[list[str], list[str]]:
    """What makes the two incomparable, and what else differs."""
    obstacles, remarks = [], []
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
