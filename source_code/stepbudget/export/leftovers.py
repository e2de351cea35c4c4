"""What did a killed process leave? Its scratch folders; whoever makes the next ones takes the old ones away."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

OLD_S = 24 * 3600.0  # nothing that is measured or exported takes so long


def sweep(folder: Path, prefix: str) -> None:
    """Remove the folders in ``folder`` that begin so and that nobody has touched for OLD_S. Links stay, and so does all
    that cannot be removed."""
    with suppress(OSError):
        for left in folder.glob(f"{prefix}*"):
            with suppress(OSError):  # gone meanwhile, or somebody else's
                if left.is_dir() and not left.is_symlink() and time.time() - left.stat().st_mtime > OLD_S:
                    shutil.rmtree(left, ignore_errors=True)
