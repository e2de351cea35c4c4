"""How much of the GPU's memory did the program hold? Allocations and frees, which ``--cuda-memory-usage=true`` records.

They are the driver's: PyTorch's caching allocator asks for large blocks and keeps them, so what is held here is what it
had reserved, not what its tensors filled. What was allocated before the capture began is in no report; a free of it
counts as one of unknown size. The variables of loaded code are listed too (1,072 of 231 kB beside 22 allocations, in a
recording of 2025.3): nobody asked for those, and they are left out.

Source: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from stepbudget.ask.threads import about
from stepbudget.export.kinds import EXACT, MEMORY, MOST_BYTES
from stepbudget.export.names import MEMORY as TABLE
from stepbudget.report import Report
from stepbudget.window import Window

OPERATIONS = {"CUDA_DEV_MEM_EVENT_OPR_ALLOCATION": 0, "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION": 1}
STATIC = "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC"
OPTION = "--cuda-memory-usage=true"
LARGEST = 5


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU that one process held within a window, of those allocated within the capture."""

    gpu: int
    peak_bytes: int
    start_bytes: int
    end_bytes: int
    allocations: int  # within the window
    frees: int
    unknown_frees: int  # of these: of memory that was allocated before the capture
    largest_bytes: list[int] = field(default_factory=list)  # the largest allocations made within the window


def memory(report: Report, window: Window | None = None) -> Memory | None:
    """What the window's process held on the window's GPU (default: training); None where it was not recorded."""
    asked = about(report, window or report.window())
    events = _events(report)
    events = events[(events["process"] == asked.process) & (events["gpu"] == asked.gpu)]
    if events.empty:
        return None
    held = events["change"].astype(float).cumsum().to_numpy()  # whole up to 2⁵³ bytes
    time = events["time"].to_numpy()
    first, last = np.searchsorted(time, [asked.start, asked.end])  # of those within
    before = int(held[first - 1]) if first else 0
    own = events.iloc[first:last]
    allocated = own[own["allocates"]]
    return Memory(
        gpu=int(asked.gpu),
        peak_bytes=int(max(held[first:last].max(initial=0), before)),
        start_bytes=before,
        end_bytes=int(held[last - 1]) if last else 0,
        allocations=len(allocated),
        frees=int((~own["allocates"]).sum()),
        unknown_frees=int(own["unknown"].sum()),
        largest_bytes=allocated["bytes"].nlargest(LARGEST).tolist(),
    )


def not_looked_at(report: Report) -> list[str]:
    """The option that would have recorded it, where the report holds work of a GPU and no such table."""
    held = report.has(TABLE) and report.rows(f"SELECT 1 FROM {TABLE} LIMIT 1")
    return [] if held or report.api.empty else [f"allocations ({OPTION}): the GPU memory held"]


def _events(report: Report) -> pd.DataFrame:
    """Allocations and frees of device memory: time (ns), process, gpu, bytes, allocates, unknown, change (bytes held).

    A free takes what was allocated at its address. Rows with a value that cannot be are left out.
    """
    columns = ["start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"]
    names = ["time", "process", "device", "address", "bytes", "allocates"]
    found = pd.DataFrame(columns=[*names, "gpu", "unknown", "change"])
    if not set(columns) <= report.columns(TABLE):
        return found
    listed = ", ".join(columns)
    whole = " AND ".join(f"typeof({name}) = 'integer'" for name in columns)
    kinds = report.words("ENUM_CUDA_MEM_KIND", {name: kind for name, kind in MEMORY.items() if name != STATIC})
    device = [str(number) for number, word in kinds.items() if word == "device"]
    kind = f"AND memKind IN ({', '.join(device)})" if "memKind" in report.columns(TABLE) and device else ""
    within = max(report.origin - EXACT, -(2**63)), min(report.origin + EXACT, 2**63 - 1)
    where = f"{whole} {kind} AND bytes BETWEEN 0 AND {MOST_BYTES} AND start BETWEEN ? AND ?"
    rows = report.rows(f"SELECT {listed} FROM {TABLE} WHERE {where} ORDER BY start", within)
    if not rows:
        return found
    operations = report.enumeration("ENUM_CUDA_DEV_MEM_EVENT_OPER")
    allocation, release = (operations.get(name, number) for name, number in OPERATIONS.items())
    events = pd.DataFrame(np.array(rows, dtype=np.int64), columns=names)
    events = events[events["allocates"].isin([allocation, release])].reset_index(drop=True)
    events["allocates"] = events["allocates"] == allocation
    events["time"] -= report.origin
    events["process"] //= 2**24
    events["gpu"] = report.gpu_numbers(events)
    place = [events[name] for name in ("process", "device", "address")]
    # What lies at the address when an event comes: the allocation right before, unless that was freed.
    there = (events["bytes"] * events["allocates"]).groupby(place, sort=False).shift(fill_value=0)
    follows = events["allocates"].astype(int).groupby(place, sort=False).shift(fill_value=0) > 0
    events["unknown"] = ~events["allocates"] & ~follows
    events["change"] = events["bytes"] * events["allocates"] - there
    return events
