"""What did each mend promise and bring, and what did all of them bring to a whole process? As tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.display.spread import MEASURED, Spread, spread
from labkit.display.table import Table, table
from labkit.topics.own_model.mends import AS_IT_WAS
from labkit.topics.own_model.readings import NOTHING, Scored, Whole


def ledger(scored: Sequence[Scored]) -> Table:
    """A row a mend: the step at best by the report before, the step as timed, and what of the promise came true."""
    first = scored[0]
    rows = [(AS_IT_WAS, None, first.before.median, _range(first.before), None, None, None, _process_s(first.slow), "")]
    for one in scored:
        came = 100 * one.gained_ms / one.promised_ms if one.verdict != NOTHING and one.promised_ms else None
        times = one.ratio.median
        row = (one.best_ms, one.after.median, _range(one.after), times, one.at_most_times, came, _process_s(one.fast))
        rows.append((one.mend.label, *row, one.verdict))
    columns = ["step ms at best", "step ms", "range ms", "× before", "× at most", "% of the promise", "process s"]
    frame = pd.DataFrame(rows, columns=["mend", *columns, "verdict"])
    formats = {"step ms at best": "{:.1f}", "step ms": "{:.1f}", "× before": "{:.2f}", "× at most": "{:.2f}"}
    formats |= {"% of the promise": "{:.0f}", "process s": "{:.1f}"}
    timed = first.slow[0]["arguments"]["steps"]
    caption = (
        f"Each mend added to those before it: {first.before.n} rounds of {timed} steps, without a profiler (medians)"
    )
    return table(frame, caption, formats, list(formats))


def whole(found: Whole, name: str) -> Table:
    """A script as it was and with all mends: whole process and step, predicted and timed, and the loss at the end."""
    rows = []
    sides = zip((AS_IT_WAS, "mended"), (found.before, found.after), found.predicted_s, found.losses, strict=True)
    for when, records, predicted_s, loss in sides:
        process, step = spread(records), spread(records, "step_ms")
        times = (found.process.median, found.step.median) if records is found.after else (None, None)
        timed = (process.median, _range(process), step.median, _range(step))
        rows.append((when, process.n, predicted_s, *timed, *times, loss))
    columns = ["n", "predicted s", "process s", "range s", "step ms", "range ms", "× process", "× step", "loss"]
    formats = {"predicted s": "{:.1f}", "process s": "{:.1f}", "step ms": "{:.1f}"}
    formats |= {"× process": "{:.2f}", "× step": "{:.2f}", "loss": "{:.4f}"}
    caption = (
        f"{name}, whole processes of {found.steps:,} steps, in turn: medians; ratios round by round; the last loss"
    )
    return table(pd.DataFrame(rows, columns=[name, *columns]), caption, formats, list(formats))


def _range(own: Spread) -> str:
    return f"{MEASURED}{own.low:.1f}–{own.high:.1f}"


def _process_s(records: Sequence[dict]) -> float:
    return spread(records).median
