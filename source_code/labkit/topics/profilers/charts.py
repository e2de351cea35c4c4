"""What do PyTorch's profiler and the driver's counters say? Tables and charts of lab 13; each takes data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from labkit.display import style
from labkit.display.charts.bars import key
from labkit.display.table import Table, short_kernel, table
from labkit.topics.profilers import nvml, torch_profiler
from stepbudget import ask as nsight
from stepbudget import intervals
from stepbudget.report import Report
from stepbudget.window import Window

SMALL = 8.5  # points

# What memory is for, as PyTorch's profiler tells it, from the bottom of the stack.
CATEGORIES = {
    "parameter": style.INK,
    "optimizer state": style.PINK,
    "input": style.ORANGE,
    "gradient": style.GREEN,
    "activation": style.BLUE,
    "autograd": style.SKY,
    "temporary": style.YELLOW,
    "other": style.MUTED,
}
# How much of the GPU is at work, from the widest meaning to the narrowest.
MEANINGS = {
    "utilisation (nvidia-smi)": style.MUTED,
    "any work (trace)": style.SKY,
    "SMs Active (counter)": style.BLUE,
    "Tensor Active (counter)": style.GREEN,
}


# --- PyTorch's profiler -------------------------------------------------------------------------------------


def operators_table(profile: torch_profiler.Profile, rows: int = 10) -> Table:
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


def kernels_table(profile: torch_profiler.Profile, rows: int = 10) -> Table:
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


def causes_table(report: Report, window: Window, name: str | None = None) -> Table:
    """The step budget of a window: each cause, milliseconds and share."""
    frame = nsight.budget.budget(report, window).table()
    frame["%"] = 100 * frame["share"]
    frame = frame[["cause", "ms", "%"]]
    frame.loc[len(frame)] = {"cause": "all of it", "ms": frame["ms"].sum(), "%": 100.0}
    caption = f"{name or report.name}, {window.name}: where the time goes"
    return table(frame, caption, {"ms": "{:,.1f}", "%": "{:.1f}"}, ["ms", "%"])


def budgets_table(named: Mapping[str, tuple[Report, Window]]) -> Table:
    """Step budgets side by side: per cent of its window for each cause, a report and window a column."""
    columns = {}
    for name, (report, window) in named.items():
        found = nsight.budget.budget(report, window).table()
        columns[name] = 100 * found.set_index("cause")["share"]
    frame = pd.DataFrame(columns)
    order = {cause: place for place, cause in enumerate(nsight.budget.CAUSES.values())}
    frame = frame.loc[sorted(frame.index, key=order.__getitem__)].reset_index(names="cause")
    return table(frame, "Per cent of the recorded steps", dict.fromkeys(columns, "{:.1f}"), list(columns))


def against_table(both: pd.DataFrame, steps: int, rows: int = 8) -> Table:
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


def step_numbers(report: Report, window: Window, steps: int) -> dict[str, float]:
    """What a step costs on average: milliseconds, kernels, GPU time, copies, idle share, CUDA calls."""
    found = torch_profiler.kernels(report, window)
    copied = report.copies[report.copies["api_start"].between(window.start, window.end)]
    busy_ms = intervals.total(torch_profiler.busy(report, window)) / 1e6
    calls = report.api[report.api["start"].between(window.start, window.end)]
    return {
        "ms a step": window.duration_ms / steps,
        "kernels a step": found["count"].sum() / steps,
        "kernel time, µs a step": found["gpu_us"].sum() / steps,
        "copies a step": len(copied) / steps,
        "copy time, µs a step": (copied["end"] - copied["start"]).sum() / 1e3 / steps,
        "GPU idle, %": 100 * (1 - busy_ms / window.duration_ms),
        "CUDA calls recorded, a step": len(calls) / steps,
    }


def overhead_table(rows: Sequence[dict], steps: int) -> Table:
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


def memory_timeline(named: Mapping[str, Mapping]) -> Figure:
    """Allocated GPU memory over a few steps by what it is for, a panel a step script, both axes on the same scale.

    ``named`` maps a name to ``{"us": [...], "mb": {category: [...]}}``, as ``torch_profiler.memory_by_category`` gives.
    """
    highest = max(sum(np.array(mb) for mb in memory["mb"].values()).max() for memory in named.values())
    longest_ms = max(memory["us"][-1] for memory in named.values()) / 1e3
    with style.house_style():
        fig = style.figure(0.9 + 1.9 * len(named))
        axes = fig.subplots(len(named), 1, squeeze=False)[:, 0]
        used = {}
        for ax, (name, memory) in zip(axes, named.items(), strict=True):
            ms = np.array(memory["us"]) / 1e3
            known = [category for category in CATEGORIES if category in memory["mb"]]
            ax.stackplot(
                ms,
                *[memory["mb"][category] for category in known],
                colors=[CATEGORIES[category] for category in known],
                step="post",
                linewidth=0,
            )
            used |= {category: (CATEGORIES[category], None) for category in CATEGORIES if category in known}
            ax.set(title=f"{name}: megabytes allocated", xlim=(0, longest_ms), ylim=(0, 1.08 * highest))
            ax.grid(axis="y")
            ax.set_axisbelow(True)
        axes[-1].set_xlabel("milliseconds")
        key(fig, used, len(CATEGORIES))
    return fig


# --- the driver's counters ----------------------------------------------------------------------------------


def driver_frame(programs: Sequence[dict]) -> pd.DataFrame:
    """What the driver's counters say of each program on average: while it trains, or while its kernel runs.

    The power is the energy counter's difference over the time: the driver's own power lags behind a short program.
    NaN: the driver does not say.
    """
    names = {
        "gpu_pct": "utilisation %", "memory_pct": "memory %", "used_mb": "MB in use", "sm_mhz": "SM MHz",
        "temperature_c": "°C", "to_gpu_mb_s": "PCIe to GPU MB/s",
    }  # fmt: skip
    rows = []
    for program in programs:
        samples, (start, end) = nvml.from_text(program["samples"]), nvml.busy_stretch(program)
        found = {name: nvml.mean(samples, column, start, end) for column, name in names.items()}
        watts = nvml.energy_j(samples, start, end) / (end - start)
        rows.append({"program": short_program(program), "W": watts, **found})
    return pd.DataFrame(rows)[["program", "utilisation %", "W", *list(names.values())[1:]]]


def driver_table(programs: Sequence[dict]) -> Table:
    """``driver_frame`` as a table."""
    frame = driver_frame(programs)
    measured = list(frame.columns[1:])
    return table(frame, "What the driver says, on average", dict.fromkeys(measured, "{:,.0f}"), measured)


def short_program(program: dict) -> str:
    """The program's name without its flags: ``main_opt4.py --epochs 25`` → ``main_opt4.py``"""
    return program["program"].split(" --")[0]


# What the driver's performance monitoring (GPM) counts → what Nsight Systems calls the same.
SAME_COUNTERS = {
    "sm_pct": "SMs Active (counter)",
    "tensor_pct": "Tensor Active (counter)",
    "dram_pct": "DRAM bandwidth (counter)",
}


def counters_frame(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The driver's performance monitoring beside Nsight Systems' counters, in per cent, a row a program.

    ``at_work`` maps a program to what Nsight's counters say of it, as the function of that name does. Columns:
    ``program``, then for each of SAME_COUNTERS the driver's mean and Nsight's, ``("sm_pct", "driver")`` and so on.
    NaN: not counted, or not profiled.
    """
    rows = []
    late = 2 * nvml.GPM_PERIOD_S  # a value is of the tenth of a second before it was read, and stands for another
    for program in programs:
        samples, (start, end) = nvml.from_text(program["samples"]), nvml.busy_stretch(program)
        other = at_work.get(short_program(program), {})
        row = {("program", ""): short_program(program)}
        for column, name in SAME_COUNTERS.items():
            row[column, "driver"] = nvml.mean(samples, column, start + late, end)
            row[column, "Nsight"] = other.get(name, float("nan"))
        rows.append(row)
    return pd.DataFrame(rows).set_axis(pd.MultiIndex.from_tuples(rows[0]), axis=1)


def counters_table(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> Table:
    """``counters_frame`` as a table."""
    frame = counters_frame(programs, at_work)
    words = {"sm_pct": "SMs", "tensor_pct": "Tensor", "dram_pct": "DRAM"}
    frame.columns = [f"{words[column]} %, {whose}" if whose else column for column, whose in frame.columns]
    measured = list(frame.columns[1:])
    formats = dict.fromkeys(measured, "{:.1f}")
    return table(frame, "How much of it was busy: the driver's counters (GPM) and Nsight Systems'", formats, measured)


def utilisation(programs: Sequence[dict], column: str = "gpu_pct", highest: float = 100) -> Figure:
    """A counter of the driver over the run of each program, a panel each, on the same scale of time.

    The stretch between the two marks is what the averages are about.
    """
    longest = max(program["process_s"] for program in programs)
    words = {"gpu_pct": "utilisation, %", "power_w": "power, W", "sm_mhz": "SM clock, MHz"}
    with style.house_style():
        fig = style.figure(0.7 + 0.85 * len(programs))
        axes = fig.subplots(len(programs), 1, sharex=True, squeeze=False)[:, 0]
        for ax, program in zip(axes, programs, strict=True):
            samples = nvml.from_text(program["samples"])
            ax.fill_between(samples["t_s"], samples[column], step="post", color=style.SKY, linewidth=0)
            if samples[column].isna().all():
                ax.text(longest / 2, highest / 2, "the driver does not say", ha="center", va="center", size=SMALL)
            for edge in nvml.busy_stretch(program):
                ax.axvline(edge, color=style.VERMILION, linewidth=1)
            ax.set(ylim=(0, 1.05 * highest), xlim=(0, longest))
            ax.set_title(short_program(program), size=SMALL + 0.5, pad=3)
            ax.grid(axis="y")
        axes[-1].set_xlabel(f"seconds since the program started; {words.get(column, column)}", size=9)
    return fig


def at_work(report: Report) -> dict[str, float]:
    """How busy the GPU was in a report's training, in per cent: three of the meanings of MEANINGS, and the memory.

    ``"DRAM bandwidth (counter)"`` adds up reading and writing. NaN: not counted. Where the report marks no training:
    from the start of its first kernel to the end of its last.
    """
    window = report.window()
    if window.thread is None and len(report.kernels):
        window = Window(int(report.kernels["start"].min()), int(report.kernels["end"].max()), "kernels")
    found = {"any work (trace)": 100 * (1 - nsight.idle.idle(report, window).idle_share)}
    counters = {"SMs Active": ["SMs Active"], "Tensor Active": ["Tensor Active"]}
    counters["DRAM bandwidth"] = ["DRAM Read Bandwidth", "DRAM Write Bandwidth"]
    for name, parts in counters.items():
        found[f"{name} (counter)"] = sum(_mean_counter(report, part, window) for part in parts)
    return found


def _mean_counter(report: Report, name: str, window: Window) -> float:
    """Mean of a sampled counter within the window; NaN where it was not sampled."""
    samples = report.counter(name, window)
    return float(samples.loc[samples["time"].between(window.start, window.end, inclusive="left"), "value"].mean())


def meanings(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """How busy is the GPU? For each program one bar a meaning of the word, in per cent.

    ``rows`` maps a program to {meaning: per cent}, with the meanings of MEANINGS; what was not measured is left out.
    """
    high = 0.8 / len(MEANINGS)
    with style.house_style():
        fig = style.figure(1.0 + 0.62 * len(rows))
        ax = fig.subplots()
        for place, found in enumerate(rows.values()):
            for number, (meaning, colour) in enumerate(MEANINGS.items()):
                value = found.get(meaning)
                if value is None or np.isnan(value):
                    continue
                y = place + high * (number - (len(MEANINGS) - 1) / 2)
                ax.barh(y, value, 0.9 * high, color=colour, linewidth=0)
                words = f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"
                place_of = {"textcoords": "offset points", "va": "center", "size": SMALL - 1.5}
                ax.annotate(words, (value, y), (4, 0), **place_of)
        ax.set(xlim=(0, 112), ylim=(len(rows) - 0.45, -0.55), xlabel="per cent of the time, or of the GPU")
        ax.set_yticks(range(len(rows)), list(rows))
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_title("How busy is the GPU? It depends on whom you ask")
        key(fig, {meaning: (colour, None) for meaning, colour in MEANINGS.items()}, len(MEANINGS))
    return fig


def energy_table(programs: Sequence[dict], epochs: int = 10) -> Table:
    """What a training costs in energy: the start-up with the first epoch, an epoch after it, and ``epochs`` in all."""
    found = nvml.energy(programs, epochs)
    measured = list(found.columns[1:])
    formats = dict.fromkeys(measured, "{:,.0f}") | {"an epoch s": "{:.3f}", "an epoch J": "{:,.1f}"}
    formats |= {"start-up s": "{:.1f}"}
    caption = f"Energy of the board, from the driver's counter; the last columns: {epochs} epochs"
    return table(found, caption, formats, measured)
