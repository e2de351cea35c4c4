"""On which machine were the recordings made?"""

from __future__ import annotations

from itertools import chain

import pandas as pd

from labkit.display.table import Table, table
from labkit.source import recorded


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
        "commits": f"{len({*chain.from_iterable(source['commits'].values())})}, named there",
        "made by": source["made_by"],
    }
    where = recorded.shown(recorded.folder() / "provenance.json")
    return table(pd.DataFrame(lines.items(), columns=["", where]))
