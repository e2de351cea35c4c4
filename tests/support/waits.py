"""How long do the labs wait, live, by what was recorded? Each lab's runs are answered at once, and their seconds added.

    python3 tests/support/waits.py        a line a lab, and each cell that waits

As a reader does them: one lab after another, quick, with the reports of the labs before, so that nothing is measured
twice. No program runs: what a lab asks for is replayed, as if it had been made here, now.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import in_one_process

COMMAND = re.compile(r"^\$ (\w+)", re.MULTILINE)
# A cell; what it types first: time, nsys, …; the seconds of each thing that it runs.
Wait = tuple[int, str, list[float | None]]


def waits(notebooks: Sequence[Path] = ()) -> Iterator[tuple[str, list[Wait]]]:
    """A lab's name, and the cells in which it waits; of seconds that nobody knows, None.

    Has to be asked in a process of its own, after ``in_one_process.begin``. ``notebooks``: all, in order, by default.
    """
    import matplotlib.pyplot as plt

    from labkit import course
    from labkit.display import show
    from labkit.paths import ROOT
    from labkit.pretend import machines
    from labkit.pretend.replay import Replay
    from labkit.recording import live_check
    from labkit.source import door
    from labkit.source.facts import torch_version
    from stepbudget.report import Report

    class JustMade(Replay):
        """The recorded machine, whose answers are of today's code and of this PyTorch."""

        def _keep(self, words: str, record: dict, file: Path) -> dict:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            made = super()._keep(words, record, file)
            made |= {"command": words, "status": "complete", "run_at": now, "manifest": {"modules": {}}}
            made |= {"gpu": self.facts.gpu, "cpu_cores": self.facts.cores}
            made["versions"] = made.get("versions", {}) | {"torch": torch_version()}
            file.write_text(json.dumps(made))
            return made

        def profile(self, words: Sequence[str], report: Path, show: Callable[[str], None]) -> None:
            super().profile(words, report, show)
            self._names_no_module()

        def count(self, words: Sequence[str], log: Path, show: Callable[[str], None]) -> None:
            super().count(words, log, show)
            self._names_no_module()

        def _names_no_module(self) -> None:
            """Any change of any module of ours leaves what was made current."""
            Path(os.environ["LAB_MANIFEST"], "modules-0.json").write_text("[]")

    asked: list[float | None] = []
    show._png, show.display = lambda figure: "", lambda bundle, raw, metadata: None  # no wait is in a picture
    door.open_report, Report.close = in_one_process.opened, lambda report: None
    live = machines.live(course.DEFAULT_MACHINE)
    live.programs = JustMade(course.DEFAULT_MACHINE)
    live.pace.announcement = asked.extend
    with door.using(live):
        for file in notebooks or [ROOT / "start_here.ipynb", *(lab.path for lab in course.LABS)]:
            cells, names = [], {"__name__": "__main__"}
            os.chdir(file.parent)
            for number, source in live_check.code_cells(file):
                asked.clear()
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    live_check.run_cell(source, names)
                if asked:
                    cells.append((number, kind_of(said.getvalue()), list(asked)))
            plt.close("all")
            yield file.stem, cells


def kind_of(said: str) -> str:
    """What a cell types first, by what it said; nothing where it types nothing."""
    found = COMMAND.search(said)
    return found[1] if found else ""


def of_all(scratch: str) -> dict[str, list[Wait]]:
    """All that ``waits`` has to say, for a process pool."""
    in_one_process.begin(scratch)
    return dict(waits())


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        in_one_process.begin(folder)
        total_s = 0.0
        for name, cells in waits():
            lab_s = sum(seconds or 0.0 for *_, each in cells for seconds in each)
            total_s += lab_s
            print(f"{name}: {lab_s:.0f} s, so far {total_s:.0f} s", file=sys.stderr)
            for number, kind, each in cells:
                said = " + ".join("?" if seconds is None else f"{seconds:.1f}" for seconds in each)
                print(f"    cell {number}, {kind}: {said}", file=sys.stderr)
