"""What did Nsight Compute count of one launch of each kernel, and what did the kernel's warps wait for?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit import source
from labkit.source import counting, kinds
from stepbudget.ncu.counters import ALL, STALLS
from stepbudget.show.table import Table, table

COLUMNS = {  # column → what a table calls it, factor, digits
    "time_us": ("µs", 1, "{:,.0f}"),
    "blocks": ("programs", 1, "{:,.0f}"),
    "waves": ("waves", 1, "{:.2f}"),
    "warps_pct": ("warps held %", 1, "{:.0f}"),
    "instructions": ("warp instructions, M", 1e-6, "{:,.0f}"),
    "load_requests": ("warp loads, M", 1e-6, "{:,.0f}"),
    "load_sectors": ("sectors, M", 1e-6, "{:,.0f}"),
    "l1_pct": ("L1 busy %", 1, "{:.0f}"),
    "issue_pct": ("issuing %", 1, "{:.0f}"),
    "l2_bytes": ("from and to L2, GB", 1e-9, "{:.2f}"),
    "tensor_pct": ("tensor pipe active %", 1, "{:.0f}"),
    "tensor_us": ("tensor pipe active µs", 1, "{:.0f}"),
    "shared_wavefronts": ("shared-memory passes, M", 1e-6, "{:.0f}"),
    "bank_conflicts": ("bank conflicts, M", 1e-6, "{:.2f}"),
} | {stall: (f"{stall.removeprefix('stall_').replace('_', ' ')}, clocks", 1, "{:.1f}") for stall in STALLS}


def kernels() -> pd.DataFrame:
    """One launch of each kernel of labs 26 and 27, by its name, as ``stepbudget``'s ``parse`` has it.

    ``tensor_us``: how long the tensor pipe was active. ``stall_…``: clocks that a warp waits for this reason, for each
    instruction that it issues (Nsight Compute, "Kernel Profiling Guide", *Warp State*).
    """
    return _launches(counting.KERNELS)


def rungs() -> pd.DataFrame:
    """One product of each rung of lab 29, by its name, in the same columns."""
    return _launches(counting.RUNGS)


def _launches(command: str) -> pd.DataFrame:
    found = source.current().get(kinds.counts(command)).kernels.drop_duplicates("phase").set_index("phase")
    return found.assign(tensor_us=found["time_us"] * found["tensor_pct"] / 100)


def counters(found: pd.DataFrame, names: Sequence[str], columns: Sequence[str]) -> Table:
    """Some counters (of COLUMNS) of some kernels; ``found`` by ``kernels`` or ``rungs``."""
    shown = {COLUMNS[name][0]: found.loc[list(names), name] * COLUMNS[name][1] for name in columns}
    frame = pd.DataFrame(shown).rename_axis("kernel").reset_index()
    return table(frame, "One launch under Nsight Compute", {name: form for name, _, form in map(COLUMNS.get, columns)})


def page(found: pd.DataFrame, names: Sequence[str], columns: Sequence[str], least: float = 5) -> Table:
    """Some counters under Nsight Compute's own names, a column for each kernel; then what its warps waited for.

    Left out are reasons for which no kernel's warps waited ``least`` clocks an instruction.
    """
    kernels = found.loc[list(names)]
    longest = kernels[[*STALLS]].max().sort_values(ascending=False)
    chosen = kernels[[*columns, *longest[longest >= least].index]].T
    frame = chosen.set_axis([ALL[name] for name in chosen.index]).rename_axis("counter").reset_index()
    caption = f"From ncu --page raw, the longest waits first; left out are those under {least:g} clocks"
    return table(frame, caption, dict.fromkeys(names, _plainly), names=["counter"])


def _plainly(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.2f}"
