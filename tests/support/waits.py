"""How long do the labs wait, live, by what was recorded? Each lab's runs are answered at once, and their seconds added.

    python3 tests/support/waits.py        a line a lab, and each cell that waits

As a reader does them: one lab after another, quick, with the reports of the labs before, so that nothing is measured
twice. No program runs: what a lab asks for is replayed, as if it had been made here, now.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import in_one_process

COMMAND = re.compile(r"^\$ (\w+)", re.MULTILINE)
# A cell; what it types first: time, nsys, …; the seconds of each thing that it runs: of what nobody knows, None.
Wait = tuple[int, str, list[float | None]]


def waits(ran: Mapping[str, dict]) -> dict[str, list[Wait]]:
    """By lab, the cells that wait; ``ran``: as ``in_one_process.run`` gives it."""
    return {
        name: [(cell["cell"], kind_of(cell["said"]), cell["asked"]) for cell in lab["cells"] if cell["asked"]]
        for name, lab in ran.items()
    }


def kind_of(said: str) -> str:
    """What a cell types first, by what it said; nothing where it types nothing."""
    found = COMMAND.search(said)
    return found[1] if found else ""


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        in_one_process.begin(folder)
        import pages
        from labkit import course

        total_s = 0.0
        for name, cells in waits(in_one_process.run(course.DEFAULT_MACHINE, pages.FILES)).items():
            lab_s = sum(seconds or 0.0 for *_, each in cells for seconds in each)
            total_s += lab_s
            print(f"{name}: {lab_s:.0f} s, so far {total_s:.0f} s", file=sys.stderr)
            for number, kind, each in cells:
                said = " + ".join("?" if seconds is None else f"{seconds:.1f}" for seconds in each)
                print(f"    cell {number}, {kind}: {said}", file=sys.stderr)
