"""Which flags do all scripts and benchmarks share? The file of the record, and numbers that make sense.

Needs no PyTorch: some benchmarks ask before it is imported.
"""

from __future__ import annotations

import argparse
import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import SOURCE_CODE
from labkit.training import ending

STEPS = sorted(file.name for file in SOURCE_CODE.glob("main_*.py"))


def script_parser(doc: str, what: str = "the results", **more: str) -> argparse.ArgumentParser:
    """The command line of a script that can keep ``what`` it found: ``--record FILE``; ``doc`` is its docstring.

    Whether FILE can be written is asked before anything is measured. From here on the script ends in one sentence.
    """
    ending.in_one_sentence()
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0], **more)
    parser.add_argument("--record", type=output, metavar="FILE", help=f"write {what}, one JSON object, to FILE")
    return parser


def output(text: str) -> str:
    """The path of a file that can be written, for argparse. Ranks that write nothing take any."""
    if os.environ.get("RANK", "0") != "0":
        return text
    try:
        return target(text)
    except LabError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def target(file: str) -> str:
    """Where a record goes that is to be written to ``file``: a symbolic link is followed now, not after the run.

    LabError where that would fail. Only a regular file is replaced: never a device, a pipe or a socket.
    """
    try:
        where = Path(os.path.realpath(file))
        what = _what_else(where) if file else "the name is empty"
        if what:
            raise LabError(f"cannot write a record into '{file}': {what}. Name a file.")
        with tempfile.TemporaryFile(dir=where.parent):
            pass
        with suppress(FileNotFoundError):
            where.stat()  # a name that no system takes: exists() says nothing of it from Python 3.14 on
            if not os.access(where, os.W_OK):
                raise PermissionError(errno.EACCES, "it is write-protected")
    except (OSError, ValueError) as error:
        raise LabError(f"cannot write a record into {file}: {getattr(error, 'strerror', None) or error}.") from error
    return str(where)


def _what_else(file: Path) -> str | None:
    """What lies there if it is no regular file; None for one, and where nothing lies."""
    kinds = {
        "it is a folder": Path.is_dir,
        "it is a device": lambda file: file.is_char_device() or file.is_block_device(),
        "it is a named pipe": Path.is_fifo,
        "it is a socket": Path.is_socket,
        "it is a symbolic link that leads nowhere": Path.is_symlink,
    }
    return next((kind for kind, is_it in kinds.items() if is_it(file)), None)


def at_least(smallest: int) -> Callable[[str], int]:
    """A whole number that is not less, for argparse."""

    def integer(text: str) -> int:
        value = int(text)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"{value} is less than {smallest}")
        return value

    return integer


def positive(text: str) -> float:
    """A number above 0, for argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
