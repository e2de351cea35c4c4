"""What does a report's answer look like as a table? One function a question; all numbers are marked as measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.course import TREATED_IN
from labkit.display.given import on_reports
from labkit.display.runs import epoch_ms
from labkit.display.spread import MEASURED
from labkit.display.table import Table, short_kernel, table
from labkit.lines import say
from stepbudget import ask
from stepbudget.ask.compare import Comparison
from stepbudget.ask.predict import FIXES
from stepbudget.report import Report

TEXT_WIDTH = 60  # characters of an operation's name or sizes that a table shows
QUANTITY = re.compile(r"(?<![\w.~-])\d[\d,]*(?:\.\d+)?(?= (?:ms|µs|MB|%|of|launches|gaps|copies))|(?<= of )\d[\d,.]*\d")


@on_reports
def phases(report: Report, by: str = "process") -> Table:
    """NVTX phases of the training epoch: CPU time, kernels launched from inside, and those kernels' GPU time."""
    frame = ask.phases.phases(report, by=by).rename(columns={"count": "ranges", "cpu_ms": "CPU ms", "gpu_ms": "GPU ms"})
    caption = f"{report.name}: phases of one training epoch"
    return table(frame, caption, {"CPU ms": "{:,.1f}", "GPU ms": "{:,.1f}"}, ["CPU ms", "GPU ms"])


@on_reports
def idle(reports: Mapping[str, Report], runs: Mapping[str, Sequence[dict]] | None = None) -> Table:
    """How one training epoch divides into GPU work and none, a report per row.

    With ``runs`` (a step's name → its timed runs), an epoch without the profiler stands beside it.
    """
    rows = []
    for name, report in reports.items():
        found = ask.idle.idle(report)
        timed = [epoch_ms(runs[name])] if runs else []
        rows.append((name, found.window.duration_ms, found.busy_ms, found.idle_ms, 100 * found.idle_share, *timed))
    columns = ["step", "epoch ms", "GPU busy ms", "GPU idle ms", "idle %"]
    columns += ["without profiler ms"] if runs else []
    formats = dict.fromkeys(columns[1:], "{:,.0f}") | {"idle %": "{:.1f}"}
    return table(pd.DataFrame(rows, columns=columns), "One training epoch, as profiled", formats, columns[1:])


@on_reports
def budget(report: Report) -> Table:
    """The step budget of the training epoch: every nanosecond has one cause, and the causes add up to the epoch."""
    found = ask.budget.budget(report)
    frame = found.table().rename(columns={"share_of_idle": "% of idle"})
    frame["% of epoch"] = 100 * frame.pop("share")
    frame["% of idle"] *= 100
    frame.loc[len(frame)] = {"cause": "the whole epoch", "ms": frame["ms"].sum(), "% of epoch": 100.0}
    frame = frame[["cause", "ms", "% of epoch", "% of idle"]]
    measured = ["ms", "% of epoch", "% of idle"]
    formats = {"ms": "{:,.1f}", "% of epoch": "{:.1f}", "% of idle": "{:.1f}"}
    return table(frame, f"{report.name}: where the time of one training epoch goes", formats, measured, totals=[-1])


@on_reports
def steps(reports: Mapping[str, Report]) -> Table:
    """What a training step costs, a report a row; the first step, which starts the workers, left out."""
    rows = []
    for name, report in reports.items():
        steps = ask.iterations.steps(report)
        ms, waits = steps["duration_ms"].iloc[1:], steps["loader_wait_ms"]
        period = ask.iterations.loader_period(waits)
        every = f"every {period.steps} steps" if period else "no rhythm found"
        rows.append((name, len(ms), ms.mean(), ms.median(), ms.std(), ms.max(), waits.iloc[1:].sum(), every))
    measured = ["mean ms", "median ms", "std ms", "longest ms", "waits for data ms"]
    columns = ["step", "steps", *measured, "long waits"]
    formats = dict.fromkeys(measured, "{:,.1f}")
    return table(
        pd.DataFrame(rows, columns=columns),
        "Training steps of one epoch, without the first, which starts the loader",
        formats,
        [*measured, "long waits"],
    )


@on_reports
def bounds(report: Report) -> Table:
    """What each fix can gain at most in this epoch, as this one report predicts it."""
    found = ask.budget.budget(report)
    rows = [
        (FIXES[fix].label, bound.at_most_ms, bound.best_ms, bound.at_most_times)
        for fix, bound in ask.predict.bounds(report, found).items()
    ]
    measured = ["gains at most ms", "epoch at best ms", "times as fast at most"]
    formats = dict.fromkeys(measured[:2], "{:,.0f}") | {measured[2]: "{:.2f}"}
    caption = f"{report.name}: upper bounds, from one epoch of {found.window.duration_ms:,.0f} ms".replace(
        " of ", " of ~"
    )
    return table(pd.DataFrame(rows, columns=["fix", *measured]), caption, formats, measured)


def comparison(made: Comparison, caption: str = "The same epoch before and after the fix") -> Table:
    """Two epochs side by side, cause by cause."""
    frame = made.table()
    frame.loc[len(frame)] = {
        "cause": "the whole epoch",
        "before_ms": made.first.duration_ms,
        "after_ms": made.second.duration_ms,
        "change_ms": -made.gained_ms,
    }
    frame = frame.rename(columns={"before_ms": "before ms", "after_ms": "after ms", "change_ms": "change ms"})
    measured = list(frame.columns[1:])
    formats = dict.fromkeys(measured, "{:,.1f}") | {"change ms": "{:+,.1f}"}
    return table(frame, caption, formats, measured, totals=[-1])


@on_reports
def advice(report: Report) -> None:
    """Print what to do next, the costliest cause first: what shows it, what it can gain, which lab treats it."""
    found = ask.budget.budget(report)
    for one in ask.advice.advice(report, found, TREATED_IN):
        lab = f" See lab {one.lab}." if one.lab else ""
        say(_marked(f"{one.what}, at most {one.upper_bound_ms:,.1f} ms: {one.evidence}.{lab}"))
    for missing in ask.advice.not_looked_at(report, found):
        say(f"not looked at: {missing}")


@on_reports
def copies(report: Report) -> Table:
    """Copies of the training epoch by direction and kind of host memory."""
    frame = ask.copies.copies(report).rename(
        columns={
            "host_memory": "host memory",
            "mb": "MB",
            "gpu_ms": "GPU ms",
            "overlap_ms": "beside kernels ms",
            "api_ms": "held ms",
            "longest_gpu_us": "longest µs",
            "gb_per_s": "GB/s",
        }
    )
    frame = frame.drop(columns=["bytes", "longest_api_us"])
    measured = ["GPU ms", "beside kernels ms", "held ms", "longest µs", "GB/s"]
    formats = dict.fromkeys(measured, "{:,.2f}") | {"longest µs": "{:,.0f}", "MB": "{:,.2f}", "GB/s": "{:,.1f}"}
    return table(frame, f"{report.name}: copies of one training epoch", formats, measured)


@on_reports
def launch(reports: Mapping[str, Report]) -> Table:
    """Does the GPU wait for launches? A report a row."""
    rows = []
    for name, report in reports.items():
        found = ask.launch.launch(report)
        shares = (100 * found.starved_share, found.starved_ms, found.queue_mean)
        rows.append((name, found.verdict, found.launches, found.kernel_us, found.launch_us, *shares))
    measured = ["kernel µs", "launch µs", "found the GPU empty %", "empty before ms", "mean queue"]
    formats = dict.fromkeys(measured, "{:.1f}")
    columns = ["step", "verdict", "launches", *measured]
    caption = "Launches of one training epoch (medians; waits for data and for the GPU left out)"
    return table(pd.DataFrame(rows, columns=columns), caption, formats, [*measured, "verdict"])


@on_reports
def kernels(report: Report, top: int = 8) -> Table:
    """The kernels that take most of the training epoch's GPU time, whether they used Tensor Cores, and what says so."""
    frame = ask.tensor_cores.verdicts(report)
    total_ms = frame["gpu_ms"].sum()
    frame = frame.head(top)
    frame = pd.DataFrame(
        {
            "kernel": frame["kernel"],
            "Tensor Cores": frame["tensor_core"],
            "count": frame["count"],
            "GPU ms": frame["gpu_ms"],
            "mean µs": 1e3 * frame["gpu_ms"] / frame["count"],
            "share %": 100 * frame["gpu_ms"] / total_ms,
            "told by": frame["evidence"],
        }
    )
    formats = {"kernel": short_kernel, "GPU ms": "{:.1f}", "mean µs": "{:.1f}", "share %": "{:.1f}"}
    caption = f"{report.name}: the {len(frame)} longest kernels of one training epoch"
    return table(frame, caption, formats, ["GPU ms", "mean µs", "share %"])


@on_reports
def tensor_active(reports: Mapping[str, Report]) -> Table:
    """Kernel time by verdict, and the sampled counter Tensor Active, a report a row."""
    rows = []
    for name, report in reports.items():
        known = ask.tensor_cores.verdicts(report).groupby("tensor_core")["gpu_ms"].sum()
        sampled = ask.tensor_cores.tensor_active(report)
        counter = (sampled.mean_pct, sampled.max_pct, sampled.samples) if sampled else (None, None, 0)
        rows.append((name, *(float(known.get(verdict, 0.0)) for verdict in ("yes", "no", "unknown")), *counter))
    times = ["Tensor Core kernels ms", "other kernels ms", "unknown ms"]
    columns = ["step", *times, "Tensor Active mean %", "max %", "samples"]
    formats = dict.fromkeys(times, "{:.1f}") | {"Tensor Active mean %": "{:.2f}", "max %": "{:.0f}"}
    return table(pd.DataFrame(rows, columns=columns), "One training epoch, as profiled", formats, columns[1:])


@on_reports
def sampled(reports: Mapping[str, Report]) -> Table:
    """What the counter Tensor Active read inside kernels long enough to be sampled, a kernel name per row."""
    columns = ["step", "kernel", "Tensor Cores", "Tensor Active %", "mean µs", "samples", "told by"]
    rows = []
    for name, report in reports.items():
        found = ask.tensor_cores.verdicts(report)
        found = found[found["samples"] > 0]
        for row in found.itertuples():
            mean_us = 1e3 * row.gpu_ms / row.count
            rows.append((name, row.kernel, row.tensor_core, row.sampled_pct, mean_us, row.samples, row.evidence))
    formats = {"kernel": short_kernel, "mean µs": "{:.0f}", "samples": "{:,.0f}", "Tensor Active %": "{:.1f}"}
    caption = "Kernels that the counter was sampled inside, one training epoch"
    return table(pd.DataFrame(rows, columns=columns), caption, formats, columns[3:6])


@on_reports
def partition(reports: Mapping[str, Report]) -> Table:
    """Operations by whether they can use Tensor Cores and do, a report a row: DLProf's partition."""
    rows = []
    for name, report in reports.items():
        found = ask.ops.summary(report)
        rows.append((name, *found.instances.values(), 100 * (found.efficiency or 0.0), found.at_stake_ms))
    groups = list(found.instances)
    columns = ["step", *groups, "efficiency %", "at stake ms"]
    formats = {"efficiency %": "{:.1f}", "at stake ms": "{:.1f}"}
    caption = "Operations of one training epoch, and the kernel time of those that could use Tensor Cores"
    return table(pd.DataFrame(rows, columns=columns), caption, formats, columns[1:])


@on_reports
def eligible(report: Report, top: int = 8) -> Table:
    """The operations that could use Tensor Cores, longest first: whether they do, and the likely reason if not."""
    frame = ask.ops.eligible(report).head(top)
    frame = frame[["op", "group", "reason", "ops", "gpu_ms", "sizes"]].rename(
        columns={"op": "operation", "group": "Tensor Cores", "gpu_ms": "GPU ms"}
    )
    caption = f"{report.name}: operations that could use Tensor Cores"
    return table(frame, caption, {"GPU ms": "{:.1f}", "sizes": _cut, "operation": _cut}, ["GPU ms"])


def _cut(text: object) -> str:
    words = str(text or "")
    return words if len(words) <= TEXT_WIDTH else f"{words[: TEXT_WIDTH - 1]}…"


def _marked(text: str) -> str:
    """A sentence with its quantities marked as measured."""
    return QUANTITY.sub(lambda found: f"{MEASURED}{found.group()}", text)
