"""What do the profilers and the driver say of the same programs, side by side?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.topics.profilers import nvml, torch_profiler
from labkit.training.sizes import training_flops_per_sample
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


def counted_flops(profile: torch_profiler.Profile) -> dict[str, float]:
    """What the profiler's FLOPs hold of those that the recorded steps need, in per cent: by operator, then ``all``.

    The steps are those from the first recorded one to the end of an epoch of 60,000 digits, 1,024 a step.
    """
    samples = 60_000 - (profile.record["first_step"] - 1) * 1024
    needed = training_flops_per_sample() * samples / 1e6
    mflop = profile.operators.set_index("name")["mflop"].dropna()
    found = {name: 100 * mflop.get(f"aten::{name}", 0.0) / needed for name in ("conv2d", "addmm", "mm")}
    return found | {"all": sum(found.values())}


def plugin(profiles: Sequence[torch_profiler.Profile]) -> tuple[float, float]:
    """What PyTorch's plugin for TensorBoard, which goes by names, would make of Tensor Cores.

    The per cent that it sees of the time of kernels on Tensor Cores, NaN where there is none, and the microseconds a
    step of kernels without them that it takes for such.
    """
    tables = [torch_profiler.kernels(one.report, one.window).assign(steps=len(one.report.steps)) for one in profiles]
    found = pd.concat(tables)
    seen = found["plugin"] == "yes"
    used, unused = (found["tensor_cores"] == verdict for verdict in ("yes", "no"))
    all_us = found.loc[used, "gpu_us"].sum()
    wrong = found[seen & unused]
    share = 100 * found.loc[seen & used, "gpu_us"].sum() / all_us if all_us else float("nan")
    return share, float((wrong["gpu_us"] / wrong["steps"]).sum())


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


def by_name(programs: Sequence[dict]) -> dict[str, dict]:
    """Each program of ``bench_nvml.py`` by its name without flags."""
    return {short_program(program): program for program in programs}


def usual_utilisation(program: dict) -> float:
    """The median of the driver's utilisation while a program was busy, in per cent; NaN where the driver says none."""
    samples = nvml.from_text(program["samples"])
    return float(samples.loc[samples["t_s"].between(*nvml.busy_stretch(program)), "gpu_pct"].median())


def meanings(programs: Sequence[dict], at_work: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """How busy is the GPU? For each program of ``at_work`` the driver's mean utilisation, then what stands there."""
    said = driver(programs).set_index("program")["utilisation %"]
    return {name: {"utilisation (nvidia-smi)": float(said[name]), **found} for name, found in at_work.items()}


def watched(programs: Sequence[dict], alone: Mapping[str, Sequence[dict]]) -> pd.DataFrame:
    """An epoch (training and test, seconds) alone, and while the driver is asked, a row a step script of ``alone``.

    ``alone`` holds the records of timed runs: their median, first epochs left out. Watched: the mean of one run.
    Columns: ``step``, ``alone s``, ``watched s``, ``× alone``.
    """
    mean_s = nvml.energy(programs).set_index("program")["an epoch s"]
    rows = []
    for name, runs in alone.items():
        epochs = pd.Series([one["training_s"] + one["test_s"] for run in runs for one in run["epochs"][1:]])
        rows.append((name, epochs.median(), mean_s[name], mean_s[name] / epochs.median()))
    return pd.DataFrame(rows, columns=["step", "alone s", "watched s", "× alone"])


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
