"""To paste into a training script of one's own: let Nsight Systems see a few steps, each beginning with its data.

    for batch in watched(loader):                       in place of: for batch in loader:
        with torch.cuda.nvtx.range("forward"):          and so on for "backward" and "optimizer"

nsys profile --capture-range cudaProfilerApi --capture-range-end stop … python3 train.py
"""

import torch


def watched(loader, skip=10, steps=10):
    """The loader's batches; a profiler sees ``steps`` of them after the first ``skip``, and they end there."""
    batches, cuda = iter(loader), torch.cuda
    for step in range(skip + steps):
        if step == skip:
            cuda.synchronize()
            cuda.profiler.start()
            cuda.nvtx.range_push("training")
        with cuda.nvtx.range("data"):
            batch = next(batches, None)
        if batch is None:
            break
        yield batch
    cuda.synchronize()
    cuda.nvtx.range_pop()
    cuda.profiler.stop()
