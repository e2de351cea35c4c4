"""What do the reports of Keras hold, and what do their counters say of the training steps? Tables and panels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit import source
from labkit.display import style
from labkit.display.charts.bars import SMALL, key
from labkit.source import kinds, recorded
from labkit.subjects.keras import with_keras
from stepbudget import intervals
from stepbudget.ask.tensor_cores import TensorActive, tensor_active
from stepbudget.ask.work import device_of, work_of
from stepbudget.report import Report
from stepbudget.show.palette import tint
from stepbudget.show.table import Table, table
from stepbudget.window import Window

# In the JAX reports that the course ships the SMs pause for 3.1 ms at most between two steps, 10.9 before the test.
PAUSE_NS = 4_000_000

PAUSE_PCT = 1  # of SMs Active: what a single small kernel makes of a sample
MS = 1_000_000  # ns
CLOSE_MS = 8  # of the steps, shown sample by sample
SMS, TENSOR = tint(style.COLOURS["kernel"], 0.45), style.COLOURS["tensor core kernel"]
BROKEN_OFF = "jax_reports.json"  # made once, by hand, as it says: no part of the plan
SETTING = "a setting"  # as the trial of broken reports has it


def profile(command: str) -> Report:
    """The report of an ``nsys profile`` command, as ``lab.profile``; live, what runs on JAX was compiled before."""
    return source.current().get(with_keras(kinds.profile(command)))


def last_event_ms(report: Report) -> float:
    """When the last kernel, call or range began that the report holds, in ms after its training range did."""
    tables = (report.kernels, report.api, report.os_calls, report.ranges)
    start = report.window().start
    return (max((table["start"].max() for table in tables if len(table)), default=start) - start) / 1e6


def flushes(report: Report) -> int:
    """How often, as the report has it, the profiler fetched the events that it had collected in the program."""
    return int(report.overhead["name"].str.contains("flush").sum()) if len(report.overhead) else 0


def held(reports: Mapping[str, Report]) -> Table:
    """What a report holds of the program, and until when: events and samples, in ms after the training range began."""
    rows = []
    for name, report in reports.items():
        window, samples = report.window(), report.counter("SMs Active")["time"]
        sampled_ms = (samples.max() - window.start) / 1e6 if len(samples) else None
        rows.append(
            {
                "report": name,
                "kernels": len(report.kernels),
                "CUDA calls": len(report.api),
                "flushes": flushes(report),
                "range test": "yes" if report.windows("test") else "no",
                "last event at ms": last_event_ms(report),
                "last sample at ms": sampled_ms,
            }
        )
    frame = pd.DataFrame(rows)
    formats = dict.fromkeys(frame.columns[1:].drop("range test"), "{:,.0f}")
    return table(frame, "What the reports hold, times from the beginning of the training on", formats)


def trial() -> pd.DataFrame:
    """The shipped trial of what breaks a report off, a row a report of ``keras_mixed.py``.

    ``compiled``: where XLA compiled; ``changed``: what else was; ``whole``: has it all of the epoch, and the test after
    it; ``name_not_found``: did Nsight Systems say that it missed an event's name; what the report holds; and where and
    when that was.
    """
    trial = json.loads((recorded.RECORDED / recorded.DEFAULT / BROKEN_OFF).read_text(encoding="utf-8"))
    return pd.DataFrame(trial["rows"]).assign(gpu=trial["gpu"], run_at=trial["run_at"])


def broken_off() -> Table:
    """Which reports of the trial are whole (``trial``), a row a place of compiling and change."""
    found, rows = trial(), []
    for (compiled, changed), own in found.groupby(["compiled", "changed"], sort=False):
        rows.append(
            {
                "XLA compiled": compiled,
                "changed besides": changed if changed != SETTING else f"one of {own['variant'].nunique()} settings",
                "reports": len(own),
                "whole": own["whole"].sum(),
                "a name not found": own["name_not_found"].sum(),
                "kernels": _range(own["kernels"]),
                "last event at ms": _range(own["last_event_ms"]),
            }
        )
    gpu, date = found["gpu"].iloc[0], found["run_at"].iloc[0][:10]
    return table(pd.DataFrame(rows), f"Reports of keras_mixed.py, by where XLA compiled ({gpu}, {date})")


def _range(values: pd.Series) -> str:
    """``186–377``, or the one value that there is."""
    return "–".join(f"{value:,.0f}" for value in dict.fromkeys((values.min(), values.max())))


@dataclass(frozen=True)
class Counted:
    """What the counters say of the training steps; None where a counter was not sampled.

    The share of time without a kernel lies between ``least`` and ``most``. A sample of SMs Active is a mean over all
    SMs and 100 µs, in whole per cents and, it seems, rounded up: where it is 0 no kernel ran; and kernels ran at least
    for the share of its mean, give or take the rounding, since more than all SMs are never active. ``by_kernels`` is
    the share by the kernels themselves, None where the report holds none. Copies need no SM.
    """

    steps: Window
    tensor: TensorActive | None
    least: float | None
    most: float | None
    by_kernels: float | None


def counted(report: Report) -> Counted:
    """Tensor Active and SMs Active over the training steps (``steps_window``)."""
    steps = steps_window(report)
    sms = _sms_active(report, steps)["value"]
    least, most = ((sms == 0).mean(), 1 - sms.mean() / 100) if len(sms) else (None, None)
    return Counted(steps, tensor_active(report, steps), least, most, _without_kernel(report, steps))


def _without_kernel(report: Report, window: Window) -> float | None:
    """The share of the window in which no kernel ran, by the kernels; None where the report holds none."""
    device = device_of(report, window)
    if device is None or not len(report.kernels):
        return None
    ran = intervals.union(*(work_of(table, device) for table in (report.kernels, report.graphs)))
    ran_ns = intervals.total(intervals.clip(ran, window.start, window.end))
    return 1 - ran_ns / (window.end - window.start)


def steps_window(report: Report) -> Window:
    """The training range; where a report's events break off before the test, its steps by the counter SMs Active.

    Then the range has no end of its own: it reaches to the end of the capture, and the test is in it. The steps are its
    longest stretch without a long pause. A pause is long from 4 ms on, as before the first step and before the test,
    and samples of 1 % belong to it. Without the counter: the range.
    """
    whole = report.window()
    samples = _sms_active(report, whole)
    busy = samples.loc[samples["value"] > PAUSE_PCT, "time"].to_numpy(np.int64)
    if report.windows("test") or not len(busy):
        return whole
    interval = int(np.median(np.diff(samples["time"]))) if len(samples) > 1 else 0
    before_pause = np.flatnonzero(np.diff(busy) >= PAUSE_NS)
    starts, ends = busy[np.append(0, before_pause + 1)], busy[np.append(before_pause, -1)]
    longest = int(np.argmax(ends - starts))
    end = min(int(ends[longest]) + interval, whole.end)
    return Window(int(starts[longest]), end, "training steps", whole.thread)


def _sms_active(report: Report, window: Window) -> pd.DataFrame:
    """Samples of SMs Active within the window; none where several GPUs were sampled and no kernel says which it was."""
    samples = report.counter("SMs Active", window)
    samples = samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]
    if samples["device"].nunique() > 1:
        samples = samples[samples["device"] == report.sampled_gpu()]
    return samples


def counters(counted: Mapping[str, Counted]) -> Table:
    """The counters over the training steps: Tensor Active, and between which shares the time without a kernel lies."""
    rows = []
    for name, found in counted.items():
        tensor, shares = found.tensor, (found.least, found.most, found.by_kernels)
        active = (tensor.mean_pct, tensor.max_pct, tensor.samples) if tensor else (None, None, 0)
        percents = (None if share is None else 100 * share for share in shares)
        rows.append((name, found.steps.duration_ms, *active, *percents))
    formats = {
        "all steps ms": "{:,.0f}", "Tensor Active mean %": "{:.1f}", "highest %": "{:.0f}", "samples": "{:,.0f}",
        "no kernel: at least %": "{:.1f}", "at most %": "{:.1f}", "by the kernels %": "{:.1f}",
    }  # fmt: skip
    frame = pd.DataFrame(rows, columns=["report", *formats])
    return table(frame, "The training steps of one epoch, as profiled", formats)


def counter_panels(reports: Mapping[str, Report]) -> Figure:
    """A row a report: SMs Active and Tensor Active. Left the mean of each ms, right 8 ms of the steps by the sample.

    On the left a bar above the curve marks the training steps, and a line where the program's events end.
    """
    with style.house_style():
        fig = style.figure(0.9 + 1.45 * len(reports))
        axes = fig.subplots(len(reports), 2, sharey=True, squeeze=False, width_ratios=(1.5, 1))
        for (name, report), (left, right) in zip(reports.items(), axes, strict=True):
            whole, steps = report.window(), steps_window(report)
            middle = (steps.start + steps.end) // 2
            _draw_counters(left, report, whole, MS)
            _draw_counters(right, report, Window(middle - CLOSE_MS * MS // 2, middle + CLOSE_MS * MS // 2, "close"))
            edges = [(edge - whole.start) / MS for edge in (steps.start, steps.end)]
            left.plot(edges, [105, 105], color=style.INK, lw=3, solid_capstyle="butt")
            left.axvline(last_event_ms(report), color=style.VERMILION, lw=1.4, ls="--")
            left.set(xlim=(0, whole.duration_ms), ylim=(0, 110))
            left.set_title(name, size=10)
            left.set_ylabel("%", size=9)
            right.set_xlim(0, CLOSE_MS)
        axes[0][1].set_title(f"{CLOSE_MS} ms from the middle of the steps", size=10)
        for ax in axes[-1]:
            ax.set_xlabel("milliseconds", size=9)
        kinds = {"SMs Active": SMS, "Tensor Active": TENSOR, "training steps": style.INK}
        kinds |= {"the program's last recorded event": style.VERMILION}
        key(fig, kinds, 4)
    return fig


def _draw_counters(ax: Axes, report: Report, window: Window, bin_ns: int = 1) -> None:
    """Both counters as areas over a window, the mean of each ``bin_ns``."""
    for counter, colour in (("SMs Active", SMS), ("Tensor Active", TENSOR)):
        samples = report.counter(counter, window)
        if not len(samples):
            ax.text(0.5, 0.5, f"{counter} was not sampled", transform=ax.transAxes, ha="center", size=SMALL)
            return
        number = (samples["time"].to_numpy(np.int64) - window.start) // bin_ns
        number, which = np.unique(number, return_inverse=True)
        mean = np.bincount(which, samples["value"].to_numpy(np.float64)) / np.bincount(which)
        ax.fill_between(number * bin_ns / MS, mean, step="post", color=colour, linewidth=0)
    ax.tick_params(labelsize=9)
