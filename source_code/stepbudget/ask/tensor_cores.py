"""Did the Tensor Cores work? By the names of the kernels, and by the sampled counter *Tensor Active*.

A kernel's name proves much and not everything, so the answer has three values: yes, no, unknown. Where the counter was
sampled inside a kernel that had the GPU to itself, it is a second witness; where the two contradict each other, the
answer is unknown and the contradiction is listed.

Source: NVIDIA, Nsight Systems User Guide, "GPU Metrics", for the counter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from stepbudget.ask.threads import begins_in
from stepbudget.coded import coded
from stepbudget.kernel_names import FP64, NO, UNKNOWN, YES, by_name, rule_of
from stepbudget.report import Report, remembered
from stepbudget.window import Window

# The counter reads a little even where no Tensor Core can have worked. On an H200 (GH100, Nsight Systems 2025.3): 1 %
# in every sample inside max-pooling and FP32 FFMA kernels; inside bias additions up to 4 % at 10 kHz, and 6 % on
# average at 200 kHz; 8 to 45 % in Tensor Core kernels, and the 8 % with a third of the SMs at work. So 1 is no evidence
# of work, 10 is, and between them it is silent.
FLOOR_PCT = 1.0
WORKS_PCT = 10.0
# At 1 % and few SMs at work, a Tensor Core kernel on those few could read the same: no evidence either way.
ENOUGH_SMS_PCT = 50.0
ENOUGH_SAMPLES = 3

# GPUs of compute capability 7.5 that have no Tensor Cores (TU116, TU117): theirs is arithmetic that imitates them.
WITHOUT_TENSOR_CORES = re.compile(r"GTX 16\d\d|\bT(400|500|550|600|1000|1200|2000)\b|Quadro T\d|MX4\d\d")


@dataclass(frozen=True)
class TensorActive:
    """The counter *Tensor Active* over a window: per cent of cycles in which the tensor pipes worked."""

    mean_pct: float
    max_pct: float
    samples: int


def tensor_active(report: Report, window: Window | None = None) -> TensorActive | None:
    """Mean and maximum of Tensor Active within the window (default: training).

    None where it was not sampled, or where several GPUs were and the report does not say which one the program used.
    """
    window = window or report.window()
    samples = report.counter("Tensor Active", window)
    samples = samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]
    if samples["device"].nunique() > 1:
        samples = samples[samples["device"] == report.sampled_gpu()]
    if samples.empty:
        return None
    return TensorActive(float(samples["value"].mean()), float(samples["value"].max()), len(samples))


def kernels(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a kernel name within the window, longest total first.

    Columns: ``kernel``, ``count``, ``gpu_ms``, ``mean_us``, ``share`` of all kernel time, ``tensor_cores`` (by name).
    """
    window = window or report.window()
    result = _by_kernel_name(report.kernels[begins_in(report.kernels, window)])
    result["gpu_ms"] = result["ns"] / 1e6
    result["mean_us"] = result["ns"] / result["count"] / 1e3
    result["share"] = result["ns"] / max(1, result["ns"].sum())
    result["tensor_cores"] = [by_name(str(name)) for name in result["kernel"]]
    return result.drop(columns="ns").sort_values(["gpu_ms", "kernel"], ascending=[False, True], ignore_index=True)


@remembered
def verdicts(report: Report, window: Window) -> pd.DataFrame:
    """One row a kernel name within the window (default: training), longest total first, with the evidence.

    For a window that is an NVTX range: the kernels of its process.

    Columns: ``kernel``, ``count``, ``gpu_ms``; ``tensor_core``: yes, no or unknown; ``evidence``: ``"name"``,
    ``"counter"``, ``"both"``, ``"disagreement"`` (then unknown), ``"GPU"`` (it has no Tensor Cores) or ``"none"``;
    ``rule``: what the name says, in words; ``sampled_pct``: mean Tensor Active inside such kernels (NaN: unsampled);
    ``samples``: how many whole sampling intervals that mean is of.

    The counter says yes from a mean of 10 % on, no where no sample exceeds 1 % while at least half of the SMs work, and
    nothing between; the constants of this module say where these bounds come from. Turing's counter (*Tensor Active /
    FP16 Active*) counts plain FP16 arithmetic too, and FP64 shares the pipe: there a high reading says nothing.
    """
    inside = begins_in(report.kernels, window).to_numpy(dtype=bool)
    result = _by_kernel_name(report.kernels[inside])
    found = sampled(report, inside).reindex(result["kernel"])
    without = has_tensor_cores(report) is False
    answers = []
    columns = found[["sampled_pct", "samples", "highest_pct", "sms_pct", "proves_yes"]]
    for name, row in zip(result["kernel"], columns.itertuples(index=False), strict=True):
        rule = rule_of(str(name))
        counter = _counter_verdict(str(name), *row)
        if without:
            answers.append((NO, "GPU", "this GPU has no Tensor Cores"))
        elif counter == UNKNOWN:
            answers.append((rule.verdict, "none" if rule.verdict == UNKNOWN else "name", rule.why))
        elif rule.verdict == UNKNOWN:
            answers.append((counter, "counter", rule.why))
        elif rule.verdict == counter:
            answers.append((counter, "both", rule.why))
        else:
            why = f"{rule.why}; but Tensor Active reads {row[0]:.0f} %"
            answers.append((UNKNOWN, "disagreement", why))
    result["gpu_ms"] = result.pop("ns") / 1e6
    result[["tensor_core", "evidence", "rule"]] = pd.DataFrame(answers, columns=["a", "b", "c"], dtype=object)
    result["sampled_pct"] = found["sampled_pct"].to_numpy()
    result["samples"] = found["samples"].astype("float64").fillna(0).to_numpy(dtype=np.int64)
    return result.sort_values(["gpu_ms", "kernel"], ascending=[False, True], ignore_index=True)


def sampled(report: Report, chosen: np.ndarray | None = None) -> pd.DataFrame:
    """What Tensor Active read inside kernels, one row a kernel name that was sampled at all (index: the name).

    Only whole sampling intervals count during which the kernel had its GPU to itself, with a margin of one interval at
    each end, since the clocks of samples and kernels agree only roughly: on an H200 at 10 kHz the sample with time
    stamp t is of the 100 µs from t + 15…30 µs on, through the whole run (the shift that best explains *SMs Active* by
    the kernels that ran). The margin covers that, and stamps at the interval's end as well.
    So a kernel needs three intervals (300 µs at 10 kHz) to have a sample; shorter ones are unsampled, not 0.

    Columns: ``sampled_pct`` (mean), ``highest_pct``, ``samples``, ``sms_pct`` (mean SMs Active; NaN: not sampled),
    ``proves_yes`` (the counter is of tensor pipes only). ``chosen`` marks the rows of ``report.kernels`` to look at.
    """
    table = report.kernels
    chosen = np.ones(len(table), dtype=bool) if chosen is None else chosen
    columns = ["sampled_pct", "highest_pct", "samples", "sms_pct", "proves_yes"]
    if not chosen.any():
        return pd.DataFrame(columns=columns)
    reach = Window(int(table.loc[chosen, "start"].min()), int(table.loc[chosen, "end"].max()), "kernels")
    tensor = report.counter("Tensor Active", reach)
    if tensor.empty:
        return pd.DataFrame(columns=columns)
    sms = report.counter("SMs Active", reach)
    sms = report.counter("SM Active", reach) if sms.empty else sms  # as other GPUs and versions spell it
    parts = []
    for gpu in table["gpu"].unique():
        number = _sampler_number(report, int(gpu), tensor)
        starts, ends, rows = _alone(report, int(gpu))
        starts, ends, rows = starts[chosen[rows]], ends[chosen[rows]], rows[chosen[rows]]
        if number is None or not len(rows):
            continue
        own = tensor[tensor["device"] == number]
        count, total, highest = _inside(own, starts, ends)
        sm_count, sm_total, _ = _inside(sms[sms["device"] == number], starts, ends)
        proves = not any("FP16" in name for name in own["counter"].unique())
        part = {"name": table["name"].to_numpy()[rows], "count": count, "total": total, "highest": highest}
        parts.append(pd.DataFrame({**part, "sm_count": sm_count, "sm_total": sm_total, "proves": proves}))
    if not parts:
        return pd.DataFrame(columns=columns)
    found = pd.concat(parts)
    found = found[found["count"] > 0].groupby("name")
    sums = found[["count", "total", "sm_count", "sm_total"]].sum()
    result = pd.DataFrame(index=sums.index)
    result["sampled_pct"] = sums["total"] / sums["count"]
    result["highest_pct"] = found["highest"].max()
    result["samples"] = sums["count"]
    result["sms_pct"] = sums["sm_total"] / sums["sm_count"].where(sums["sm_count"] > 0)
    result["proves_yes"] = found["proves"].all()
    return result


def capability(report: Report) -> tuple[int, int] | None:
    """Compute capability of the GPU that ran the kernels, such as (9, 0); None where the report does not tell one."""
    gpus = report.gpus
    if len(gpus) > 1 and len(report.kernels):
        used = gpus[gpus["gpu"].isin(report.kernels["gpu"].unique())]
        gpus = used if len(used) else gpus
    told = gpus[["major", "minor"]].drop_duplicates()
    if len(told) != 1 or not np.isfinite(told.to_numpy(dtype=float)).all():
        return None
    return int(told["major"].iloc[0]), int(told["minor"].iloc[0])


def has_tensor_cores(report: Report) -> bool | None:
    """Has the GPU that ran the kernels Tensor Cores (Volta and later, but not the GTX 16 series)? None: not told."""
    found = capability(report)
    if found is None:
        return None
    return found >= (7, 0) and not WITHOUT_TENSOR_CORES.search(report.gpu or "")


def _counter_verdict(name: str, mean: float, samples: float, highest: float, sms: float, proves_yes: object) -> str:
    """What the counter says of a kernel, on its own."""
    if not samples > 0:
        return UNKNOWN
    if mean >= WORKS_PCT:
        return YES if proves_yes is True and not FP64.search(name) else UNKNOWN
    enough = samples >= ENOUGH_SAMPLES and sms >= ENOUGH_SMS_PCT
    return NO if highest <= FLOOR_PCT and enough else UNKNOWN


def _by_kernel_name(table: pd.DataFrame) -> pd.DataFrame:
    """Count and nanoseconds of each kernel name."""
    numbers, names = coded(table["name"])
    result = (table["end"] - table["start"]).groupby(numbers).agg(["size", "sum"]).reset_index(drop=True)
    result.insert(0, "kernel", pd.Series(names, dtype=object))
    return result.set_axis(["kernel", "count", "ns"], axis=1).sort_values("kernel", ignore_index=True)


def _alone(report: Report, gpu: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When a kernel had the GPU to itself: starts and ends (ns), and that kernel's row in ``report.kernels``.

    A CUDA graph that was traced as a whole is company too.
    """
    rows = np.flatnonzero((report.kernels["gpu"] == gpu).to_numpy())
    work, graphs = report.kernels.iloc[rows], report.graphs
    graphs = graphs[graphs["gpu"] == gpu] if len(graphs) else graphs
    starts = np.concatenate([work["start"].to_numpy(np.int64), graphs["start"].to_numpy(np.int64)])
    ends = np.concatenate([work["end"].to_numpy(np.int64), graphs["end"].to_numpy(np.int64)])
    rows = np.concatenate([rows, np.full(len(graphs), -1)])
    real = ends > starts
    starts, ends, rows = starts[real], ends[real], rows[real]
    numbers = np.arange(len(rows))
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(np.repeat([1, -1], len(rows))[order])
    which = np.cumsum(np.concatenate([numbers, -numbers])[order])  # where one runs: its number
    single = np.flatnonzero((running[:-1] == 1) & (times[1:] > times[:-1]))
    found = rows[which[single]]
    single, found = single[found >= 0], found[found >= 0]
    return times[single], times[single + 1], found


def _sampler_number(report: Report, gpu: int, samples: pd.DataFrame) -> int | None:
    """The sampler's number of a GPU that ran kernels; None where the report does not tell, or it was not sampled."""
    numbers = samples["device"].unique()
    if report.sampled_gpu() is not None:  # the report tells which CUDA device is which GPU
        return gpu if gpu in numbers else None
    only = len(numbers) == 1 and report.kernels["gpu"].nunique() == 1
    return int(numbers[0]) if only else None


def _inside(samples: pd.DataFrame, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each stretch of time: how many samples lie well inside, their sum, and the highest of them."""
    nothing = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts)), np.zeros(len(starts))
    times, values = samples["time"].to_numpy(np.int64), samples["value"].to_numpy(np.float64)
    if len(times) < 3:
        return nothing
    gaps = np.diff(times)
    interval = int(np.median(gaps))
    if interval <= 0:
        return nothing
    # Beside a dropped sample an interval may be longer than it says.
    regular = np.concatenate([[True], gaps <= 1.5 * interval]) & np.concatenate([gaps <= 1.5 * interval, [True]])
    times, values = times[regular], values[regular]
    first = np.searchsorted(times, starts + interval, side="left")
    last = np.searchsorted(times, ends - 2 * interval, side="right")
    count = np.maximum(last - first, 0)
    before = np.concatenate([[0.0], np.cumsum(values)])
    total = np.where(count > 0, before[np.maximum(first, last)] - before[first], 0.0)
    highest = np.zeros(len(starts))
    some = np.flatnonzero(count)
    if len(some):
        edges = np.column_stack([first[some], last[some]]).ravel()
        highest[some] = np.maximum.reduceat(np.append(values, 0.0), edges)[::2]
    return count, total, highest
