"""Which stretch of an epoch does a page look at? One training step of it; the whole window where no steps are known."""

from __future__ import annotations

from stepbudget.ask.iterations import step_windows
from stepbudget.report import Report
from stepbudget.window import Window

PRINTS = 20  # of an epoch, from 0: every tenth step prints its loss


def printing_step(report: Report) -> Window:
    """The 21st training step, in the middle of an epoch, which ends with a printed loss; the last one of fewer."""
    steps = step_windows(report, report.window()) or [report.window()]
    return steps[min(PRINTS, len(steps) - 1)]


def usual_step(report: Report) -> Window:
    """The training step of median length."""
    steps = sorted(step_windows(report, report.window()), key=lambda step: step.duration_ms) or [report.window()]
    return steps[len(steps) // 2]
