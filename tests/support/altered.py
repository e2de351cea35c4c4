"""Run a script with one thing changed: ``python3 altered.py no-dropout|failing SCRIPT …``, also under torchrun."""

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


if __name__ == "__main__":
    how, *sys.argv = sys.argv[1:]
    {"no-dropout": no_dropout, "failing": failing}[how]()
    runpy.run_path(sys.argv[0], run_name="__main__")
