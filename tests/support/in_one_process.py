"""Run notebooks live one after the other in this process, without Jupyter: imports are paid for once.

    python3 tests/support/in_one_process.py OUT.json labs/01_introduction.ipynb …

OUT.json holds what ``labkit.recording.live_check.run_lab`` says of each, by its name.
"""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path

import matplotlib.pyplot as plt

from labkit.recording.live_check import run_lab
from labkit.training.record import write_json


def main() -> None:
    out, *files = (Path(word).resolve() for word in sys.argv[1:])
    found = {}
    for file in files:
        found[file.stem] = run_lab(file, stop_at=inf, say=lambda line: None)
        plt.close("all")
        write_json(out, found)


if __name__ == "__main__":
    main()
