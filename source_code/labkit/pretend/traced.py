"""What would PyTorch's profiler have written of a program that Nsight Systems looked at? The same events as a trace.

Of a report its kernels, copies, fills, calls and ranges; no calls into the operating system and no counters, which a
trace never holds. A range of one operator is an operator, with its sizes where the report has them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stepbudget.report import Report

SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids|$)")
KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD"}  # of copies, as CUPTI numbers them
PLACES = ("Pageable", "Pinned", "Device", "Array", "Managed")


def trace(report: Report) -> dict:
    """The trace, as ``export_chrome_trace`` writes it."""
    gpus = [
        {"id": gpu, "name": name, "computeMajor": major, "computeMinor": minor}
        for gpu, name, major, minor in report.gpus.astype(object).itertuples(index=False, name=None)
    ]
    return {"schemaVersion": 1, "deviceProperties": gpus, "traceEvents": [*_events(report)]}


def _events(report: Report) -> Iterator[dict]:
    for number, call in enumerate(report.api.to_dict("records"), start=1):
        kind = "cuda_driver" if re.match("cu[A-Z]", call["name"]) else "cuda_runtime"
        yield _event(kind, call["name"], call, *_thread(call["thread"]), correlation=number)
    for one in report.kernels.to_dict("records"):
        node = {} if one["graph_node"] != one["graph_node"] else {"graph node id": int(one["graph_node"])}
        yield _work("kernel", one["name"], one, **node)
    for one in report.copies.to_dict("records"):
        places = " -> ".join(PLACES[one[f"{side}_kind"]] for side in ("source", "target"))
        yield _work("gpu_memcpy", f"Memcpy {KINDS[one['copy_kind']]} ({places})", one, bytes=one["bytes"])
    for one in report.memsets.to_dict("records"):
        yield _work("gpu_memset", "Memset (Device)", one, bytes=one["bytes"])
    for one in report.ranges.to_dict("records"):
        sizes = SIZES.search(one["raw_name"])
        about = {"Input Dims": ast.literal_eval(sizes[1])} if sizes else {}
        yield _event(
            "cpu_op" if one["operator"] else "user_annotation", one["name"], one, *_thread(one["thread"]), **about
        )


def _work(kind: str, name: str, row: dict, **about: object) -> dict:
    about |= {"device": row["device"], "stream": row["stream"], "correlation": row["call"] + 1}
    return _event(kind, name, row, row["device"], row["stream"], **about)


def _event(kind: str, name: str, row: dict, process: int, thread: int, **about: object) -> dict:
    times = {"ts": row["start"] / 1e3, "dur": (row["end"] - row["start"]) / 1e3}
    return {"ph": "X", "cat": kind, "name": name, "pid": process, "tid": thread, **times, "args": about}


def _thread(number: int) -> tuple[int, int]:
    """Process and thread, as the system numbers them."""
    return number >> 24 & 0xFFFFFF, number & 0xFFFFFF
