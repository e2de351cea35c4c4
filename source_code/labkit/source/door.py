"""Where does a result come from? From a run on this machine, or from what the course recorded: decided here, once.

``current()`` is the source that a notebook asks: ``Live`` runs the commands and says how long that takes, ``Recorded``
opens what a folder of ``reports/recorded/`` holds. Both show the command as one would type it. What a machine cannot do
at all (no GPU, no permission to count, Keras not installed) comes from the recordings, with the reason.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from itertools import chain
from pathlib import Path

from labkit import course, lines
from labkit.errors import LabError, NotHere
from labkit.paths import REPORTS, typed
from labkit.scripts import script
from labkit.source import command as profiling
from labkit.source import container, counting, originals, quick, recorded, running, sweep
from labkit.source.facts import Machine, torch_version
from labkit.source.pace import Pace, duration, recorded_cold_s, recorded_s
from labkit.source.programs import Programs
from stepbudget.export.nsys import misnamed
from stepbudget.ncu.counters import ORIGIN, Counted, noted, parse
from stepbudget.report import Report, open_report

MODES = ("auto", "live", "recorded")
Show = Callable[[str], None]


class Source(ABC):
    """What a notebook asks for. Each method shows its command first; ``show`` prints a line."""

    name: str  # the word for it
    is_strict = False  # are these the course's own recordings, of which every sentence of the text must hold?

    @property
    @abstractmethod
    def facts(self) -> Machine:
        """The machine that the results are from."""

    @property
    @abstractmethod
    def greeting(self) -> str:
        """In one line, where the numbers of a notebook come from."""

    @abstractmethod
    def needing(self, *packages: str, install: str = "", show: Show = print) -> Source:
        """This source, or the recordings, with the reason, where something would run that needs other packages."""

    def runs(
        self,
        commands: Sequence[str],
        repeats: int | None = None,
        show: Show = print,
        kind: str = "runs",
        when_quick: int | Mapping[str, int] = quick.ROUNDS,
    ) -> dict[str, list[dict]]:
        """Whole-process runs of each command (a script of source_code/ with its flags), alternating; their records.

        Live, each is run ``repeats`` times, else as often as the mode has it. ``when_quick`` is for quick mode, where
        once may do, for instance for the points of a sweep; or it tells for commands of their own how often, and those
        of which it says 0 are left out, of what is returned, too.
        """
        for command in commands:
            show(f"$ {lines.command(f'time {typed(command)}')}")

        def times(command: str) -> int:
            mapped = isinstance(when_quick, Mapping)
            return repeats or quick.rounds(when_quick.get(command, quick.ROUNDS) if mapped else when_quick)

        return self._runs(commands, times, show, kind)

    def cold_run(self, command: str, show: Show = print) -> dict | None:
        """The record of a whole-process run whose compilers find nothing that they made before; None: not recorded.

        LabError where there is no such script, also where nothing runs.
        """
        script(command.split(" ", 1)[0])
        fresh = " ".join(f"{name}=$(mktemp -d)" for name in running.CACHES)
        show(f"$ {lines.command(f'{fresh} {typed(command)}')}")
        return self._cold_run(command, show)

    def benchmark(self, command: str, show: Show = print) -> list[dict]:
        """The records of a benchmark script (``bench_….py`` with its flags): each that was recorded, or one run now."""
        show(f"$ {lines.command(typed(command))}")
        return self._benchmark(command, show)

    def record(self, command: str, kind: str, show: Show = print) -> dict:
        """The one record of a command that is recorded once, among those of its ``kind``."""
        show(f"$ {lines.command(typed(command))}")
        return self._record(command, kind, show)

    def profile(self, command: str, show: Show = print) -> Report:
        """The report of an ``nsys profile`` command. LabError with the tool's own words where nsys fails."""
        words = profiling.check(command)
        show(f"$ {lines.command(profiling.abridged(words))}")
        return self._profile(Path(words[words.index("--output") + 1]).name, words, show)

    def rank_profiles(self, command: str, show: Show = print) -> list[Report]:
        """The reports of a ``torchrun … --no-python nsys profile`` command, one a rank, in their order."""
        words = profiling.check_ranks(command)
        show(f"$ {lines.command(profiling.abridged(words))}")
        return self._rank_profiles(words, show)

    def on_gpus(self, script: str, sizes: Sequence[int], show: Show = print) -> dict[tuple[int, int], dict]:
        """The records of a script that torchrun starts once for each GPU, by number of GPUs and round.

        ``sizes``: of how many GPUs, those in turn in each round; what was recorded may be of others, too.
        """
        commands = {size: profiling.ranks_command(script, size) for size in sizes}
        for words in commands.values():
            show(f"$ {lines.command(words)}")
        return self._on_gpus(commands, show)

    def count(
        self, command: str, show: Show = print, brief: bool = False, same_kernels: Counted | None = None
    ) -> Counted:
        """What an ``ncu`` command counted. ``brief``: show only whence the counts are.

        ``same_kernels``: what was counted of a program whose kernels are the same; in quick mode it is taken.
        """
        words = counting.check(command)
        if not brief:
            show(f"$ {lines.command(counting.abridged(words))}")
        name = Path(words[words.index("--log-file") + 1]).stem
        return self._same(name, same_kernels, show) or self._count(name, words, show, brief)

    def trace(self, command: str, show: Show = print) -> tuple[dict, Path]:
        """The record and the trace of a ``profile_torch.py STEP …``."""
        show(f"$ {lines.command(typed(command))}")
        return self._trace(command, show)

    @abstractmethod
    def _runs(
        self, commands: Sequence[str], times: Callable[[str], int], show: Show, kind: str
    ) -> dict[str, list[dict]]: ...

    @abstractmethod
    def _cold_run(self, command: str, show: Show) -> dict | None: ...

    @abstractmethod
    def _benchmark(self, command: str, show: Show) -> list[dict]: ...

    @abstractmethod
    def _record(self, command: str, kind: str, show: Show) -> dict: ...

    @abstractmethod
    def _profile(self, name: str, words: list[str], show: Show) -> Report: ...

    @abstractmethod
    def _rank_profiles(self, words: list[str], show: Show) -> list[Report]: ...

    @abstractmethod
    def _on_gpus(self, commands: Mapping[int, str], show: Show) -> dict[tuple[int, int], dict]: ...

    @abstractmethod
    def _count(self, name: str, words: list[str], show: Show, brief: bool) -> Counted: ...

    def _same(self, name: str, same_kernels: Counted | None, show: Show) -> Counted | None:
        """What may stand for the counts called ``name``."""
        return None

    @abstractmethod
    def _trace(self, command: str, show: Show) -> tuple[dict, Path]: ...


@dataclass(frozen=True)
class Recorded(Source):
    """What the course shipped with, measured on the machine that ``folder`` is named after; nothing runs."""

    folder: Path
    why: str = ""  # in sentences, where the reader may have wanted something else
    name = "recorded"

    @property
    def is_strict(self) -> bool:
        return self.folder.name == recorded.DEFAULT

    @property
    def facts(self) -> Machine:
        return recorded_machine(self.folder)

    @property
    def greeting(self) -> str:
        origin, where = recorded.origin(self.folder), recorded.shown(self.folder)
        return f"Recorded mode: what you see was measured on an {origin} ({where}). {self.why}".rstrip()

    def needing(self, *packages: str, install: str = "", show: Show = print) -> Source:
        return self

    def _runs(
        self, commands: Sequence[str], times: Callable[[str], int], show: Show, kind: str
    ) -> dict[str, list[dict]]:
        def find(where: Path) -> dict[str, list[dict]]:
            return {command: recorded.records(kind, command, where) for command in commands}

        found, where = self._held(find, show)
        at = recorded.shown(where / kind)
        origin = recorded.origin(where, chain.from_iterable(found.values()))
        show(f"recorded ({origin}), {_each(map(len, found.values()))}: {at}")
        return found

    def _cold_run(self, command: str, show: Show) -> dict | None:
        file = recorded.cold_file(command, self.folder)
        if file is None:
            show(f"no run of '{command}' with cold caches was recorded ({recorded.origin(self.folder)})")
            return None
        found = originals.read(file)
        show(f"recorded ({recorded.origin(self.folder, [found])}), one run: {recorded.shown(file)}")
        return found

    def _benchmark(self, command: str, show: Show) -> list[dict]:
        found, where = self._held(lambda where: recorded.records("benchmarks", command, where), show)
        on = found[0]["gpu"] if found[0].get("device") != "cpu" else "on a CPU"
        origin = recorded.origin(where, found, on)
        show(f"recorded ({origin}, {_count(len(found))}): {recorded.shown(where / 'benchmarks')}")
        return found

    def _record(self, command: str, kind: str, show: Show) -> dict:
        found, where = self._held(lambda where: recorded.records(kind, command, where)[0], show)
        origin = recorded.origin(where, [found], found["gpu"] or "CPU")
        show(f"recorded ({origin}): {recorded.shown(where / kind)}")
        return found

    def _profile(self, name: str, words: list[str], show: Show) -> Report:
        file, where = self._held(lambda where: recorded.report_file(name, shlex.join(words), where), show)
        origin = recorded.origin(where, [recorded.beside(file)])
        show(f"recorded ({origin}): {recorded.shown(file)}")
        return open_report(file)

    def _rank_profiles(self, words: list[str], show: Show) -> list[Report]:
        files, where = self._held(lambda where: recorded.rank_files(words, where), show)
        origin = recorded.origin(where, map(recorded.beside, files[:1]))
        show(f"recorded ({origin}), {_count(len(files), 'report')}: {recorded.shown(where / 'profiles')}")
        return [open_report(file) for file in files]

    def _on_gpus(self, commands: Mapping[int, str], show: Show) -> dict[tuple[int, int], dict]:
        found, where = self._held(recorded.on_gpus, show)
        rounds = max(number for _, number in found)
        at = recorded.shown(where / recorded.RANKS)
        show(f"recorded ({recorded.origin(where, found.values())}), {_count(rounds, 'round')}: {at}")
        return found

    def _count(self, name: str, words: list[str], show: Show, brief: bool) -> Counted:
        file, _ = self._held(lambda where: recorded.counts_file(name, shlex.join(words), where), show)
        text = file.read_text(encoding="utf-8")
        origin = noted(text, ORIGIN)
        show(f"recorded ({origin}{recorded.outdated([recorded.beside(file)])}): {recorded.shown(file)}")
        return Counted(parse(text, file.name), shlex.join(words), origin)

    def _trace(self, command: str, show: Show) -> tuple[dict, Path]:
        file, where = self._held(lambda where: recorded.traced_file(command, where), show)
        record = originals.read(file)
        show(f"recorded ({recorded.origin(where, [record])}): {recorded.shown(file)}")
        return record, running.trace_beside(file)

    def _held(self, find: Callable[[Path], recorded.Found], show: Show) -> tuple[recorded.Found, Path]:
        """What this machine's recordings hold, or the default machine's, and a line that says so; and the folder."""
        found, where = recorded.held(find, self.folder)
        if where != self.folder:
            show(f"| not recorded on {self.folder.name}, so from {where.name}:")
        return found, where


class Live(Source):
    """The commands run on this machine, and what they leave lies in ``reports``.

    Timed runs that the same command, code and machine made are used again; in quick mode so is all else.
    """

    name = "live"

    def __init__(self, programs: Programs, reports: Path = REPORTS) -> None:
        self.programs, self.reports, self.pace = programs, reports, Pace()

    @property
    def facts(self) -> Machine:
        return self.programs.facts

    @property
    def greeting(self) -> str:
        runs = f"{quick.EPOCHS} epochs, {_count(quick.rounds())} of each"
        full = f"LAB_LIVE=full: {quick.FULL_EPOCHS} epochs, {_count(quick.FULL_ROUNDS)}"
        again = "or one, and what was measured already is used again"
        how = f" Quick: what is timed trains {runs} {again} ({full})." if quick.is_quick() else ""
        return f"Live: the commands run on this machine ({self.facts.gpu or 'no GPU: CPU phases only'}).{how}"

    def needing(self, *packages: str, install: str = "", show: Show = print) -> Source:
        absent = self.programs.missing(*packages)
        if not absent:
            return self
        show(f"recorded, since {' and '.join(absent)} cannot be imported here{f' ({install})' if install else ''}")
        return Recorded(recorded.folder())

    def _runs(
        self, commands: Sequence[str], times: Callable[[str], int], show: Show, kind: str
    ) -> dict[str, list[dict]]:
        try:
            self._has_what_is_needed([word for command in commands for word in command.split()])
        except NotHere as error:  # what is compared comes from one machine: all of them are the recorded ones
            return self._instead(error, show)._runs(commands, times, show, kind)
        return self._run_in_turn(commands, times, show, kind)

    def _run_in_turn(
        self, commands: Sequence[str], times: Callable[[str], int], show: Show, kind: str
    ) -> dict[str, list[dict]]:
        rounds, folder = {command: times(command) for command in commands}, self._folder("runs")
        if left_out := [command for command in commands if not rounds[command]]:
            show(f"| left out, since quick: {', '.join(left_out)}")
        slots = [
            (command, words := self._form(command), folder / f"{recorded.key(words)}-{number:02d}.json")
            for number in range(1, max(rounds.values()) + 1)
            for command in commands
            if number <= rounds[command]
        ]
        there = {file: self._there(file, words) for _, words, file in slots}
        missing = {file: recorded_s(kind, words) for _, words, file in slots if there[file] is None}
        self._announce(list(missing.values()), show)
        start, made = time.monotonic(), 0
        found: dict[str, list[dict]] = {command: [] for command in commands if rounds[command]}
        for command, words, file in slots:
            record = there[file]
            if record is None:
                so_far = f" ({duration(time.monotonic() - start)} so far)" if made else ""
                made += 1
                show(f"| run {made} of {len(missing)}: time {typed(words)}{so_far}")
                record = self._timed(missing[file], words, file, self.programs.run, show)
            found[command].append(record)
        before = _made_before([record for record in there.values() if record], len(slots))
        show(f"live: {_each(map(len, found.values()))}{before}: {recorded.shown(folder)}")
        return found

    def _cold_run(self, command: str, show: Show) -> dict:
        words = self._form(command)
        file = self._folder("runs") / f"{recorded.key(words)}-cold.json"
        record, when = self._new_or_kept(recorded_cold_s(words), words, file, self.programs.run_cold, show)
        show(f"live{when}: one run: {recorded.shown(file)}")
        return record

    def _benchmark(self, command: str, show: Show) -> list[dict]:
        def run() -> list[dict]:
            self._has_what_is_needed(command.split())
            return [self._once(command, "benchmarks", show)]

        return self._else_recorded(run, lambda other: other._benchmark(command, show), show)

    def _record(self, command: str, kind: str, show: Show) -> dict:
        def run() -> dict:
            return self._once(command, kind, show)

        return self._else_recorded(run, lambda other: other._record(command, kind, show), show)

    def _once(self, command: str, kind: str, show: Show) -> dict:
        words = self._form(command)
        file = self._folder(kind) / f"{recorded.key(words)}-01.json"
        record, when = self._new_or_kept(recorded_s(kind, words), words, file, self.programs.run, show)
        show(f"live{when}: {recorded.shown(file.parent)}")
        return record

    def _profile(self, name: str, words: list[str], show: Show) -> Report:
        def run() -> Report:
            self._has_what_is_needed(words)
            report = self.reports / f"{name}.nsys-rep"
            expected_s = recorded.took_s("profiles", name)
            when = self._made(report, words, expected_s, lambda: self.programs.profile(words, report, show), show)
            show(f"live{when}: {recorded.shown(report)}")
            return open_report(report)

        return self._else_recorded(run, lambda other: other._profile(name, words, show), show)

    def _rank_profiles(self, words: list[str], show: Show) -> list[Report]:
        def run() -> list[Report]:
            reports = [self.reports / f"{name}.nsys-rep" for name in profiling.rank_names(words)]
            self._has_gpus(len(reports))
            if not all(report.is_file() for report in reports):
                reports[0].with_suffix(".json").unlink(missing_ok=True)
            expected_s = recorded.took_s("profiles", reports[0].stem)
            when = self._made(
                reports[0], words, expected_s, lambda: self.programs.rank_profiles(words, reports), show, len(reports)
            )
            show(f"live{when}: {' '.join(map(recorded.shown, reports))}")
            return [open_report(report) for report in reports]

        return self._else_recorded(run, lambda other: other._rank_profiles(words, show), show)

    def _on_gpus(self, commands: Mapping[int, str], show: Show) -> dict[tuple[int, int], dict]:
        def run() -> dict[tuple[int, int], dict]:
            self._has_gpus(max(commands))
            folder, rounds = self._folder(recorded.RANKS), quick.rounds()
            there_s = {size: record["process_s"] for (size, _), record in recorded.held(recorded.on_gpus)[0].items()}
            slots = [(size, number) for number in range(1, rounds + 1) for size in commands]
            files = {(size, number): folder / f"scaling-x{size}-{number:02d}.json" for size, number in slots}
            kept = {slot: self._there(files[slot], commands[slot[0]]) for slot in slots}
            self._announce([there_s.get(slot[0]) for slot in slots if kept[slot] is None], show)
            found = {}
            for slot in slots:
                words, file, expected_s = commands[slot[0]], files[slot], there_s.get(slot[0])
                found[slot] = kept[slot] or self._timed(expected_s, words, file, self.programs.run, show, slot[0])
            before = _made_before([record for record in kept.values() if record], len(slots))
            show(f"live: {_count(rounds, 'round')}{before}: {recorded.shown(folder)}")
            return found

        return self._else_recorded(run, lambda other: other._on_gpus(commands, show), show)

    def _has_gpus(self, wanted: int) -> None:
        """NotHere where this machine has fewer GPUs."""
        here = self.facts.gpus if self.facts.gpu else 0
        if here < wanted:
            raise NotHere(f"{_count(wanted, 'GPU')} are wanted, and this machine has {here or 'none'}.")

    def _count(self, name: str, words: list[str], show: Show, brief: bool) -> Counted:
        def run() -> Counted:
            self._has_what_is_needed(words)
            log = self.reports / f"{name}.csv"
            expected_s, output = recorded.took_s("counters", name), (lambda line: None) if brief else show
            when = self._made(log, words, expected_s, lambda: self.programs.count(words, log, output), show)
            show(f"live{when}: {recorded.shown(log)}")
            counted = parse(log.read_text(encoding="utf-8", errors="replace"), log.name)
            return Counted(counted, shlex.join(words), self._origin)

        return self._else_recorded(run, lambda other: other._count(name, words, show, brief), show)

    @property
    def _origin(self) -> str:
        """Of counts."""
        return f"{self.facts.gpu}, live"

    def _same(self, name: str, same_kernels: Counted | None, show: Show) -> Counted | None:
        if same_kernels is None or same_kernels.origin != self._origin or not quick.is_quick():
            return None
        show(f"live: {name}: the same kernels as before, not counted again, since quick")
        return same_kernels

    def _trace(self, command: str, show: Show) -> tuple[dict, Path]:
        def run() -> tuple[dict, Path]:
            file = self._folder(recorded.TRACES) / recorded.traced_name(command)
            expected_s = recorded_s(recorded.TRACES, command)
            record, when = self._new_or_kept(expected_s, command, file, self.programs.trace, show)
            show(f"live{when}: {recorded.shown(file)}")
            return record, running.trace_beside(file)

        return self._else_recorded(run, lambda other: other._trace(command, show), show)

    def _has_what_is_needed(self, words: Sequence[str]) -> None:
        """NotHere where a step, or a benchmark, needs arithmetic that this machine's GPU does not have, or is made for
        one generation of GPUs, and this is another."""
        scripts, gpu = {Path(word).name for word in words}, self.facts.gpu
        bf16 = sorted(scripts & {*course.IN_BF16, *(step.script for step in course.STEPS if step.needs_bf16)})
        hopper = sorted(scripts & {step.script for step in course.STEPS if step.needs_hopper})
        if hopper and gpu and not self.facts.hopper:
            raise NotHere(f"{hopper[0]} needs a Hopper GPU (H100, H200, GH200), and {gpu} is none.")
        if bf16 and gpu and not self.facts.bf16:
            raise NotHere(f"{bf16[0]} needs BF16, and {gpu} has none.")

    def _else_recorded(self, run: Callable, otherwise: Callable[[Recorded], object], show: Show):
        """What ``run`` returns, or, where this machine cannot do it, what was recorded, with the reason."""
        try:
            return run()
        except LabError as error:
            if not isinstance(error, NotHere) and self.facts.gpu is not None:
                raise
            return otherwise(self._instead(error, show))

    @staticmethod
    def _instead(error: LabError, show: Show) -> Recorded:
        """The recordings, and why it is them."""
        show(f"| recorded instead, since it cannot be measured here: {error}")
        return Recorded(recorded.folder())

    def _timed(
        self,
        expected_s: float | None,
        words: str,
        file: Path,
        run: Callable[[str, Path], dict],
        show: Show,
        gpus: int = 1,
    ) -> dict:
        with self.programs.turn(_script(words), show, gpus):
            record = run(words, file)
        self.pace.note(expected_s, record["process_s"])
        return record

    def _new_or_kept(
        self, expected_s: float | None, words: str, file: Path, run: Callable[[str, Path], dict], show: Show
    ) -> tuple[dict, str]:
        """A record, and how long ago it was made: in quick mode one that is still true is used again."""
        if quick.is_quick() and (record := self._there(file, words)):
            return record, _ago(record)
        self._announce([expected_s], show)
        return self._timed(expected_s, words, file, run, show), ""

    def _made(
        self,
        made: Path,
        words: list[str],
        expected_s: float | None,
        make: Callable[[], None],
        show: Show,
        gpus: int = 1,
    ) -> str:
        """Make a report or counts; in quick mode one that is still true is used again. How long ago it was made."""
        file, command = made.with_suffix(".json"), shlex.join(words)
        machine = json.loads(json.dumps(asdict(self.facts)))
        record = running.finished(file, command) if quick.is_quick() and made.is_file() else None
        if record and record["machine"] == machine:
            return _ago(record)
        profiling.check_writable(file.parent)
        file.unlink(missing_ok=True)
        self._announce([expected_s], show)
        with self.programs.turn(_script(command), show, gpus):
            start, now = time.monotonic(), datetime.now(timezone.utc)
            with running.watching() as made_by:
                make()
            took_s = time.monotonic() - start
        self.pace.note(expected_s, took_s)
        about = {"command": command, "status": "complete", "machine": machine, "took_s": took_s}
        about |= {"run_at": now.isoformat(timespec="seconds"), **made_by}
        file.write_text(json.dumps(about, indent=1) + "\n")
        return ""

    def _announce(self, expected: Sequence[float | None], show: Show) -> None:
        if line := self.pace.announcement(expected):
            show(f"| {line}")

    def _form(self, command: str) -> str:
        """The command as the mode has it run; when quick, what a step does anyway is not told, so that it runs once."""
        if not quick.is_quick():
            return command
        return quick.without_defaults(quick.quick(command), sweep.spare(self.facts.cores))

    def _folder(self, kind: str) -> Path:
        folder = self.reports / kind
        profiling.check_writable(folder)
        return folder

    def _there(self, file: Path, command: str) -> dict | None:
        """The record of the same command that the same code made on this machine, if there is one."""
        record = running.finished(file, command)
        if record is None:
            return None
        made_on = (record.get("gpu"), record.get("cpu_cores"), record.get("versions", {}).get("torch"))
        here = (self.facts.gpu, self.facts.cores, torch_version())
        return record if made_on == here else None


_instead: list[Source] = []  # what stands in the place of the source that the machine asks for


def current() -> Source:
    """The source that ``LAB_MODE=auto|live|recorded`` and this machine ask for.

    *auto*, the default, is live where both nsys and a GPU answer. Raises LabError for another word, and where there is
    a GPU and ``LAB_NSYS`` names what is no nsys.
    """
    if _instead:
        return _instead[-1]
    wanted = os.environ.get("LAB_MODE", "auto").strip().lower() or "auto"
    if wanted not in MODES:
        raise LabError(f"LAB_MODE={wanted} is not a mode: use {', '.join(MODES)}.")
    if wanted == "recorded":
        return Recorded(recorded.folder())
    facts = this_machine()
    if wanted == "live" or (facts.nsys is not None and facts.gpu is not None):
        return _live()
    wrong = "" if facts.nsys else misnamed("LAB_NSYS", "nsys") or ""
    if wrong and facts.gpu:
        raise LabError(wrong)
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
    """How long ago a record was made, as the text has it."""
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(record["run_at"])).total_seconds()
    return f", {duration(seconds)} ago"


def _made_before(kept: Sequence[dict], runs: int) -> str:
    """How many of so many runs were there already, and since when: what was not run in turn compares less well."""
    if not kept:
        return ""
    first = min(kept, key=lambda record: datetime.fromisoformat(record["run_at"]))
    which = "all" if len(kept) == runs else f"{len(kept)} of {runs}"
    return f"; {which} made before, from{_ago(first).removeprefix(',')} on"


def _each(times: Iterable[int]) -> str:
    """``2 to 3 runs each``"""
    fewest, *_, most = sorted([*times] * 2)
    return f"{'' if fewest == most else f'{fewest} to '}{_count(most)} each"


def _count(runs: int, what: str = "run") -> str:
    return f"{runs} {what}{'' if runs == 1 else 's'}"
