"""Why is the first epoch longer than the others, even behind a warm-up? So much in it happens for the first time.

CUDA loads a kernel when it is first launched ("CUDA C++ Programming Guide", Lazy Loading), and a graph goes to the GPU
with its first launch: some milliseconds, which is much beside an epoch of twenty. So a whole epoch is rehearsed, with
shuffling, reading back and all, and then everything is put back as it was.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import torch

from labkit.training.run import Run


def epochs(run: Run, *state: object) -> Iterator[int]:
    """``run.epochs()``; on a GPU a 0 comes before them, the epoch of the ``dress_rehearsal``."""
    if run.cuda:
        with dress_rehearsal(run, *state):
            yield 0
    yield from run.epochs()


@contextmanager
def dress_rehearsal(run: Run, *state: object) -> Iterator[None]:
    """Let an epoch be played that leaves no trace: its lines and records go nowhere, its seconds to the warm-up.

    ``state``: the tensors that it changes, or objects that have them as attributes (``Weights``); each is put back in
    its place, bit for bit. So are the states of the random generators, those that a captured graph draws from, too.
    """
    found = [one for thing in state for one in ([thing] if isinstance(thing, torch.Tensor) else vars(thing).values())]
    tensors = [one.detach() for one in found if isinstance(one, torch.Tensor)]
    with run.warming_up():
        before = [tensor.clone() for tensor in tensors]
        records, run.epoch_records = run.epoch_records, [{}]
        try:
            with torch.random.fork_rng([run.device] if run.cuda else []), redirect_stdout(io.StringIO()):
                yield
        finally:
            run.epoch_records = records
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
