"""The sums of ``nsys stats`` beside ours, the budget's rules, and what these make of a sleep: as tables."""

from __future__ import annotations

import textwrap

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.nsight import readings
from stepbudget import ask
from stepbudget.report import Report

WIDTH = 96  # characters of a line of text


def beside(found: pd.DataFrame) -> Table:
    """The same sums of one report by ``nsys stats`` and by this course's reader; ``found``: of ``readings.beside``."""
    frame = pd.DataFrame(
        {
            "of": found["what"],
            "nsys stats --report": found["table"],
            "count": found["count"],
            "nsys stats: ns": found["ns"],
            "here: ns": found["our_ns"],
            "differ by": (found["ns"] - found["our_ns"]).abs() + (found["count"] - found["our_count"]).abs(),
        }
    )
    measured = ["nsys stats: ns", "here: ns"]
    return table(frame, f"{readings.CHECKED}: the whole capture, summed by both", measured=measured)


def rules() -> None:
    """Print the rules by which an idle stretch gets its cause, in the order in which they are tried."""
    for row in readings.rules().itertuples():
        print(textwrap.fill(f"{row.rule:2}. {row.cause}: {row.when}.", WIDTH, subsequent_indent="    "))


def meanwhile(report: Report) -> Table:
    """Where the milliseconds of the long sleeps in the optimizer's phase stand in the budget."""
    when = readings.asleep(report)
    found = readings.meanwhile(report, when)
    work = {ask.budget.CAUSES[cause] for cause in ask.budget.WORK}
    rows = [(cause, "works" if cause in work else "idles", ms) for cause, ms in found.items()]
    frame = pd.DataFrame([*rows, ("all sleeps", "", found.sum())], columns=["row of the budget", "the GPU", "ms"])
    return table(frame, f"{report.name}: {len(when)} sleeps, by the budget's rows", {"ms": "{:,.1f}"}, ["ms"])


def blamed(found: pd.DataFrame) -> Table:
    """To which row the sleeps are laid, a column a view; ``found``: of ``readings.blamed``."""
    views = list(found.columns)
    frame = found.rename_axis("row of the budget").reset_index()
    caption = "The same sleeps, as far as the GPU idled: to which row they are laid, ms"
    return table(frame, caption, dict.fromkeys(views, "{:,.1f}"), views)
