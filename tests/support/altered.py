"""Run a script with one thing changed, also under torchrun: ``python3 altered.py CHANGE SCRIPT …``.

CHANGE: ``no-dropout``, ``failing``, or ``out-of-memory`` of the rank that OUT_OF_MEMORY names.
"""

import os
import runpy
import sys

import torch
import torch.nn.functional as F


def no_dropout() -> None:
    F.dropout = lambda x, *_, **__: x


def failing() -> None:
    """Rank 1's first loss raises."""
    loss = F.nll_loss

    def broken(*args: torch.Tensor, **more: object) -> torch.Tensor:
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank 1 was planted to fail")
        return loss(*args, **more)

    F.nll_loss = broken


def out_of_memory(calls: int = 60) -> None:
    """After some epochs a rank's GPU is full, as PyTorch says it."""
    loss, left = F.nll_loss, iter(range(calls))

    def full(*args: torch.Tensor, **more: object) -> torch.Tensor:
        if os.environ.get("RANK", "0") == os.environ["OUT_OF_MEMORY"] and next(left, None) is None:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss(*args, **more)

    F.nll_loss = full


if __name__ == "__main__":
    how, *sys.argv = sys.argv[1:]
    {"no-dropout": no_dropout, "failing": failing, "out-of-memory": out_of_memory}[how]()
    runpy.run_path(sys.argv[0], run_name="__main__")
