"""Where does a result come from? From a run on this machine, or from what the course recorded: decided here, once.

``current()`` is the source that a notebook asks: ``Live`` runs the commands and says how long that takes, ``Recorded``
opens what a folder of ``reports/recorded/`` holds. Each answers any ``Request`` of ``labkit.source.kinds``, and shows
its commands as one would type them. What a machine cannot do at all (no GPU, no permission to count, Keras not
installed) comes from the recordings, with the reason.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path

from labkit import course, lines
from labkit.errors import LabError, NotHere, NotRecorded
from labkit.paths import REPORTS
from labkit.source import container, originals, quick, recorded, running
from labkit.source.command import check_writable
from labkit.source.facts import Machine, torch_version
from labkit.source.kinds import Answer, Job, Request, Result, count_of, counted_on
from labkit.source.pace import Pace, duration
from labkit.source.programs import Programs
from stepbudget.export.nsys import misnamed
from stepbudget.report import open_report

MODES = ("auto", "live", "recorded")
Show = Callable[[str], None]


@dataclass(frozen=True)
class Recorded:
    """What the course shipped with, measured on the machine that ``folder`` is named after; nothing runs."""

    folder: Path
    why: str = ""  # in sentences, where the reader may have wanted something else
    name = "recorded"

    @property
    def is_strict(self) -> bool:
        """Are these the course's own recordings, of which every sentence of the text must hold?"""
        return self.folder.name == recorded.DEFAULT

    @property
    def facts(self) -> Machine:
        """The machine that the results are from."""
        return recorded_machine(self.folder)

    @property
    def greeting(self) -> str:
        """In one line, where the numbers of a notebook come from."""
        where, cores = recorded.shown(self.folder), self.facts.cores
        gpu, day = recorded.origin(self.folder).split(", ", 1)
        gpu = gpu.partition(" 80GB")[0]  # a line is as wide as a page
        rest = f"unless a line says otherwise ({where}). {self.why}".rstrip()
        return f"Recorded mode: the numbers below are from an {gpu} with {cores} CPU cores, {day}, {rest}"

    def get(self, request: Request[Answer], show: Show = print) -> Answer:
        """What was recorded on this machine, or on the default one, and a line that says so."""
        _show_commands(request, show)
        nowhere = []
        first, *_ = folders = recorded.machines(self.folder)
        for where in folders:
            results = []
            try:
                for command in request.commands:
                    for file in request.find(command, where):
                        results.append(Result(command, file, recorded.record_of(file)))
                break
            except NotRecorded as error:
                nowhere.append(error)
        else:
            raise nowhere[0]
        if not results:
            show(f"{request.not_recorded} ({recorded.origin(where)})")
            return request.read(results)
        if where != first:
            show(f"| not recorded on {first.name}, so from {where.name}:")
        amount, file = request.amount(results), results[0].file
        at = recorded.shown(file if request.names_files else file.parent)
        origin = request.origin(where, [one.record for one in results])
        show(lines.wrapped(f"recorded ({origin}){amount and f', {amount}'}: {at}"))
        return request.read(results)


class Live:
    """The commands run on this machine, and what they leave lies in ``reports``.

    Timed runs that the same command, code and machine made are used again; in quick mode so is all else.
    """

    name, is_strict = "live", False

    def __init__(self, programs: Programs, reports: Path = REPORTS) -> None:
        self.programs, self.reports, self.pace = programs, reports, Pace()

    @property
    def facts(self) -> Machine:
        """This machine."""
        return self.programs.facts

    @property
    def greeting(self) -> str:
        """In one line, where the numbers of a notebook come from."""
        runs = f"{quick.EPOCHS} epochs, {count_of(quick.rounds())} of each"
        full = f"LAB_LIVE=full: {quick.FULL_EPOCHS} epochs, {count_of(quick.FULL_ROUNDS)}"
        again = "or one, and what was measured already is used again"
        how = f" Quick: what is timed trains {runs} {again} ({full})." if quick.is_quick() else ""
        traces = " Without nsys, PyTorch's profiler makes the profiles." if self.facts.traces else ""
        return f"Live: the commands run on this machine ({self.facts.gpu or 'no GPU: CPU phases only'}).{how}{traces}"

    def get(self, request: Request[Answer], show: Show = print) -> Answer:
        """What the commands leave that run now, or, where this machine cannot do it, what was recorded, and why."""
        if absent := self.programs.missing(*request.packages):
            how = f" ({request.install})" if request.install else ""
            show(f"recorded, since {' and '.join(absent)} cannot be imported here{how}")
            return Recorded(recorded.folder()).get(request, show)
        _show_commands(request, show)
        if request.same and request.same.origin == counted_on(self.facts.gpu) and quick.is_quick():
            name = request.jobs(self.facts)[0].files[0].removesuffix(".csv")
            show(f"live: {name}: the same kernels as before, not counted again, since quick")
            return request.same
        try:
            return request.read(self._made(request, show))
        except LabError as error:
            if not isinstance(error, NotHere) and (self.facts.gpu is not None or request.in_rounds):
                raise
            show(f"| recorded instead, since it cannot be measured here: {error}")
            return Recorded(recorded.folder()).get(replace(request, shown=()), show)

    def _made(self, request: Request, show: Show) -> list[Result]:
        """The results of all jobs: run now, but for those that are there, of the same command, code and machine."""
        jobs = request.jobs(self.facts)
        self._can_run(jobs)
        if left_out := [command for command in request.commands if command not in {job.command for job in jobs}]:
            show(f"| left out, since quick: {', '.join(left_out)}")
        used_again = jobs if request.in_rounds or quick.is_quick() else []
        there = {job.files[0]: record for job in used_again if (record := self._kept(job))}
        before, start = list(there.values()), time.monotonic()
        missing = [job for job in jobs if job.files[0] not in there]
        for folder in {(self.reports / job.files[0]).parent for job in missing}:
            check_writable(folder)
        if line := self.pace.announcement([job.expected_s for job in missing]):
            show(f"| {line}")
        for number, job in enumerate(missing, start=1):
            if job.said:
                so_far = f" ({duration(time.monotonic() - start)} so far)" if number > 1 else ""
                show(f"| run {number} of {len(missing)}: {job.said}{so_far}")
            there[job.files[0]] = self._run(job, show)
        results = [Result(job.command, self.reports / job.files[0], there[job.files[0]]) for job in jobs]
        amount, files = request.amount(results), [self.reports / name for name in jobs[0].files]
        at = files if request.names_files or len(files) > 1 else [files[0].parent]
        when = "" if request.in_rounds else "".join(map(_ago, before))
        amount += _made_before(before, len(jobs)) if request.in_rounds else ""
        show(f"live{when}: {amount and f'{amount}: '}{' '.join(map(recorded.shown, at))}")
        return results

    def _can_run(self, jobs: Sequence[Job]) -> None:
        """NotHere where this machine has too few GPUs, or where a script needs arithmetic that its GPU does not have,
        or is made for one generation of GPUs, and this is another."""
        gpu, wanted = self.facts.gpu, max(job.gpus for job in jobs)
        here = self.facts.gpus if gpu else 0
        if wanted > max(here, 1):
            raise NotHere(f"{count_of(wanted, 'GPU')} are wanted, and this machine has {here or 'none'}.")
        scripts = {Path(word).name for job in jobs for word in job.words.split()}
        bf16 = sorted(scripts & {*course.IN_BF16, *(step.script for step in course.STEPS if step.needs_bf16)})
        hopper = sorted(scripts & {*course.ON_HOPPER, *(step.script for step in course.STEPS if step.needs_hopper)})
        if hopper and gpu and not self.facts.hopper:
            raise NotHere(f"{hopper[0]} needs a Hopper GPU (H100, H200, GH200), and {gpu} is none.")
        if bf16 and gpu and not self.facts.bf16:
            raise NotHere(f"{bf16[0]} needs BF16, and {gpu} has none.")

    def _kept(self, job: Job) -> dict | None:
        """The record of the same command that the same code made on this machine, if all that it left is there."""
        files = [self.reports / name for name in job.files]
        record = running.finished(running.record_beside(files[0]), job.words)
        if record is None or not all(file.is_file() for file in files):
            return None
        if "machine" in record:
            return record if record["machine"] == self._told() else None
        made_on = (record.get("gpu"), record.get("cpu_cores"), record.get("versions", {}).get("torch"))
        here = (self.facts.gpu, self.facts.cores, torch_version())
        return record if made_on == here else None

    def _told(self) -> dict:
        """This machine, as JSON keeps it."""
        return json.loads(json.dumps(asdict(self.facts)))

    def _run(self, job: Job, show: Show) -> dict:
        """Run it when it is its turn; its record."""
        files = [self.reports / name for name in job.files]
        run, output = getattr(self.programs, job.way), (lambda line: None) if job.is_quiet else show
        with self.programs.turn(_script(job.words), show, job.gpus):
            if files[0].suffix == ".json":
                record = run(job.words, files[0])
            else:
                into = (files[0], output) if len(files) == 1 else (files,)
                make = partial(run, shlex.split(job.words), *into)
                record = running.kept_beside(files[0], job.words, self._told(), make)
        self.pace.note(job.expected_s, record.get("process_s") or record["took_s"])
        return record


Source = Recorded | Live
_instead: list[Source] = []  # what stands in the place of the source that the machine asks for


def current() -> Source:
    """The source that ``LAB_MODE=auto|live|recorded`` and this machine ask for.

    *auto*, the default, is live where a GPU answers. Raises LabError for another word, and where there is a GPU and
    ``LAB_NSYS`` names what is no nsys.
    """
    if _instead:
        return _instead[-1]
    wanted = os.environ.get("LAB_MODE", "auto").strip().lower() or "auto"
    if wanted not in MODES:
        raise LabError(f"LAB_MODE={wanted} is not a mode: use {', '.join(MODES)}.")
    if wanted == "recorded":
        return Recorded(recorded.folder())
    facts = this_machine()
    wrong = "" if facts.nsys else misnamed("LAB_NSYS", "nsys") or ""
    if facts.gpu and wrong:
        raise LabError(wrong)
    if wanted == "live" or facts.gpu:
        return _live()
    reasons = container.not_given(facts.gpu, facts.driver), wrong
    return Recorded(recorded.folder(), " ".join(filter(None, reasons)))


@contextmanager
def using(source: Source) -> Iterator[Source]:
    """Within the block this is the current source: for tests, and for a lab on a machine that is pretended."""
    _instead.append(source)
    try:
        yield source
    finally:
        _instead.remove(source)


@cache
def _live() -> Live:
    return Live(Programs())


def this_machine() -> Machine:
    """What the machine at hand has, whatever the mode."""
    return (_instead[-1] if _instead else _live()).facts


@cache
def recorded_machine(folder: Path) -> Machine:
    """The machine that a folder's recordings were made on."""
    about = recorded.provenance(folder)
    capability, counters = None, False
    for file in sorted((folder / "profiles").glob("*.sqlite.xz"), key=lambda file: file.stat().st_size)[:1]:
        with open_report(originals.original(file)) as report:
            for row in report.rows("SELECT computeMajor, computeMinor FROM TARGET_INFO_GPU LIMIT 1"):
                capability = (int(row[0]), int(row[1]))
            counters = bool(report.sampled)
    return Machine(
        gpu=about["gpu"],
        capability=capability,
        cores=about["cpu_cores"],
        driver=about["driver"],
        nsys=about["nsys"],
        ncu=counters,
        counters=counters,
    )


def _script(command: str) -> str:
    """What runs, in a word: ``main_opt3.py``."""
    return next((Path(word).name for word in shlex.split(command) if word.endswith(".py")), command.split()[0])


def _ago(record: dict) -> str:
    """How long ago a record was made, as the text has it; its own time where the clock was set back since."""
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(record["run_at"])).total_seconds()
    return f", {duration(seconds)} ago" if seconds >= 0 else f", {record['run_at']} (the clock was set back since)"


def _made_before(kept: Sequence[dict], runs: int) -> str:
    """How many of so many runs were there already, and since when: what was not run in turn compares less well."""
    if not kept:
        return ""
    first = min(kept, key=lambda record: datetime.fromisoformat(record["run_at"]))
    which = "all" if len(kept) == runs else f"{len(kept)} of {runs}"
    return f"; {which} made before, from{_ago(first).removeprefix(',')} on"


def _show_commands(request: Request, show: Show) -> None:
    for line in request.shown:
        show(f"$ {lines.command(line)}")
