"""A large trace of PyTorch's profiler is streamed: memory stays far below the file's size, time grows with it.

    LAB_TRACE_MB=500 pytest tests/long/stepbudget/test_trace_size.py

tries one of that size (default: 100 MB).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from traces import SyntheticTrace

MB = int(os.environ.get("LAB_TRACE_MB", "100"))
MOST_MB = 1200  # of memory, pandas and the answer included; the file's size would be a multiple as Python's objects
MOST_S = 60 + MB / 4  # of processor time, on a machine that others keep busy
# What the kernel counts for a process that has ended includes its parent's memory before exec: another test's, here.
ANSWERED = """
import runpy, sys, time
from pathlib import Path
sys.argv[0] = "stepbudget"
try:
    runpy.run_module("stepbudget", run_name="__main__")
finally:
    peak_kb = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    print(peak_kb, time.process_time(), file=sys.stderr)
"""
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
SHAPES = {"Input Dims": [[64, 1024], [1024, 1024], [1024]], "Input type": ["float"] * 3, "Ev Idx": 7}


def large(file: Path) -> int:
    """Write a trace of MB megabytes, step after step, as PyTorch lays it out; the number of kernels."""
    kernels, at, number = 0, 0.0, 0
    with file.open("w") as out:
        out.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": [\n')
        while out.tell() < MB * 1e6:
            step = SyntheticTrace(file).step(at, at + 20_000, number)
            step._correlation = kernels
            for place in range(400):
                now = at + 1000 + 40 * place
                step.operator(now, now + 30, "aten::linear", **SHAPES).launch(now + 10, now + 18, now + 38, KERNEL)
                for depth in range(4):
                    step.event("python_function", now + depth, now + 39 - depth, f"torch/x.py({depth}): f")
            kernels, at, number = kernels + 400, at + 20_000, number + 1
            out.write("".join(json.dumps(event, indent=1) + ",\n" for event in step.events))
        out.write('{"ph": "i", "name": "Record Window End", "ts": 1}], "traceName": "large"}')
    return kernels


def test_a_large_trace_is_answered_in_little_memory(tmp_path):
    kernels = large(file := tmp_path / "large.json")
    process = subprocess.Popen(
        [sys.executable, "-c", ANSWERED, str(file), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    answer, said = process.communicate()
    assert process.returncode == 0, said
    found = json.loads(answer)
    assert sum(row["count"] for row in found["kernels"]) == kernels and found["steps"] == kernels / 400
    peak_kb, seconds = map(float, said.split()[-2:])
    assert peak_kb / 1e3 < MOST_MB
    assert seconds < MOST_S
