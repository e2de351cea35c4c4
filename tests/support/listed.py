"""The list of a recorded folder that a test made: without it nothing in the folder is read."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.source import originals


def write_list(folder: Path, **about: object) -> None:
    """Write ``provenance.json``, with the checksum of each file as it is now."""
    sums = {file.relative_to(folder).as_posix(): originals.checksum(file) for file in folder.glob("*/*")}
    day = "2030-01-02T03:04:05+00:00"
    told = {"gpu": "NVIDIA Test GPU", "recorded": day, "finished": day, **about, "sha256": sums}
    (folder / originals.PROVENANCE).write_text(json.dumps(told))
