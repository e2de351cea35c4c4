"""What do PyTorch's profiler, Nsight Systems and the driver say? As tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from labkit.display.table import Table, short_kernel, table
from labkit.topics.profilers import nvml, readings, torch_profiler
from stepbudget import ask
from stepbudget.report import Report
from stepbudget.window import Window


def operators(profile: torch_profiler.Profile, rows: int = 10) -> Table:
    """The operators of ``key_averages()`` with most GPU time of their own, and whether it was on Tensor Cores."""
    found = profile.operators
    found = found[~found["on_gpu"] & ~found["range"]].nlargest(rows, "self_gpu_ms")
    steps = len(profile.report.steps)
    used = torch_profiler.operators(profile.report).set_index("operator")["tensor_core_share"]
    frame = pd.DataFrame(
        {
            "operator": found["name"],
            "calls a step": found["calls"] / steps,
            "self CPU µs": 1e3 * found["self_cpu_ms"] / steps,
            "self GPU µs": 1e3 * found["self_gpu_ms"] / steps,
            "GPU with children µs": 1e3 * found["gpu_ms"] / steps,
            "Tensor Cores": [_share(used.get(name)) for name in found["name"]],
        }
    )
    measured = ["self CPU µs", "self GPU µs", "GPU with children µs"]
    formats = dict.fromkeys(measured, "{:,.0f}") | {"calls a step": "{:.1f}"}
    return table(frame, f"{profile.name}: operators by their own GPU time, a step", formats, measured)


def _share(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else {0.0: "no", 1.0: "yes"}.get(value, "partly")


def kernels(profile: torch_profiler.Profile, rows: int = 10) -> Table:
    """The kernels with most GPU time in the recorded steps, and two opinions about Tensor Cores."""
    found = torch_profiler.kernels(profile.report, profile.window)
    steps = len(profile.report.steps)
    frame = pd.DataFrame(
        {
            "kernel": found["kernel"],
            "a step": found["count"] / steps,
            "GPU µs a step": found["gpu_us"] / steps,
            "Tensor Cores": found["tensor_cores"],
            "the plugin says": found["plugin"],
        }
    ).head(rows)
    formats = {"kernel": short_kernel, "a step": "{:.1f}", "GPU µs a step": "{:,.0f}"}
    return table(frame, f"{profile.name}: kernels by GPU time", formats, ["GPU µs a step"])


def causes(report: Report, window: Window) -> Table:
    """The step budget of a window: each cause, milliseconds and share."""
    frame = ask.budget.budget(report, window).table()
    frame["%"] = 100 * frame["share"]
    frame = frame[["cause", "ms", "%"]]
    frame.loc[len(frame)] = {"cause": "all of it", "ms": frame["ms"].sum(), "%": 100.0}
    caption = f"{report.name}, {window.name}: where the time goes"
    return table(frame, caption, {"ms": "{:,.1f}", "%": "{:.1f}"}, ["ms", "%"], totals=[-1])


def budgets(named: Mapping[str, tuple[Report, Window]]) -> Table:
    """Step budgets side by side: per cent of its window for each cause, a report and window a column."""
    columns = {}
    for name, (report, window) in named.items():
        found = ask.budget.budget(report, window).table()
        columns[name] = 100 * found.set_index("cause")["share"]
    frame = pd.DataFrame(columns)
    order = {cause: place for place, cause in enumerate(ask.budget.CAUSES.values())}
    frame = frame.loc[sorted(frame.index, key=order.__getitem__)].reset_index(names="cause")
    return table(frame, "Per cent of the recorded steps", dict.fromkeys(columns, "{:.1f}"), list(columns))


def against(both: pd.DataFrame, steps: int, rows: int = 8) -> Table:
    """The same kernels by both profilers, from ``torch_profiler.side_by_side``: count and microseconds a step."""
    frame = pd.DataFrame(
        {
            "kernel": both["kernel"],
            "torch: launches": both["torch_count"],
            "Nsight: launches": both["nsight_count"],
            "torch: µs a step": both["torch_us"] / steps,
            "Nsight: µs a step": both["nsight_us"] / steps,
            "difference %": 100 * (both["torch_us"] / both["nsight_us"] - 1),
        }
    ).head(rows)
    measured = ["torch: µs a step", "Nsight: µs a step", "difference %"]
    formats = {"kernel": short_kernel} | dict.fromkeys(measured[:2], "{:,.1f}") | {"difference %": "{:+.1f}"}
    return table(frame, "The same steps, by two profilers", formats, measured)


def overhead(rows: Sequence[dict], steps: int) -> Table:
    """What the profiler costs: the same epoch without it and with more and more of it."""
    frame = pd.DataFrame(rows)
    plain = frame.loc[frame["profiler"] == "off", "training_s"].median()
    lines = []
    for name, own in frame.groupby("profiler", sort=False):
        times = 1e3 * own["training_s"]
        lines.append(
            {
                "profiler": name,
                "n": len(own),
                "epoch ms": times.median(),
                "lowest": times.min(),
                "highest": times.max(),
                "× off": own["training_s"].median() / plain,
                "more, µs a step": 1e6 * (own["training_s"].median() - plain) / steps,
                "then, to stop, s": own["stop_s"].median(),
            }
        )
    measured = ["epoch ms", "lowest", "highest", "× off", "more, µs a step", "then, to stop, s"]
    formats = dict.fromkeys(measured[:3], "{:,.0f}")
    formats |= {"× off": "{:.2f}", "more, µs a step": "{:,.0f}", "then, to stop, s": "{:.1f}"}
    return table(pd.DataFrame(lines), "The same epoch, with more and more profiling", formats, measured)


def flops(named: Mapping[str, torch_profiler.Profile]) -> Table:
    """``readings.counted_flops`` of several profiles, a row each."""
    rows = [{"step": name, **readings.counted_flops(one)} for name, one in named.items()]
    frame = pd.DataFrame(rows).rename(columns=lambda name: name if name == "step" else f"{name} %")
    formats = dict.fromkeys(frame.columns[1:], "{:.1f}")
    return table(frame, "FLOPs in the table, per cent of those that the steps need", formats)


def at_peak(profile: torch_profiler.Profile, rows: int = 4) -> Table:
    """Whose memory was alive when most was allocated: lines of the program, from the allocator's history."""
    asked = profile.record.get("snapshot", {"at_peak": []})["at_peak"]  # of a GPU only
    frame = pd.DataFrame(asked, columns=["line", "allocations", "mb"]).head(rows)
    frame = frame.rename(columns={"line": "asked for by", "mb": "MB"})
    return table(frame, f"{profile.name}: alive at the peak of three steps", {"MB": "{:,.1f}"}, ["MB"])


def driver(programs: Sequence[dict]) -> Table:
    """``readings.driver`` as a table."""
    frame = readings.driver(programs)
    measured = list(frame.columns[1:])
    return table(frame, "What the driver says, on average", dict.fromkeys(measured, "{:,.0f}"), measured)


def counters(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> Table:
    """``readings.counters`` as a table."""
    frame = readings.counters(programs, at_work)
    words = {"sm_pct": "SMs", "tensor_pct": "Tensor", "dram_pct": "DRAM"}
    frame.columns = [f"{words[column]} %, {whose}" if whose else column for column, whose in frame.columns]
    measured = list(frame.columns[1:])
    formats = dict.fromkeys(measured, "{:.1f}")
    return table(frame, "How much of it was busy: the driver's counters (GPM) and Nsight Systems'", formats, measured)


def energy(programs: Sequence[dict], epochs: int = 10) -> Table:
    """What a training costs in energy: the start-up with the first epoch, an epoch after it, and ``epochs`` in all."""
    found = nvml.energy(programs, epochs)
    measured = list(found.columns[1:])
    formats = dict.fromkeys(measured, "{:,.0f}") | {"an epoch s": "{:.3f}", "an epoch J": "{:,.1f}"}
    formats |= {"start-up s": "{:.1f}"}
    caption = f"Energy of the board, from the driver's counter; the last columns: {epochs} epochs"
    return table(found, caption, formats, measured)


def freshness(program: dict) -> Table:
    """How often the driver had a new value while a program ran, a row a counter."""
    samples = nvml.from_text(program["samples"])
    names = {"gpu_pct": "utilisation", "power_w": "power", "energy_j": "energy"}
    rows = [(name, 1e3 * nvml.update_period_s(samples, column)) for column, name in names.items()]
    asked_ms = 1e3 * samples["t_s"].diff().median()
    caption = f"{readings.short_program(program)}, asked every ~{asked_ms:.0f} ms"
    frame = pd.DataFrame(rows, columns=["counter", "new every ms"])
    return table(frame, caption, {"new every ms": "{:.0f}"}, ["new every ms"])


def watched(frame: pd.DataFrame) -> Table:
    """``readings.watched`` as a table."""
    formats = {"alone s": "{:.3f}", "watched s": "{:.3f}", "× alone": "{:.2f}"}
    caption = "An epoch, alone (median) and while the driver is asked (mean of one run)"
    return table(frame, caption, formats, list(formats))
