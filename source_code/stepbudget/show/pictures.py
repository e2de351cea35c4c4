"""What ran when, on one page? The timeline of a report's window and of one of its steps, and a column a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepbudget.ask import iterations
from stepbudget.ask.budget import Budget
from stepbudget.report import Report
from stepbudget.show import bars
from stepbudget.show.timeline import of_budget
from stepbudget.show.words import three
from stepbudget.window import Window

STEPS = 1000  # columns of the picture of the steps


@dataclass(frozen=True)
class Pictures:
    """What of a page is drawn from a report: pieces of HTML."""

    name: str  # of the report
    timeline: str
    steps: str = ""
    one_step: str = ""


def draw(report: Report, found: Budget, longest_ms: float = 0.0) -> Pictures:
    """The pictures of a budget's window; ``longest_ms``: what fills the width, where another's window is longer."""
    steps = iterations.step_windows(report, found.window)
    drawn = of_budget(report, found, found.window, span_ms=longest_ms).picture
    return Pictures(report.path.name, drawn, _columns(found, steps), _one_step(report, found, steps))


def _columns(found: Budget, steps: Sequence[Window]) -> str:
    """A column a step, by cause."""
    if len(steps) < 2:
        return ""
    table = found.over(list(steps[:STEPS]))
    highest = float(table.sum(axis=1).max()) or 1.0
    shown = f"{len(steps):,} steps" if len(steps) <= STEPS else f"The first {STEPS:,} of {len(steps):,} steps"
    caption = f"{shown} in their order, each as high as it lasted (the longest {three(highest)} ms), by cause"
    drawn = bars.columns({cause: table[cause].to_numpy() for cause in table}, highest, caption)
    return f"<figure>{drawn}<figcaption>{caption}; colours as above.</figcaption></figure>"


def _one_step(report: Report, found: Budget, steps: Sequence[Window]) -> str:
    """The timeline of the step of median length."""
    if len(steps) < 2:
        return ""
    step = sorted(steps, key=lambda own: own.duration_ms)[(len(steps) - 1) // 2]
    caption = f"Step {steps.index(step) + 1}, of median length: {three(step.duration_ms)} ms"
    return f"<figure><figcaption><b>{caption}</b></figcaption>{of_budget(report, found, step).picture}</figure>"
