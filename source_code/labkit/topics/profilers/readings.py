"""What do the profilers and the driver say of the same programs, side by side?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.topics.profilers import nvml, torch_profiler
from stepbudget import ask, intervals
from stepbudget.report import Report
from stepbudget.window import Window


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


def driver(programs: Sequence[dict]) -> pd.DataFrame:
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


def short_program(program: dict) -> str:
    """The program's name without its flags: ``main_opt4.py --epochs 25`` → ``main_opt4.py``"""
    return program["program"].split(" --")[0]


# What the driver's performance monitoring (GPM) counts → what Nsight Systems calls the same.
SAME_COUNTERS = {
    "sm_pct": "SMs Active (counter)",
    "tensor_pct": "Tensor Active (counter)",
    "dram_pct": "DRAM bandwidth (counter)",
}


def counters(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
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


def at_work(report: Report) -> dict[str, float]:
    """How busy the GPU was in a report's training, in per cent: three of the meanings of MEANINGS, and the memory.

    ``"DRAM bandwidth (counter)"`` adds up reading and writing. NaN: not counted. Where the report marks no training:
    from the start of its first kernel to the end of its last.
    """
    window = report.window()
    if window.thread is None and len(report.kernels):
        window = Window(int(report.kernels["start"].min()), int(report.kernels["end"].max()), "kernels")
    found = {"any work (trace)": 100 * (1 - ask.idle.idle(report, window).idle_share)}
    counters = {"SMs Active": ["SMs Active"], "Tensor Active": ["Tensor Active"]}
    counters["DRAM bandwidth"] = ["DRAM Read Bandwidth", "DRAM Write Bandwidth"]
    for name, parts in counters.items():
        found[f"{name} (counter)"] = sum(_mean_counter(report, part, window) for part in parts)
    return found


def _mean_counter(report: Report, name: str, window: Window) -> float:
    """Mean of a sampled counter within the window; NaN where it was not sampled."""
    samples = report.counter(name, window)
    return float(samples.loc[samples["time"].between(window.start, window.end, inclusive="left"), "value"].mean())
