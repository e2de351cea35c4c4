"""Python programs as processes that are forked where PyTorch is imported already: a start costs 3 CPU seconds less.

A program finds its words, variables and folder, and of the course nothing imported, as after ``python3 PROGRAM …``.
Those who look at a process from outside, or end it, want one that was really started.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


def run(words: Sequence[object], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess:
    """What became of ``python3 WORDS``: its status, and what it said."""
    return _ended([words], [environment])[0]


def ranks(
    count: int, words: Sequence[object], environment: Mapping[str, str] = os.environ
) -> list[subprocess.CompletedProcess]:
    """What became of so many processes that train together, each told what torchrun tells a rank; one alone is none."""
    if count == 1:
        return [run(words, environment)]
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun's, where ranks meet
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _ended([words] * count, [{**environment, **shared, **one} for one in own])


def _ended(programs: list, environments: list) -> list[subprocess.CompletedProcess]:
    with tempfile.TemporaryDirectory() as scratch:
        said = [f"{scratch}/{number}" for number in range(len(programs))]
        wanted = [
            {"words": list(map(str, words)), "environment": dict(environment), "folder": str(Path.cwd()), "said": file}
            for words, environment, file in zip(programs, environments, said, strict=True)
        ]
        server = _server()
        print(json.dumps(wanted), file=server.stdin, flush=True)
        statuses = json.loads(server.stdout.readline())
        return [
            subprocess.CompletedProcess(words, status, Path(f"{file}.out").read_text(), Path(f"{file}.err").read_text())
            for words, status, file in zip(programs, statuses, said, strict=True)
        ]


@cache
def _server() -> subprocess.Popen:
    """The process that forks; it ends with the end of its input, so with this one."""
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.stdin.close)
    return server


def _serve() -> None:
    """Fork what is asked for, and say how it ended, until nobody asks; in a child, be the program."""
    for name in ("torch._dynamo", "torchvision"):
        importlib.import_module(name)
    for line in sys.stdin:
        children = []
        for wanted in json.loads(line):
            children.append(os.fork())
            if not children[-1]:
                return _become(**wanted)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
    return None


def _become(words: list[str], environment: dict[str, str], folder: str, said: str) -> None:
    for name, stream in ((os.devnull, 0), (f"{said}.out", 1), (f"{said}.err", 2)):
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
