"""How is a notebook's cell profiled? ``%load_ext stepbudget``, then ``%%stepbudget`` above a script.

The cell's text is a script of its own: it runs in a process of its own, in the notebook's folder, and knows nothing of
the notebook's variables.
"""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from stepbudget.ask.budget import budget
from stepbudget.errors import ReportError, printable
from stepbudget.export import nsys, profile
from stepbudget.report import open_report
from stepbudget.show import files, page, pictures, summary, terminal


@dataclass(frozen=True)
class Answer:
    """What a report says, as a notebook shows it: HTML, or text elsewhere."""

    text: str
    html: str
    found: dict  # stepbudget.show.summary's object

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def load_ipython_extension(shell: object) -> None:
    """Make ``%%stepbudget`` known to a notebook (IPython's InteractiveShell, which nothing here imports)."""
    shell.register_magic_function(stepbudget, "cell", "stepbudget")


def stepbudget(line: str, cell: str) -> Answer | None:
    """Profile this cell's script with Nsight Systems and show where its time goes.

    %%stepbudget [options]

    The cell is a script: imports and all. Its output is shown as it comes. Options:

    --range NAME    an NVTX range to look at (default: 'training' where there is one, else the whole capture)
    --occurrence N  its N-th occurrence
    --gpu N         number of the card
    --capture       record only from the script's cudaProfilerStart to its cudaProfilerStop
    --keep FILE     keep the report as FILE, which ends in .nsys-rep
    --nsys FLAGS    more flags for nsys profile, in quotes
    --args WORDS    the script's arguments, in quotes
    """
    asked = _options(line)
    if asked is None:
        return None
    found = nsys.need_nsys()
    keep = Path(asked.keep or "cell.nsys-rep").expanduser()
    with tempfile.TemporaryDirectory(prefix="stepbudget-cell-") as scratch:
        script, report = Path(scratch) / "cell.py", Path(scratch) / keep.name
        script.write_text(cell, encoding="utf-8")
        program = [sys.executable, str(script), *_words("--args", asked.args)]
        words = profile.command(found, report, program, _words("--nsys", asked.nsys), asked.capture)
        # As if it lay in the notebook's folder: its modules are found.
        beside = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
        with files.draft(keep) if asked.keep else nullcontext() as kept:  # what is wrong with it is said before the run
            profile.record(words, report, found, _show, environment={"PYTHONPATH": beside})
            if kept:
                shutil.copyfile(report, kept)
        return answer(nsys.export(report), asked.range, asked.occurrence, asked.gpu)


def _show(line: str) -> None:
    print(printable(line))


def answer(path: Path, name: str | None = None, occurrence: int = 1, gpu: int | None = None) -> Answer:
    """The answer of a report about a range, as a notebook shows it; ReportError as ``open_report`` and ``window``."""
    with open_report(path) as report:
        window = report.window(name, occurrence, gpu)
        own = budget(report, window, gpu)
        found = summary.summary(report, window, own)
        lines = "\n".join(terminal.answer(found))
        found = summary.plain(found)
        return Answer(lines, page.fragment(found, [pictures.draw(report, own)]), found)


class _Parser(argparse.ArgumentParser):
    """Raises where a command line would end the process."""

    def error(self, message: str) -> None:
        raise ReportError(f"%%stepbudget: {printable(message)}. See %%stepbudget --help.")


def _options(line: str) -> argparse.Namespace | None:
    """The options of a cell's first line; None where only help was asked for."""
    parser = _Parser(prog="%%stepbudget", add_help=False, allow_abbrev=False)
    for option in ("--range", "--keep", "--nsys", "--args"):
        parser.add_argument(option)
    parser.add_argument("--occurrence", type=int, default=1)
    parser.add_argument("--gpu", type=int)
    parser.add_argument("--capture", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    asked = parser.parse_args(_words("%%stepbudget", line))
    if asked.help:
        print(inspect.cleandoc(stepbudget.__doc__))
        return None
    if asked.keep and not asked.keep.endswith(".nsys-rep"):
        parser.error(f"argument --keep: {asked.keep} does not end in .nsys-rep")
    return asked


def _words(option: str, text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise ReportError(f"%%stepbudget: {option} cannot be read: {error}.") from error
