"""Where does what lie? The folders of the checkout; ``labkit`` is installed from it in editable mode.

What a reader makes lies in ``reports/``, or in the folder that ``LAB_REPORTS`` names: a class may share a checkout that
nobody but its teacher may write.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_CODE = ROOT / "source_code"
SHIPPED = ROOT / "reports"
RECORDED = SHIPPED / "recorded"
REPORTS = Path(os.environ.get("LAB_REPORTS") or SHIPPED).expanduser().absolute()
BENCHMARKS = SOURCE_CODE / "benchmarks"


def script(name: str) -> Path:
    """The file of a script: a step of the ladder lies in source_code/, what measures one small thing in benchmarks/."""
    return BENCHMARKS / name if (BENCHMARKS / name).is_file() else SOURCE_CODE / name


def typed(command: str) -> str:
    """A command as one types it at the top of the checkout: ``python3 source_code/main_opt1.py --epochs 3``."""
    name, *flags = command.split(" ", 1)
    return " ".join([f"python3 source_code/{script(name).relative_to(SOURCE_CODE).as_posix()}", *flags])


def words(command: str) -> list[str]:
    """A command's words as a shell reads them: a backslash at the end of a line joins it to the next."""
    return shlex.split(command.replace("\\\n", ""))


def at_home(words: Sequence[str]) -> list[str]:
    """The words of a command in which ``reports/NAME`` is the reader's own folder, wherever that lies."""
    if REPORTS == SHIPPED:
        return [*words]
    return [str(REPORTS / word.removeprefix("reports/")) if word.startswith("reports/") else word for word in words]
