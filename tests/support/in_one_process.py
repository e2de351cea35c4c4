"""Notebooks run live on pretended machines, one after the other in one process, without Jupyter: imports cost once."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

# Triton is imported once for all labs, to interpret, as lab 10 imports it by itself where there is no GPU.
AS_IF = {"LAB_MODE": "live", "LAB_LIVE": "quick", "MPLBACKEND": "Agg", "TRITON_INTERPRET": "1"}
_drawn: set[str] = set()  # fingerprints of pictures
_reports: dict[bytes, object] = {}  # by the content of their files
_numbers: dict[tuple[int, ...], tuple] = {}  # read of the page's objects, which they hold on to


def begin(scratch: str) -> None:
    """In the new process, before anything of the course is imported; what the notebooks leave lies in ``scratch``.

    Loader workers hand tensors over by sockets in there. With too long a path they would fail, and the loop would wait
    for them for ever (Linux: 108 letters, of which multiprocessing's own names take 33).
    """
    assert len(scratch) <= 75, scratch
    os.environ |= AS_IF | {"TMPDIR": scratch}
    tempfile.tempdir = scratch
    for name in ("LAB_REPEATS", "LAB_RECORDED"):
        os.environ.pop(name, None)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 – as long as the process lives


def run(machine: str, files: Sequence[Path]) -> dict[str, dict]:
    """What ``labkit.recording.live_check.run_lab`` says of each notebook on a machine, by its name.

    And of each cell what it ``asked`` for: how long each of its runs took on the recorded machine, in seconds.
    """
    import matplotlib.pyplot as plt

    from labkit.display import show
    from labkit.pretend import machines
    from labkit.recording.live_check import run_lab
    from labkit.source import door, kinds
    from labkit.source.pace import Pace
    from stepbudget.report import Report

    class Listening(Pace):
        """Notes what is asked for, for each cell."""

        def begin(self, so_far: dict) -> None:
            self.asked = self.of_cells.setdefault(so_far.get("running"), [])

        def announcement(self, expected: Iterable[float | None]) -> str | None:
            self.asked += (expected := list(expected))
            return super().announcement(expected)

    show._png, show.display = laid_out, lambda bundle, raw, metadata: print(bundle["text/plain"])
    kinds.open_report, Report.close = opened, lambda report: None
    found = {}
    live = machines.live(machine)
    live.pace = Listening()
    with door.using(live):
        for file in files:
            live.pace.of_cells = {}
            found[file.stem] = run_lab(file, stop_at=inf, say=lambda line: None, keep=live.pace.begin)
            for cell in found[file.stem]["cells"]:
                cell["asked"] = live.pace.of_cells[cell["cell"]]
            plt.close("all")
    return found


def run_recorded(files: Sequence[Path]) -> dict[str, dict]:
    """The same in recorded mode, as a reader without a GPU opens them; ``opened``: the recorded files that it read.

    ``tried``: what became of its exercises (``solutions.tried``).
    """
    import matplotlib.pyplot as plt

    import solutions
    from labkit.display import show
    from labkit.numbers import Quantity
    from labkit.recording.live_check import run_lab
    from labkit.source import kinds, originals
    from stepbudget.report import Report

    os.environ |= {"LAB_MODE": "recorded", "LAB_PREDICTIONS": "off"}
    show._png, show.display = laid_out, lambda bundle, raw, metadata: print(bundle["text/plain"])
    kinds.open_report, Report.close, Quantity.__call__ = opened, lambda report: None, read_once
    found = {}
    for file in files:
        originals._opened.clear()
        _numbers.clear()
        with solutions.tried(file) as tried:
            found[file.stem] = run_lab(file, stop_at=inf, say=lambda line: None)
        found[file.stem] |= {"opened": originals.opened(), "tried": tried}
        plt.close("all")
    return found


def laid_out(figure) -> str:
    """In the place of a PNG: all that drawing does but its pixels, once for each picture; nbval draws them whole."""
    from labkit.display.fingerprint import drawn_data

    picture = drawn_data(figure)
    if picture not in _drawn:
        figure.draw_without_rendering()
        _drawn.add(picture)
    return ""


def read_once(quantity, *about: object) -> float:
    """A number of what a question is about, as it is; the usual wrong answers are arithmetic on the same one."""
    key = (id(quantity), *map(id, about))
    if key not in _numbers:
        _numbers[key] = quantity.read(*about), quantity, about
    return _numbers[key][0]


def opened(path: Path):
    """A report as ``stepbudget.report.open_report`` gives it; what lies in two files alike is read once."""
    from stepbudget.report import open_report

    export = path.with_suffix(".sqlite") if path.suffix == ".nsys-rep" else path
    content = hashlib.sha256(export.read_bytes()).digest()
    if content not in _reports:
        _reports[content] = open_report(path)
    return _reports[content]
