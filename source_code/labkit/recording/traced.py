"""``python3 -m labkit.recording.traced TRACE SCRIPT …``: what PyTorch's profiler sees where Nsight Systems would look.

The script runs as it is; where it tells Nsight Systems to begin and to stop, PyTorch's profiler begins and stops
instead, and a range that it marks for Nsight is marked for PyTorch's profiler. It leaves ``TRACE.json``, or one for
each rank: ``TRACE-0.json``.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    import torch

    trace, script, *flags = sys.argv[1:]
    profiler = torch.profiler.profile(record_shapes=True)

    def stop() -> None:
        profiler.stop()
        rank = os.environ.get("RANK")
        profiler.export_chrome_trace(f"{trace}.json" if rank is None else f"{trace}-{rank}.json")

    torch.cuda.profiler.start, torch.cuda.profiler.stop = profiler.start, stop
    opened: list[torch.profiler.record_function] = []

    def push(name: str) -> None:
        opened.append(torch.profiler.record_function(name))
        opened[-1].__enter__()

    torch.cuda.nvtx.range_push = push
    torch.cuda.nvtx.range_pop = lambda: opened.pop().__exit__(None, None, None)
    sys.argv = [script, *flags]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
