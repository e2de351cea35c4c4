"""Which GPU counters were sampled, and what did they read? Nsight Systems' GPU metrics, in either of their two forms.

Exports from 2024 on hold them in ``GPU_METRICS``, a row a sample and counter. Older ones hold JSON in
``GENERIC_EVENTS``, a row a sample, in which every value is a text.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from stepbudget.errors import ReportError
from stepbudget.export.sqlite import Export

COLUMNS = ["time", "counter", "value", "device"]
_SAMPLE = np.dtype([("time", np.int64), ("value", np.float64)])

# The lowest byte of a counter's type id is the GPU's number. Rows may come in any order.
_SAMPLES = """
SELECT {time}, value FROM GPU_METRICS WHERE typeId = :type AND metricId = :metric AND {time} IS NOT NULL
"""
_NAMES = "SELECT DISTINCT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS WHERE metricName LIKE ?"

# In the JSON form the names of the counters stand in the type, the samples in the events; ETW and others share the
# tables. A slash is written with a backslash before it.
_JSON_TYPES = """
SELECT type.typeId, type.data
FROM GENERIC_EVENT_TYPES AS type JOIN GENERIC_EVENT_SOURCES AS source ON source.sourceId = type.sourceId
WHERE source.data LIKE '%GpuMetrics%'
"""
_JSON_SAMPLES = """
SELECT {time}, json_extract(data, :path) FROM GENERIC_EVENTS WHERE typeId = :type AND {time} IS NOT NULL
"""


def names(export: Export) -> list[str]:
    """The counters' names, as NVIDIA spells them; empty where none were sampled."""
    if export.has("GPU_METRICS", "TARGET_INFO_GPU_METRICS"):
        return sorted({str(name) for _, _, name in export.rows(_NAMES, ("%",))})
    return sorted({name for _, counters in _json_types(export) for name in counters})


def samples(export: Export, name: str) -> pd.DataFrame:
    """Samples of the counters whose name holds ``name``.

    Columns: time (ns, the export's own clock), counter, value, device (number of the GPU), in order of time.
    """
    if export.has("GPU_METRICS", "TARGET_INFO_GPU_METRICS"):
        query = _SAMPLES.format(time=_time(export, "GPU_METRICS"))
        types = export.rows(_NAMES, (f"%{name}%",))
        asked = [(type_id, str(counter), {"metric": metric}) for type_id, metric, counter in types]
    else:
        query = _JSON_SAMPLES.format(time=_time(export, "GENERIC_EVENTS"))
        asked = [
            (type_id, counter, {"path": f'$."{counter}"'})
            for type_id, counters in _json_types(export)
            for counter in counters
            if name.lower() in counter.lower()
        ]
    parts = []
    for type_id, counter, of in asked:
        try:
            rows = np.fromiter(export.stream(query, {"type": type_id, **of}), dtype=_SAMPLE)
            part = {"time": rows["time"], "counter": counter, "value": rows["value"], "device": type_id & 255}
            if not np.isfinite(part["value"]).all():
                raise ValueError("a number that is none")
        except (TypeError, ValueError, OverflowError) as error:
            what = f"a sample of '{counter}' is no number"
            raise ReportError(f"{export.path.name} is damaged: {what}. Record or export it again.") from error
        parts.append(pd.DataFrame(part, columns=COLUMNS))
    found = pd.concat([part for part in parts if len(part)] or [pd.DataFrame(columns=COLUMNS)])
    return found.sort_values("time", kind="stable", ignore_index=True)


def _json_types(export: Export) -> list[tuple[int, list[str]]]:
    """The types of GPU metrics, and the counters of each."""
    if not export.has("GENERIC_EVENTS", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_SOURCES"):
        return []
    found = []
    for type_id, data in export.rows(_JSON_TYPES):
        try:
            fields = json.loads(data)["Fields"]
            found.append((int(type_id), [str(field["Name"]) for field in fields]))
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            what = "the names of its GPU metrics cannot be read"
            raise ReportError(f"{export.path.name} is damaged: {what}. Record or export it again.") from error
    return found


def _time(export: Export, table: str) -> str:
    """The column of a sample's time: in the JSON form ``timestamp`` is empty, and ``rawTimestamp`` on the clock."""
    return export.column(table, "timestamp", "rawTimestamp")
