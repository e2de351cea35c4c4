"""What did each rung bring, and what does it cost? Seconds, accuracy, lines of code, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.display.spread import MEASURED, spread
from labkit.display.table import Table, table
from labkit.source import quick, recorded
from labkit.topics.ladder import accuracy, ledger


def wall_clock(found: Mapping[str, Sequence[dict]], in_turn: bool = True) -> Table:
    """The wall-clock table: whole process and training loop, median and range, speedups, test accuracy.

    ``found`` maps a step's name to its records; the first is the baseline. ``in_turn=False`` is for alternatives, which
    do not build on one another: no speedup over the row before is shown.
    """
    names = list(found)
    process = {name: spread(found[name]) for name in names}
    epochs = {len(record["epochs"]) for records in found.values() for record in records}
    least, most = min(epochs), max(epochs)
    after = "" if least == quick.FULL_EPOCHS else f" after {least} epochs"  # never beside a claim on ten epochs
    rows = []
    for i, name in enumerate(names):
        whole, before, first = process[name], process[names[max(0, i - 1)]], process[names[0]]
        mnist = all(record["data_source"] == "MNIST" for record in found[name])
        digits = "" if mnist else " (bundled digits, not MNIST)"
        rows.append(
            {
                "step": name,
                "n": whole.n,
                "process s": whole.median,
                "range s": f"{MEASURED}{whole.low:.1f}–{whole.high:.1f}",
                "training s": spread(found[name], "training_s").median,
                "test s": spread(found[name], "test_s").median,
                "× before": before.median / whole.median if i else None,
                "× baseline": first.median / whole.median if i else None,
                f"accuracy %{after}{digits}": spread(found[name], "test_accuracy_pct").median,
            }
        )
    frame = pd.DataFrame(rows)
    frame = frame.drop(columns=["× before", "× baseline"] if len(names) == 1 else [] if in_turn else ["× before"])
    formats = dict.fromkeys(["process s", "training s", "test s"], "{:.1f}")
    formats |= dict.fromkeys(["× before", "× baseline", frame.columns[-1]], "{:.2f}")
    many = _in_words(most) if least == most else f"{_in_words(least)} to {most}"
    caption = f"{many} epochs: whole process (median and range of n runs), of which training loop and test (medians)"
    measured = [column for column in formats if column in frame]
    return table(frame, caption, {column: formats[column] for column in measured}, measured)


def _in_words(epochs: int) -> str:
    return {quick.EPOCHS: "Three", quick.FULL_EPOCHS: "Ten"}.get(epochs, str(epochs))


def gate(baseline: str, steps: Sequence[str]) -> Table:
    """The accuracy gate: ten or more seeds a step, mean and range, and Welch's test against the baseline."""
    rows = []
    for step in steps:
        values = accuracy.seeds(step)
        mean, p = accuracy.gate(baseline, step)
        passed = mean >= accuracy.FLOOR_PCT and (step == baseline or p >= accuracy.SIGNIFICANCE)
        compared = (None, None) if step == baseline else (p, accuracy.largest_loss(baseline, step))
        verdict = "passed" if passed else "FAILED"
        rows.append((step, verdict, len(values), mean, min(values), max(values), *compared))
    columns = ["step", "gate", "seeds", "mean %", "lowest %", "highest %", "p (below baseline)", "loses at most"]
    formats = dict.fromkeys(columns[3:], "{:.2f}")
    _, where = recorded.held(lambda where: recorded.accuracy(baseline, where))
    records = [record for step in steps for record in recorded.accuracy(step, where)]
    caption = f"Test accuracy after ten epochs on MNIST ({recorded.origin(where, records)})"
    return table(pd.DataFrame(rows, columns=columns), caption, formats)


def seconds(found: pd.DataFrame) -> Table:
    """Where each rung's seconds go: ``labkit.topics.ladder.ledger.table``, parts in the order in which they pass."""
    names = {
        "step": "step",
        "startup_s": "start-up s",
        "warm_up_s": "warm-up s",
        "training_s": "training s",
        "test_s": "test s",
        "rest_s": "the rest s",
        "process_s": "process s",
        "cold_s": "process s, cold",
        "loop_times": "× loop",
        "process_times": "× process",
    }
    frame = found[list(names)].rename(columns=names)
    seconds = ["start-up s", "warm-up s", "the rest s", "process s", "process s, cold"]
    formats = dict.fromkeys(seconds, "{:.2f}") | {"training s": "{:.3f}", "test s": "{:.3f}"}
    formats |= {"× loop": "{:.1f}", "× process": "{:.1f}"}
    trained = ledger.epochs_words(found["epochs"].max()).capitalize()
    caption = f"{trained}, medians over the runs, all rungs in turn; compilers' caches warm, but where it says cold"
    return table(frame, caption, formats, list(formats))


def floor_shares(found: pd.DataFrame, floor_s: float) -> Table:
    """How much of each rung's training loop, and of its process, the floor is."""
    frame = pd.DataFrame(
        {
            "step": found["step"],
            "training ms": 1e3 * found["training_s"],
            "floor ms": 1e3 * floor_s,
            "floor, % of the loop": 100 * floor_s / found["training_s"],
            "floor, % of the process": 100 * floor_s / found["process_s"],
        }
    )
    formats = {"training ms": "{:,.0f}", "floor ms": "{:.0f}"}
    formats |= dict.fromkeys(["floor, % of the loop", "floor, % of the process"], "{:.2g}")
    return table(frame, "What share of its time each rung needs at the least", formats, list(formats))


def startup(found: pd.DataFrame) -> Table:
    """What a process does before its first step: ``labkit.topics.ladder.ledger.startup``."""
    columns = {"stage": "one thing more", "after": "on top of", "own_s": "takes s", "process_s": "the whole process s"}
    numbers = ["takes s", "the whole process s"]
    caption = "Before the first step: processes that do so much and no more (medians)"
    return table(
        found.rename(columns=columns)[list(columns.values())], caption, dict.fromkeys(numbers, "{:.2f}"), numbers
    )


def lines(steps: Sequence[str], remarks: Mapping[str, str]) -> Table:
    """What each rung costs to write and to read: lines of code, and a remark."""
    rows = []
    for step in steps:
        own = ledger.lines(step)
        rows.append((step, own.script, own.beside or None, own.on_gpu or None, remarks.get(step, "")))
    columns = ["step", "its script", "and beside it", "of that on the GPU", "to read it, one has to know"]
    caption = "Lines of code, without blank lines, comments and docstrings"
    return table(pd.DataFrame(rows, columns=columns), caption, dict.fromkeys(columns[1:4], "{:.0f}"))
