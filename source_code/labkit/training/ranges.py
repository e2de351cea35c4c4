"""What is a phase of a step called in the profile? NVTX ranges, which exist only under --profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

_on = False  # a timed run carries no ranges


def switch(on: bool) -> None:
    """Ranges from now on, or none; a CPU build of PyTorch has no NVTX."""
    global _on
    _on = on and torch.version.cuda is not None


def phase(name: str) -> AbstractContextManager[None]:
    """An NVTX range around a ``with`` block: a named bar in Nsight Systems' timeline. Nothing at all in a timed run."""
    return _nvtx_range(name) if _on else nullcontext()


@contextmanager
def _nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def loading(loader: Iterable) -> Iterator:
    """The loader's batches, with an NVTX range around each wait for one; the first holds the start of the workers."""
    end = object()
    batches = None
    while True:
        with phase("data loading"):
            batches = iter(loader) if batches is None else batches
            batch = next(batches, end)
        if batch is end:
            return
        yield batch
