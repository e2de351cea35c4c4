"""A trace of PyTorch's profiler made by hand: what the tests of its reader read.

    trace = SyntheticTrace(tmp_path / "tiny.json").step(0, 100).range(10, 40, "forward").launch(12, 20, 30, "sgemm")
    path = trace.write()

All times are microseconds after an origin, as a trace's clock begins anywhere.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

PID = MAIN = 4711
AUTOGRAD = 4712
ORIGIN_US = 4_800_981_210_989.5
H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}


class SyntheticTrace:
    """Collects events; each call returns the trace itself, ``write()`` returns the path."""

    def __init__(self, path: str | Path, **about) -> None:
        self.path = Path(path)
        self.about = {"schemaVersion": 1, "deviceProperties": [H200], **about}
        self.events: list[dict] = []
        self._correlation = 0

    def event(self, category: str, start: float, end: float, name: str, thread: int = MAIN, **arguments):
        """One complete event of a thread of the CPU."""
        place = {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": thread}
        self.events.append({**place, "ts": ORIGIN_US + start, "dur": round(end - start, 3), "args": arguments})
        return self

    def range(self, start: float, end: float, name: str, thread: int = MAIN):
        return self.event("user_annotation", start, end, name, thread)

    def step(self, start: float, end: float, number: int = 1):
        return self.range(start, end, f"ProfilerStep#{number}")

    def operator(self, start: float, end: float, name: str, thread: int = MAIN, **arguments):
        return self.event("cpu_op", start, end, name, thread, **arguments)

    def call(self, start: float, end: float, name: str, thread: int = MAIN, category: str = "cuda_runtime"):
        """A call to CUDA; what it asks for comes next, by ``work``."""
        self._correlation += 1
        return self.event(category, start, end, name, thread, correlation=self._correlation)

    def work(self, start: float, end: float, name: str, category: str = "kernel", device: int = 0, **arguments):
        """Work of the GPU that the last call asked for."""
        arguments = {"device": device, "stream": 7, "correlation": self._correlation, **arguments}
        self.event(category, start, end, name, 7, **arguments)
        self.events[-1]["pid"] = device
        return self

    def launch(self, at: float, start: float, end: float, name: str, thread: int = MAIN):
        """A kernel and its launch call, which takes 5 µs."""
        return self.call(at, at + 5, "cudaLaunchKernel", thread).work(start, end, name)

    def text(self) -> str:
        return json.dumps({**self.about, "traceEvents": self.events, "traceName": self.path.name}, indent=1)

    def write(self) -> Path:
        raw = self.text().encode()
        self.path.write_bytes(gzip.compress(raw) if self.path.suffix == ".gz" else raw)
        return self.path
