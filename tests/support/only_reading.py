"""Notebooks run in recorded mode where only what ``make read`` installs is there, and nothing that only Linux has."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import in_one_process

# What `make lab` and `make test` install beside it, and modules of Python that macOS or Windows lack.
OTHERS = ("torch", "torchvision", "triton", "mlxtend", "pynvml", "keras", "jax", "tensorflow", "hypothesis", "sklearn")
ONLY_LINUX = ("resource", "fcntl", "termios", "pwd", "grp", "syslog")


class Without(PathFinder):
    """Finds all but these packages."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.partition(".")[0] in OTHERS else super().find_spec(fullname, path, target)


def begin(scratch: str) -> None:
    """In the new process, before anything of the course is imported."""

    in_one_process.begin(scratch)
    os.environ["LAB_MODE"] = "recorded"
    sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
    sys.modules |= dict.fromkeys(ONLY_LINUX)
    del os.sched_getaffinity


def run(files: Sequence[Path]) -> dict[str, dict]:
    """Each notebook's ``error``, if any, and which of its cells were ``left_out``, by the notebook's name."""
    from labkit.display import show
    from labkit.source import kinds
    from stepbudget.report import Report

    show._png, show.display = in_one_process.laid_out, lambda bundle, raw, metadata: None
    kinds.open_report, Report.close = in_one_process.opened, lambda report: None
    return {file.stem: _run(file) for file in files}


def _run(file: Path) -> dict:
    import matplotlib.pyplot as plt
    from IPython.core.interactiveshell import InteractiveShell

    from labkit.without_torch import SENTENCE

    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    shell, left_out, error = InteractiveShell.instance(), [], None
    os.chdir(file.parent)
    for at, cell in enumerate(cells):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            result = shell.run_cell("".join(cell["source"])) if cell["cell_type"] == "code" else None
        if result is not None and not result.success:
            error = f"cell {at}: {said.getvalue()}"
            break
        if SENTENCE in said.getvalue():
            left_out.append(at)
    InteractiveShell.clear_instance()
    plt.close("all")
    return {"error": error, "left_out": left_out, "cells": len(cells)}
