"""How long did a piece of work take? A clock that waits for the GPU, and the GPU's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def stopwatch(synchronize: Callable[[], None] = lambda: None) -> Iterator[list[float]]:
    """Seconds of a ``with`` block, appended to the list it yields; ``synchronize`` runs before both readings.

    GPU work is asynchronous: without ``synchronize=torch.cuda.synchronize`` a clock sees only the launches.
    """
    seconds: list[float] = []
    synchronize()
    start = time.perf_counter()
    yield seconds
    synchronize()
    seconds.append(time.perf_counter() - start)


def gpu_times(work: Callable[[], object], repeats: int, calls: int = 1) -> list[float]:
    """Seconds of GPU time of one call of ``work``, so many times, by CUDA events; after a warm-up.

    ``calls`` > 1: so many calls in one CUDA graph, launched at once, for work so short that its launch would be
    measured instead; the time is divided by them.
    """
    with torch.cuda.stream(torch.cuda.Stream()):  # where a capture wants its warm-up
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        launch = work
        if calls > 1:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    work()
            launch = graph.replay
        for _ in range(2):
            launch()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for start, end in events:
            start.record()
            launch()
            end.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 / calls for start, end in events]
