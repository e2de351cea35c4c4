"""Where does matplotlib keep its settings and its list of fonts, where the user's home cannot be written?

It would warn in the middle of a cell, and look for all fonts again in each notebook.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "MPLCONFIGDIR"


def choose() -> None:
    """Name a folder by ``MPLCONFIGDIR`` where neither the reader did nor matplotlib's own can be used."""
    if not os.environ.get(VARIABLE) and not all(map(_is_ours, _usual())):
        folder = Path(tempfile.gettempdir()) / f"gpu-performance-lab-matplotlib-{os.getuid()}"
        if _is_ours(folder) and folder.stat().st_uid == os.getuid():  # nobody else put it there
            os.environ[VARIABLE] = str(folder)


def _usual() -> list[Path]:
    """matplotlib's own folders, for settings and for caches."""
    kinds = (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 – Path.home() raises where there is none
    return [Path(os.environ.get(variable) or home / name) / "matplotlib" for variable, name in kinds]


def _is_ours(folder: Path) -> bool:
    """Can we write there? The folder is made if need be, as matplotlib would."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return folder.is_absolute() and os.access(folder, os.W_OK | os.X_OK)
