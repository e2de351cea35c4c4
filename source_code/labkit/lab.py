"""The face that the notebooks see: what a lab does, in some twenty verbs, each a thin layer over the rooms of labkit.

    import stepbudget as sb
    from labkit import lab

    lab.start(2)
    report = lab.profile("nsys profile … python3 source_code/main_baseline_nvtx.py --profile --epochs 2")
    sb.phases(report)

All else a notebook imports from its room: ``stepbudget`` questions a report, ``labkit.display.charts`` draws runs and
reports, ``labkit.labs`` has what one lab alone needs, ``labkit.subjects`` what several share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from labkit import checks, course, exercises, labs, predictions, source, without_torch
from labkit.display.diffs import diff
from labkit.display.listing import listing
from labkit.display.printed import bring_rules
from labkit.display.runs import epoch_ms
from labkit.display.show import show
from labkit.labs import check, predict
from labkit.lines import say
from labkit.source import kinds, quick
from labkit.subjects.ladder import WallClock, wall_clock_table
from stepbudget.ncu.counters import Counted
from stepbudget.report import Report
from stepbudget.show import answers

__all__ = [
    "benchmark", "check", "cold_run", "count", "diff", "epoch_ms", "exercise", "finish", "listing", "predict",
    "profile", "runs", "scoreboard", "show", "start", "wall_clock",
]  # fmt: skip


def start(number: int | None = None) -> None:
    """Lab ``number`` begins: say in one line where the numbers of this notebook come from."""
    checks.begin()
    labs.begin(number)
    predictions.begin(number)
    without_torch.begin()
    warnings.filterwarnings("ignore", "CUDA initialization")  # of a driver too old, said once: by the doctor
    answers.teach(course.TREATED_IN)
    say(source.current().greeting)
    bring_rules()


def finish() -> None:
    """A lab's end: what differed here from what it expects, and how good the reader's predictions were."""
    checks.finish()
    predictions.finish()


def runs(
    commands: Sequence[str], repeats: int | None = None, when_quick: int | Mapping[str, int] = quick.ROUNDS
) -> dict[str, list[dict]]:
    """Whole-process runs of each command (a script of source_code/ with its flags), in turn; their records.

    Live, so often: ``repeats``, else 3, in quick mode ``when_quick`` (1 does for the points of a sweep), or for each
    command what it says there, else 2; 0 leaves it out.
    """
    return source.current().get(kinds.runs(commands, repeats, when_quick=when_quick))


def wall_clock(*commands: str | Mapping[str, Sequence[dict]], in_turn: bool = True) -> WallClock:
    """Whole-process runs of each command, and the table of their seconds; the first is the baseline.

    Instead of commands, one mapping: step's name → records that are there already. Of the answer, ``runs`` holds the
    records of each command. ``in_turn=False`` is for alternatives, which do not build on one another; live
    and quick, each that is no step of the ladder runs once.
    """
    if len(commands) == 1 and isinstance(commands[0], Mapping):
        return wall_clock_table(commands[0], in_turn)
    steps = {step.script for step in course.STEPS}
    when_quick = {one: quick.ROUNDS if in_turn or one in steps else 1 for one in commands}
    return wall_clock_table(runs(commands, when_quick=when_quick), in_turn)


def scoreboard(report: Report) -> None:
    """Where the story stands, in one line: how long the window lasts, how busy the GPU is, what holds it up most."""
    found = answers.budget(report)
    whole_ms = found.window.duration_ms
    cause = max(found.ms, key=found.ms.__getitem__)
    busy, largest = (100 * ms / whole_ms for ms in (whole_ms - found.idle_ms, found.ms[cause]))
    say(
        f"Now: {whole_ms / 1e3:,.3g} s of {found.window.name}, GPU busy {busy:.0f} %. "
        f"Largest share: {found.label(cause)}, {largest:.0f} %."
    )


def cold_run(command: str) -> dict:
    """The record of one whole-process run whose compilers find nothing that they made before."""
    return source.current().get(kinds.cold_run(command))


def benchmark(command: str) -> list[dict]:
    """The records of a benchmark script (``bench_….py`` with its flags)."""
    return source.current().get(kinds.benchmark(command))


def profile(command: str, show: Callable[[str], None] = print) -> Report:
    """The report of an ``nsys profile`` command, which is shown with ``show``."""
    return source.current().get(kinds.profile(command, labs.on_nsight()), show)


def count(command: str, brief: bool = False, same_kernels: Counted | None = None) -> Counted:
    """What an ``ncu`` command counted; ``brief``: without showing the command.

    ``same_kernels``: what was counted of a program whose kernels are the same; quick live mode takes that.
    """
    return source.current().get(kinds.counts(command, brief, same_kernels))


def exercise(number: str, answer: object, *context: object) -> None:
    """Check the answer to an exercise and print what is wrong with it, if anything.

    ``None`` is no answer yet, ``"hint"`` asks for a hint.
    """
    exercises.exercise(number, answer, *context)
