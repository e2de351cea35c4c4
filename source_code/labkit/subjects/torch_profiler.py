"""What does PyTorch's own profiler say? Its trace, read with the same questions as a report of Nsight Systems.

``profile_torch.py`` runs a step under ``torch.profiler`` and leaves a record (tables, memory, what the profiler costs)
and a trace in Chrome's format, which ``stepbudget`` opens as it opens a report of Nsight Systems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from labkit import source
from labkit.errors import LabError
from labkit.source import kinds, recorded
from stepbudget import intervals, kernel_names
from stepbudget.ask.iterations import step_windows
from stepbudget.export.names import MEMORY
from stepbudget.report import Report, open_report
from stepbudget.window import Window

STEP = re.compile(r"ProfilerStep#\d+")

# What a trace keeps when it is made slim; operators and memory only of its first steps.
ARGUMENTS = ("correlation", "device", "stream", "bytes", "grid", "block", "External id")
KEPT = (
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"),
    *("user_annotation", "gpu_user_annotation", "overhead"),
)
DETAILS = ("Input Dims", "Total Allocated", "Total Reserved", "Bytes", "Device Type", "Device Id")
DEVICE = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms")

# Pieces of kernel names by which PyTorch's plugin for TensorBoard says that a kernel uses Tensor Cores.
# (torch_tb_profiler 0.4.3, profiler/tensor_core.py.)
PLUGIN = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2", "first_layer_wgrad_kernel",
    "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm", "xmma_sparse_conv",
    "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm", "c1688",
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """What one run under ``torch.profiler`` left: its record, and its trace as a report."""

    name: str
    record: dict
    report: Report
    trace: Path

    @property
    def window(self) -> Window:
        """The steps that were recorded, from the first's start to the last's end."""
        return self.report.window()

    @property
    def steps(self) -> list[Window]:
        """Each of them."""
        return step_windows(self.report)

    @property
    def operators(self) -> pd.DataFrame:
        """The rows of ``key_averages()``: name, calls, self_cpu_ms, cpu_ms, self_gpu_ms, gpu_ms, mflop."""
        return pd.DataFrame(self.record["operators"])


def profile(command: str, show: Callable[[str], None] = print) -> Profile:
    """Run ``profile_torch.py STEP …``, or open what was recorded with it; either way show the command."""
    record, trace = source.current().get(kinds.trace(command), show)
    return Profile(recorded.key(command.split()[1]), record, open_report(trace), trace)


# --- a trace that is kept -----------------------------------------------------------------------------------


def slim(content: dict, detailed: int = 2) -> dict:
    """A trace without what the course does not read, and without what tells of the machine that made it.

    Kept: GPU work, CUDA calls, ranges; operators and memory events of the first ``detailed`` steps; the GPUs' names.
    Times begin at 0.
    """
    events = [event for event in content["traceEvents"] if event.get("ph") in ("X", "i")]
    steps = sorted(event["ts"] + event["dur"] for event in events if STEP.match(event.get("name", "")))
    until = steps[min(detailed, len(steps)) - 1] if steps else 0
    chosen = [event for event in events if _is_kept(event, until)]
    origin = min((event["ts"] for event in chosen), default=0)
    devices = [{name: gpu[name] for name in DEVICE if name in gpu} for gpu in content.get("deviceProperties", [])]
    kept = [_slim_event(event, origin) for event in chosen]
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "deviceProperties": devices, "traceEvents": kept}


def _is_kept(event: dict, until: float) -> bool:
    category = event.get("cat")
    if category == "cpu_op" or event.get("name") == "[memory]":
        return event["ts"] < until
    return category in KEPT


def _slim_event(event: dict, origin: float) -> dict:
    kept = {name: event[name] for name in ("ph", "cat", "name", "pid", "tid", "s") if name in event}
    kept["ts"] = round(event["ts"] - origin, 3)
    if "dur" in event:
        kept["dur"] = event["dur"]
    arguments = event.get("args", {})
    if known := {name: arguments[name] for name in (*ARGUMENTS, *DETAILS) if name in arguments}:
        kept["args"] = known
    return kept


# --- what it says ------------------------------------------------------------------------------------------


def plugin_says(kernel: str) -> bool:
    """Would PyTorch's plugin for TensorBoard say that this kernel uses Tensor Cores? It looks for pieces of names."""
    return any(piece in kernel for piece in PLUGIN)


def kernels(report: Report, window: Window) -> pd.DataFrame:
    """The kernels that were launched within the window, a row a name, longest total first.

    Columns: ``kernel``, ``count``, ``gpu_us``, ``tensor_cores`` (yes, no, unknown: by name), ``plugin`` (what
    PyTorch's plugin for TensorBoard says), ``key`` (the name as both profilers write it).
    """
    own = report.kernels
    at = own["api_start"] if len(report.api) else own["start"]  # not told: launched before the recording began
    own = own[(at >= window.start) & (at < window.end)]
    lasted = ((own["end"] - own["start"]) / 1e3).groupby(own["name"])
    found = lasted.agg(["size", "sum"]).reset_index()
    found.columns = ["kernel", "count", "gpu_us"]
    found["tensor_cores"] = [kernel_names.by_name(str(name)) for name in found["kernel"]]
    found["plugin"] = ["yes" if plugin_says(str(name)) else "no" for name in found["kernel"]]
    found["key"] = [kernel_names.key(str(name)) for name in found["kernel"]]
    return found.sort_values(["gpu_us", "kernel"], ascending=[False, True], ignore_index=True)


def operators(report: Report) -> pd.DataFrame:
    """The operators that launched kernels, as far as the trace keeps operators (its first steps), a row a name.

    A kernel belongs to the innermost operator that ran when its launch call was made, on the same thread. Columns:
    ``operator``, ``kernels``, ``gpu_us``, ``tensor_core_us`` (of kernels whose name says so), ``tensor_core_share``
    (NaN where the names do not tell), longest first.
    """
    called = report.ranges[report.ranges["operator"] & ~report.ranges["name"].str.startswith("Optimizer.")]
    rows = []
    kernels = report.kernels.dropna(subset="api_start")
    for thread, own in called.groupby("thread"):
        launched = kernels[kernels["api_thread"] == thread]
        names = intervals.innermost_at(own["start"], own["end"], own["name"], launched["api_start"])
        for name, kernel in zip(names, launched.itertuples(), strict=True):
            if name is not None:
                rows.append((name, kernel.end - kernel.start, kernel_names.by_name(kernel.name)))
    table = pd.DataFrame(rows, columns=["operator", "ns", "verdict"])
    found = []
    for name, own in table.groupby("operator"):
        used, told = (own.loc[chosen, "ns"].sum() for chosen in (own["verdict"] == "yes", own["verdict"] != "unknown"))
        share = used / told if told else float("nan")
        found.append((name, len(own), own["ns"].sum() / 1e3, used / 1e3, share))
    columns = ["operator", "kernels", "gpu_us", "tensor_core_us", "tensor_core_share"]
    return pd.DataFrame(found, columns=columns).sort_values("gpu_us", ascending=False, ignore_index=True)


def side_by_side(torch_side: tuple[Report, Window], nsight_side: tuple[Report, Window]) -> pd.DataFrame:
    """The kernels of the same steps as both profilers saw them, a row a kernel, longest first.

    Columns: ``kernel``, ``tensor_cores``, ``torch_count``, ``nsight_count``, ``torch_us``, ``nsight_us`` (sums).
    """
    sides = []
    for side in (torch_side, nsight_side):
        table = kernels(*side)
        sums = table.groupby("key")[["count", "gpu_us"]].sum()
        sides.append(sums.join(table.drop_duplicates("key").set_index("key")[["kernel", "tensor_cores"]]))
    sides[0] = sides[0].rename(index=_same_words(sides[0]["kernel"], sides[1]["kernel"]))
    both = pd.concat(
        [side.add_suffix(f"_{name}") for side, name in zip(sides, ("torch", "nsight"), strict=True)], axis=1
    )
    result = pd.DataFrame(
        {
            "kernel": both["kernel_torch"].fillna(both["kernel_nsight"]),
            "tensor_cores": both["tensor_cores_torch"].fillna(both["tensor_cores_nsight"]),
            "torch_count": both["count_torch"].fillna(0).astype(int),
            "nsight_count": both["count_nsight"].fillna(0).astype(int),
            "torch_us": both["gpu_us_torch"].fillna(0.0),
            "nsight_us": both["gpu_us_nsight"].fillna(0.0),
        }
    )
    return result.sort_values(["nsight_us", "kernel"], ascending=[False, True], ignore_index=True)


def _same_words(keys: pd.Series, others: pd.Series) -> dict[str, str]:
    """Keys of one side whose words all stand in the name of one kernel that only the other side has → its key.

    ``keys`` and ``others``: kernel names by key. So a name of which only the words are known finds its own.
    """
    words = {key: set(re.findall(r"\w+", name)) for key, name in others.items() if key not in keys}
    same = {}
    for key in keys.index.difference(others.index):
        found = [other for other in words if set(key.split()) <= words[other]]
        same |= {key: found[0]} if len(found) == 1 else {}
    return same


def busy(report: Report, window: Window) -> np.ndarray:
    """When within the window the GPU ran a kernel, a copy or a memory fill: intervals in ns, overlaps counted once."""
    return intervals.clip(intervals.union(report.kernels, report.copies, report.memsets), window.start, window.end)


def waits(report: Report, window: Window) -> pd.DataFrame:
    """What held the program: the loader's ranges and CUDA calls that wait, a row each.

    Columns: ``held_in``, ``count``, ``ms``, ``gpu_idle_ms`` (of it, while the GPU had nothing to do).
    """
    ranges = report.ranges[["start", "end", "name"]]
    loading = ranges["name"].str.contains(r"^data loading$|^enumerate\(DataLoader\)#", regex=True)
    calls = report.api[["start", "end", "name"]]
    waiting = calls["name"].str.contains(r"Synchronize|^cudaMemcpy|^cuMemcpy", regex=True)
    rows = pd.concat([ranges[loading.astype(bool)], calls[waiting.astype(bool)]])
    rows = rows[(rows["start"] >= window.start) & (rows["start"] < window.end)]
    gaps = intervals.complement(busy(report, window), window.start, window.end)
    found = []
    for name, own in rows.groupby("name", sort=False):
        times = intervals.clip(intervals.union(own), window.start, window.end)
        idle_ns = intervals.total(intervals.intersect(times, gaps))
        found.append((name, len(own), intervals.total(times) / 1e6, idle_ns / 1e6))
    table = pd.DataFrame(found, columns=["held_in", "count", "ms", "gpu_idle_ms"])
    return table.sort_values("ms", ascending=False, ignore_index=True)


def step_range(windows: Sequence[Window], first: int, last: int) -> Window:
    """From the start of step ``first`` to the end of step ``last`` (counted from 1), as one window."""
    if not 1 <= first <= last <= len(windows):
        raise LabError(f"there are no steps {first} to {last} among {len(windows)}.")
    start, end = windows[first - 1], windows[last - 1]
    return Window(start.start, end.end, f"steps {first} to {last}", start.thread)


# --- memory ------------------------------------------------------------------------------------------------


def allocated_mb(report: Report) -> pd.Series:
    """The allocations of GPU memory that a trace keeps, in megabytes."""
    if not report.has(MEMORY):
        return pd.Series(dtype=float)
    return report.sql(f"SELECT bytes / 1e6 AS mb FROM {MEMORY} WHERE memoryOperationType = 0")["mb"]


def memory_by_category(exported: Sequence, categories: Sequence[str], points: int = 400) -> dict:
    """The JSON of ``export_memory_timeline``: megabytes by what they are for, at ``us`` microseconds.

    ``exported`` holds times (µs) and, for each, a list of bytes: one unused, then one a category. Of more than
    ``points`` moments, those are kept that change the sum most, in order, and the largest of all.
    """
    times, sizes = (np.asarray(part, dtype=float) for part in exported)
    if not len(times):
        return {"us": [], "mb": {name: [] for name in categories}}
    sizes = sizes[:, 1:] / 1e6
    changes = np.abs(np.diff(sizes.sum(axis=1), prepend=0))
    chosen = np.sort(np.union1d(np.argsort(-changes)[:points], [0, sizes.sum(axis=1).argmax(), len(times) - 1]))
    kept = {name: sizes[chosen, place].round(3).tolist() for place, name in enumerate(categories)}
    return {"us": (times[chosen] - times[0]).tolist(), "mb": {name: mb for name, mb in kept.items() if any(mb)}}


def largest_at_peak(snapshot: dict) -> dict:
    """What a memory snapshot (``torch.cuda.memory._snapshot``) says of the moment at which most was allocated.

    Only what was allocated while the history was kept is known: ``before_mb`` had been there already. Keys:
    ``allocations``, ``peak_mb`` (of the known), ``before_mb``, ``at_peak`` (line, allocations, mb; the twelve
    largest, the largest first).
    """
    events = [event for trace in snapshot["device_traces"] for event in trace]
    live: dict[int, tuple[int, str]] = {}
    now = peak = count = freed_before = 0
    at_peak: list[tuple[int, str]] = []
    for event in events:
        if event["action"] == "alloc":
            count += 1
            now += event["size"]
            live[event["addr"]] = (event["size"], _who(event.get("frames", [])))
            if now > peak:
                peak, at_peak = now, list(live.values())
        elif event["action"] == "free_completed":
            if event["addr"] in live:
                now -= live.pop(event["addr"])[0]
            else:
                freed_before += event["size"]
    rows = pd.DataFrame(at_peak, columns=["bytes", "line"]).groupby("line")["bytes"].agg(["size", "sum"])
    rows = rows.sort_values(["sum"], ascending=False).head(12)
    allocated = sum(
        block["size"]
        for segment in snapshot.get("segments", [])
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    listed = [{"line": line, "allocations": int(row["size"]), "mb": row["sum"] / 1e6} for line, row in rows.iterrows()]
    before = max(0, allocated - now) + freed_before
    return {"allocations": count, "peak_mb": peak / 1e6, "before_mb": before / 1e6, "at_peak": listed}


def _who(frames: Sequence[dict]) -> str:
    """The innermost line of the program itself, not of PyTorch; ``file:line function``."""
    for frame in frames:
        file = Path(frame["filename"])
        if file.suffix == ".py" and not {"site-packages", "dist-packages"} & {*file.parts} and "lib" not in file.parts:
            return f"{file.name}:{frame['line']} {frame['name']}"
    return "autograd (no Python line)"
