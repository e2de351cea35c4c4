"""``python3 traced.py TRACE SCRIPT …``: what PyTorch's profiler sees where Nsight Systems would look.

The script runs as it is; where it tells Nsight Systems to begin and to stop, PyTorch's profiler begins and stops
instead, and a range that it marks for Nsight is marked for PyTorch's profiler. It leaves ``TRACE`` (``.json`` or
``.json.gz``), or one for each rank: ``NAME-0.json``. It imports nothing of the course, so any program may be traced.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from contextlib import nullcontext
from pathlib import Path


def main() -> None:
    """Run the script of the command line; SystemExit, with one sentence, where it never let the profiler look."""
    import torch

    trace, script, *flags = sys.argv[1:]
    if rank := os.environ.get("RANK"):
        name, dot, ending = Path(trace).name.partition(".json")
        trace = str(Path(trace).with_name(f"{name}-{rank}{dot}{ending}"))
    profiler = torch.profiler.profile(record_shapes=True)
    told = {"start": 0, "stop": 0}  # only the first stretch is recorded, as by --capture-range-end stop

    def start() -> None:
        told["start"] += 1
        if told["start"] == 1:
            profiler.start()

    def stop() -> None:
        told["stop"] += told["start"] > 0
        if told["stop"] == 1:
            profiler.stop()
            profiler.export_chrome_trace(trace)

    torch.cuda.profiler.start, torch.cuda.profiler.stop = start, stop
    opened = threading.local()  # a thread's ranges, the innermost last

    def push(name: str) -> None:
        opened.ranges = [*getattr(opened, "ranges", []), torch.profiler.record_function(name)]
        opened.ranges[-1].__enter__()

    torch.cuda.nvtx.range_push = push
    torch.cuda.nvtx.range_pop = lambda: opened.ranges.pop().__exit__(None, None, None)
    torch.autograd.profiler.emit_nvtx = lambda *args, **more: nullcontext()  # the profiler records operators anyway
    sys.argv = [script, *flags]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if told["start"] and not told["stop"]:
            stop()
    if not told["start"]:
        sys.exit("the program never called torch.cuda.profiler.start(), so PyTorch's profiler saw nothing")


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.argv[2]).resolve().parent)  # as where Python itself runs the script
    main()
