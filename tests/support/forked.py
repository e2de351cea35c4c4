"""Python programs as processes that are forked where PyTorch is imported already: a start costs 3 CPU seconds less.

A program finds its words, variables and folder, and of the course nothing imported, as after ``python3 PROGRAM …``.
Those who look at a process from outside, or end it, want one that was really started.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "torchvision"])


def run(words: Sequence[object], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess:
    """What became of ``python3 WORDS``, one thread a program: status, and what it said."""
    return ranks(1, words, environment)[0]


def ranks(
    count: int, words: Sequence[object], environment: Mapping[str, str] = os.environ
) -> list[subprocess.CompletedProcess]:
    """What became of so many processes that train together, as those that torchrun starts; alone, one is no rank."""
    with ExitStack() as until_all_ended:
        scratch = Path(until_all_ended.enter_context(tempfile.TemporaryDirectory()))
        shared = _meeting_point(count) if count > 1 else {}
        started: list[tuple[BaseProcess, Path]] = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
            said = scratch / str(rank)
            about = ([str(word) for word in words], {**environment, **shared, **own}, str(Path.cwd()), said)
            started.append((FORKING.Process(target=_program, args=about), said))
            started[-1][0].start()
            until_all_ended.callback(started[-1][0].kill)
        for process, _ in started:
            process.join()
        return [_ended(words, process, said) for process, said in started]


def _meeting_point(count: int) -> dict[str, str]:
    """What torchrun tells its ranks, whose store this process is."""
    from torch.distributed import TCPStore

    _stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_stores[-1].port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return where | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}


_stores: list[object] = []


def _program(words: list[str], environment: dict[str, str], folder: str, said: Path) -> None:
    import torch

    for stream, end in ((1, ".out"), (2, ".err")):
        file = os.open(said.with_suffix(end), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ |= environment
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def _ended(words: Sequence[object], process: BaseProcess, said: Path) -> subprocess.CompletedProcess:
    out, err = (said.with_suffix(end).read_text() for end in (".out", ".err"))
    return subprocess.CompletedProcess(words, process.exitcode, out, err)
