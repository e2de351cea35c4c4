"""Which machine is this, and on which one were the recordings made?"""

from __future__ import annotations

import pandas as pd

from labkit import source
from labkit.display.table import Table, table
from labkit.source import recorded
from labkit.training import machine


def this_machine_table() -> Table:
    """What this machine has: GPU, driver, Nsight Systems, cores, and the mode that follows."""
    found = source.this_machine()
    lines = {
        "GPU": f"{found.gpu}, driver {found.driver}" if found.gpu else _no_gpu(found),
        "Nsight Systems": found.nsys or "not found",
        "CPU cores": str(found.cores),
        "labs run": source.current().name,
    }
    return table(pd.DataFrame(lines.items(), columns=["", "this machine"]))


def _no_gpu(found: source.Machine) -> str:
    """That there is none; where there is a driver, the reader wants to know what is wrong with the GPU."""
    problem = machine.gpu_problem() if found.driver else None
    return f"none that CUDA can use: {problem}" if problem else "none"


def recorded_table() -> Table:
    """Where the recorded runs come from, in short; ``provenance.json`` holds the rest."""
    source = recorded.provenance()
    versions = source["versions"]
    lines = {
        "GPU": f"{source['gpu']}, driver {source['driver']}",
        "CPU": f"{source['cpu_cores']} cores, {source['cpu']}",
        "software": f"Python {versions['python']}, torch {versions['torch']}, Nsight Systems {source['nsys']}",
        "digits": ", ".join(source["data_source"]),
        "measured": f"{source['recorded'][:10]}, {source['repetitions']} runs of each step, in turn",
        "commits": ", ".join(sorted({commit[:12] for commits in source["commits"].values() for commit in commits})),
        "made by": source["made_by"],
    }
    where = recorded.shown(recorded.folder() / "provenance.json")
    return table(pd.DataFrame(lines.items(), columns=["", where]))
