"""Run a script with one thing changed, also under torchrun: ``python3 altered.py CHANGE SCRIPT …``.

CHANGE: ``no-dropout``, ``dying-once``, ``failing``, or ``out-of-memory`` of the process that is sent SIGUSR1.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F


def no_dropout() -> None:
    F.dropout = lambda x, *_, **__: x


def dying_once() -> None:
    """No dropout; and rank 1 is killed in the second epoch, or in the transformer's step, unless torchrun restarted it.

    The second epoch is the first call of the loss after ``--checkpoint`` was written. Restarted, it comes last, so that
    rank 0 has looked for it in the meantime.
    """
    no_dropout()
    if os.environ["RANK"] != "1":
        return
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") != "0":
        time.sleep(3)
        return
    kept = Path(sys.argv[sys.argv.index("--checkpoint") + 1])

    def killed(loss):
        def broken(*args: torch.Tensor, **more: object) -> torch.Tensor:
            if kept.is_file() or any(kept.glob("*/.metadata")):
                os.kill(os.getpid(), signal.SIGKILL)
            return loss(*args, **more)

        return broken

    F.nll_loss, F.cross_entropy = killed(F.nll_loss), killed(F.cross_entropy)


def failing() -> None:
    """Rank 1's first loss raises."""
    loss = F.nll_loss

    def broken(*args: torch.Tensor, **more: object) -> torch.Tensor:
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank 1 was planted to fail")
        return loss(*args, **more)

    F.nll_loss = broken


def out_of_memory() -> None:
    """From SIGUSR1 on the GPU is full, as PyTorch says it."""
    loss, heard = F.nll_loss, []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))

    def full(*args: torch.Tensor, **more: object) -> torch.Tensor:
        if heard:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss(*args, **more)

    F.nll_loss = full


if __name__ == "__main__":
    how, *sys.argv = sys.argv[1:]
    {"no-dropout": no_dropout, "dying-once": dying_once, "failing": failing, "out-of-memory": out_of_memory}[how]()
    runpy.run_path(sys.argv[0], run_name="__main__")
