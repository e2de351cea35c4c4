"""What do more GPUs bring, as tables? Measured with their spread, and the model beside it."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from labkit.display.spread import Spread
from labkit.source import recorded
from labkit.subjects.scaling import model, readings
from labkit.subjects.scaling.collectives import GPUS_A_HOST, NDR
from labkit.subjects.scaling.readings import ALONE, PROGRAMS, Records
from stepbudget.ask.budget import CAUSES
from stepbudget.ask.ranks import Ranks
from stepbudget.show.table import Table, table

GAINS = {"strong": "times as fast", "weak": "times as many"}
CAPTIONS = {
    "strong": "Strong scaling: the batch of one GPU, shared out",
    "weak": "Weak scaling: the batch of one GPU on each, so another experiment with every number of GPUs",
}
BEATEN = "against the faster run on one GPU, the program's own or the ladder's, round by round"
WEAK = "samples a second"  # that are as many times as many
FEW = "accuracy after few epochs"
FAR = (8, 64, 1024)  # GPUs
LEAST_MS = 0.05  # of a cause, on one rank at least: less is not shown


def gains(kind: str, found: Records | None = None, programs: Collection[str] = tuple(PROGRAMS)) -> Table:
    """``strong`` or ``weak``: a row a program and number of GPUs; medians, and the ranges over the rounds."""
    found = found or readings.records()
    runs = readings.frame(found)
    runs = runs[runs["program"].isin(programs)]
    rows = []
    for (program, scaled, size), own in runs.groupby(["program", "scaling", "ranks"], sort=False):
        if scaled == kind or (scaled == ALONE and kind in set(runs.loc[runs["program"] == program, "scaling"])):
            rows.append(_row(runs, program, scaled, size, own))
    frame = pd.DataFrame(rows).rename(columns={"gain": GAINS[kind]})
    formats = {"a step ms": "{:,.2f}", GAINS[kind]: "{:.2f}", "efficiency %": "{:.0f}"}
    formats |= {"GB a GPU": "{:.2f}", "accuracy %": "{:.2f}"}
    frame = frame.dropna(axis="columns", how="all")
    formats = {name: form for name, form in formats.items() if name in frame}
    rounds = runs.groupby(["program", "scaling", "ranks"])["round"].nunique()
    of = f"{rounds.min()} to {rounds.max()}" if rounds.min() < rounds.max() else f"{rounds.max()}"
    what = f"{WEAK}, {BEATEN}" if kind == "weak" else BEATEN
    caption = f"{CAPTIONS[kind]} ({_origin(found)}, {of} rounds); {what}"
    return table(frame, f"{caption}; {FEW}" if "accuracy %" in frame else caption, formats)


def _origin(found: Records) -> str:
    """GPU and date of records in a few words."""
    newest = max(found.values(), key=lambda record: record["run_at"])
    return f"{newest['gpu']}, {newest['run_at'][:10]}{recorded.outdated(found.values())}"


def _row(runs: pd.DataFrame, program: str, scaled: str, size: int, own: pd.DataFrame) -> dict:
    about, step = PROGRAMS[program], Spread.of(own["step_ms"].tolist())
    gain = readings.gained(runs, program, scaled, size)
    alone = f"{about.network}, {about.alone.removesuffix('.py')}" if scaled == ALONE else about.label
    return {
        "program": alone,
        "GPUs": size,
        "samples a GPU": own["batch"].iloc[0] // size,
        "a step ms": step.median,
        "range ms": _range(step),
        "gain": gain and gain.median,
        "range": gain and _range(gain),
        "efficiency %": gain and 100 * gain.median / size,
        "GB a GPU": own["peak_memory_mb"].dropna().median() / 1e3,
        "accuracy %": own["accuracy_pct"].dropna().median(),
    }


def _range(of: Spread) -> str:
    return f"{of.low:.2f}–{of.high:.2f}"


def budgets(found: Ranks, caption: str = "Where each rank's time goes, ms") -> Table:
    """The step budgets of the ranks side by side: a row a cause, a column a rank."""
    ms = {f"rank {rank.number}": rank.budget.ms for rank in found.ranks}
    labels = {cause: label for rank in found.ranks for cause in CAUSES for label in [rank.budget.label(cause)]}
    kept = [cause for cause in CAUSES if any(own[cause] >= LEAST_MS for own in ms.values())]
    frame = pd.DataFrame({"cause": [labels[cause] for cause in kept]})
    for name, own in ms.items():
        frame[name] = [own[cause] for cause in kept]
    frame.loc[len(frame)] = ["all", *(rank.window.duration_ms for rank in found.ranks)]
    return table(frame, caption, dict.fromkeys(ms, "{:,.1f}"), totals=[-1])


def predictions(found: pd.DataFrame, caption: str) -> Table:
    """Predicted against measured: what ``scored`` found."""
    labels = [PROGRAMS[program].label for program in found["program"]]
    frame = pd.DataFrame({"program": labels, "scaling": found["scaling"], "GPUs": found["ranks"]})
    frame["binds"], frame["GPU's time ms"] = found["binds"], found["gpu_ms"]
    frame["predicted ms"], frame["measured ms"] = found["predicted_ms"], found["measured_ms"]
    frame["range ms"] = [f"{one.low_ms:.2f}–{one.high_ms:.2f}" for one in found.itertuples()]
    frame["off %"] = found["off_pct"]
    formats = dict.fromkeys(["GPU's time ms", "predicted ms", "measured ms"], "{:,.2f}") | {"off %": "{:+.0f}"}
    return table(frame, caption, formats)


def on_paper(programs: Collection[str] = tuple(PROGRAMS)) -> Table:
    """The model's steps on FAR GPUs, strong and weak, and what binds; none for which the batch is too small.

    Efficiency twice: a collective's latency inside a host paid in each step of the ring, and paid once.
    """
    each, once = (model.ahead((1, *FAR), at_best) for at_best in (False, True))
    of_one = {(one.job.program, one.scaling): one for one in each if one.n == 1}
    rows = [
        {
            "program": PROGRAMS[one.job.program].label,
            "scaling": one.scaling,
            "GPUs": one.n,
            "work ms": 1e3 * (one.work_s + one.beside_s),
            "communication ms": 1e3 * one.communication.total_s,
            "exposed ms": 1e3 * one.exposed.total_s,
            "host ms": 1e3 * one.host_s,
            "a step ms": 1e3 * one.step_s,
            "efficiency %": 100 * model.efficiency(one, of_one[one.job.program, one.scaling]),
            "α once %": 100 * model.efficiency(best, of_one[one.job.program, one.scaling]),
            "binds": one.binds,
        }
        for one, best in zip(each, once, strict=True)
        if one.n > 1 and one.job.program in programs and one.is_possible
    ]
    frame = pd.DataFrame(rows)
    formats = {name: "{:,.2f}" for name in frame if name.endswith(" ms")}
    formats |= {"efficiency %": "{:.0f}", "α once %": "{:.0f}"}
    link = f"{8 * NDR.bytes_per_s / 1e9:.0f} Gb/s for each GPU and {1e6 * NDR.latency_s:.0f} µs a step between hosts"
    return table(frame, f"On paper: {GPUS_A_HOST} GPUs a host, {link}", formats)
