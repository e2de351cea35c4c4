"""What can be asked for? A ``Request`` for each kind of result: its commands, where it lies recorded, how it runs live.

A new kind is one more function here; both sources answer what it returns (``labkit.source.door``).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from labkit.errors import NotHere
from labkit.paths import typed
from labkit.scripts import script
from labkit.source import command as profiling
from labkit.source import counting, quick, recorded, running
from labkit.source.facts import Machine
from labkit.source.pace import recorded_cold_s, recorded_s
from labkit.source.recorded import took_s
from stepbudget.ncu.counters import ORIGIN, Counted, noted, parse
from stepbudget.report import Report, open_report

Answer = TypeVar("Answer")


class Result(NamedTuple):
    """What a command left: a file, and the record that lies in it or beside it."""

    command: str  # as it was asked for
    file: Path
    record: dict


@dataclass(frozen=True)
class Job:
    """One live run. The first of the files that it leaves in the reader's reports is its record, or lies beside it."""

    command: str  # as it was asked for
    words: str  # as it runs
    files: Sequence[str]
    expected_s: float | None  # on the recorded machine
    way: str = "run"  # which of ``Programs`` runs it
    gpus: int = 1
    said: str = ""  # before it starts
    is_quiet: bool = False  # is the program's output not shown?


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """What a notebook asks for, and how both sources find it."""

    commands: Sequence[str]
    shown: Sequence[str]  # the commands as one types them
    find: Callable[[str, Path], Sequence[Path]]  # a command's files in a recorded folder; NotRecorded: look in others
    jobs: Callable[[Machine], Sequence[Job]]
    read: Callable[[Sequence[Result]], Answer]
    origin: Callable[[Path, Sequence[dict]], str] = recorded.origin
    amount: Callable[[Sequence[Result]], str] = lambda results: ""  # in words, behind the origin
    names_files: bool = False  # else their folder
    in_rounds: bool = False  # timed to be compared: kept runs count in full mode, too, and a run that fails is an error
    not_recorded: str = ""  # what is said where that is no error
    same: Counted | None = None  # what quick mode takes instead, if it was counted here
    packages: Sequence[str] = ()  # that live runs need
    install: str = ""  # how to get them


def runs(
    commands: Sequence[str],
    repeats: int | None = None,
    kind: str = "runs",
    when_quick: int | Mapping[str, int] = quick.ROUNDS,
) -> Request[dict[str, list[dict]]]:
    """Whole-process runs of each command (a script of source_code/ with its flags), alternating; their records.

    Live, each is run ``repeats`` times, else as often as the mode has it. ``when_quick`` is for quick mode, where
    once may do, for instance for the points of a sweep; or it tells for commands of their own how often, and those
    of which it says 0 are left out, of what is returned, too.
    """

    def rounds(command: str) -> int:
        mapped = isinstance(when_quick, Mapping)
        return repeats or quick.rounds(when_quick.get(command, quick.ROUNDS) if mapped else when_quick)

    def jobs(here: Machine) -> list[Job]:
        times = {command: rounds(command) for command in commands}
        return [
            _script(command, here, kind, f"runs/{{key}}-{number:02d}.json", said="time ")
            for number in range(1, max(times.values()) + 1)
            for command in times
            if number <= times[command]
        ]

    def read(results: Sequence[Result]) -> dict[str, list[dict]]:
        return {command: [one.record for one in results if one.command == command] for command in _times(results)}

    def amount(results: Sequence[Result]) -> str:
        fewest, *_, most = sorted([*_times(results).values()] * 2)
        return f"{'' if fewest == most else f'{fewest} to '}{count_of(most)} each"

    return Request(
        commands=list(dict.fromkeys(commands)),
        shown=[f"time {typed(command)}" for command in commands],
        find=partial(recorded.files, kind),
        jobs=jobs,
        read=read,
        amount=amount,
        in_rounds=True,
    )


def cold_run(command: str) -> Request[dict | None]:
    """The record of a whole-process run whose compilers find nothing that they made before; None: not recorded.

    LabError where there is no such script, also where nothing runs.
    """
    script(command.split(" ", 1)[0])
    fresh = " ".join(f"{name}=$(mktemp -d)" for name in running.CACHES)
    return Request(
        commands=[command],
        shown=[f"{fresh} {typed(command)}"],
        find=recorded.cold_files,
        jobs=lambda here: [_script(command, here, "runs", "runs/{key}-cold.json", way="run_cold")],
        read=lambda results: results[0].record if results else None,
        amount=lambda results: "one run",
        names_files=True,
        not_recorded=f"no run of '{command}' with cold caches was recorded",
    )


def benchmark(command: str) -> Request[list[dict]]:
    """The records of a benchmark script (``bench_….py`` with its flags): each that was recorded, or one run now."""

    def origin(where: Path, records: Sequence[dict]) -> str:
        on = records[0]["gpu"] if records[0].get("device") != "cpu" else "on a CPU"
        return f"{recorded.origin(where, records, on)}, {count_of(len(records))}"

    return Request(
        commands=[command],
        shown=[typed(command)],
        find=partial(recorded.files, "benchmarks"),
        jobs=lambda here: [_script(command, here, "benchmarks")],
        read=lambda results: [one.record for one in results],
        origin=origin,
    )


def record(command: str, kind: str) -> Request[dict]:
    """The one record of a command that is recorded once, among those of its ``kind``."""
    return Request(
        commands=[command],
        shown=[typed(command)],
        find=lambda command, where: recorded.files(kind, command, where)[:1],
        jobs=lambda here: [_script(command, here, kind)],
        read=lambda results: results[0].record,
        origin=lambda where, records: recorded.origin(where, records, records[0]["gpu"] or "CPU"),
    )


def trace(command: str) -> Request[tuple[dict, Path]]:
    """The record and the trace of a ``profile_torch.py STEP …``."""
    file = f"{recorded.TRACES}/{recorded.traced_name(command)}"
    return Request(
        commands=[command],
        shown=[typed(command)],
        find=lambda command, where: [recorded.traced_file(command, where)],
        jobs=lambda here: [_script(command, here, recorded.TRACES, file, way="trace")],
        read=lambda results: (results[0].record, running.trace_beside(results[0].file)),
        names_files=True,
    )


def on_gpus(script: str, sizes: Sequence[int]) -> Request[dict[tuple[int, int], dict]]:
    """The records of a script that torchrun starts once for each GPU, by number of GPUs and round.

    ``sizes``: of how many GPUs, those in turn in each round; what was recorded may be of others, too.
    """
    commands = {size: profiling.ranks_command(script, size) for size in sizes}

    def jobs(here: Machine) -> list[Job]:
        there_s = {size: record["process_s"] for (size, _), record in recorded.held(recorded.on_gpus)[0].items()}
        return [
            Job(script, words, [f"{recorded.RANKS}/scaling-x{size}-{number:02d}.json"], there_s.get(size), gpus=size)
            for number in range(1, quick.rounds() + 1)
            for size, words in commands.items()
        ]

    return Request(
        commands=[script],
        shown=list(commands.values()),
        find=lambda script, where: recorded.scaling_files(where),
        jobs=jobs,
        read=lambda results: {recorded.gpus_and_round(one.file): one.record for one in results},
        amount=lambda results: count_of(max(recorded.gpus_and_round(one.file)[1] for one in results), "round"),
        in_rounds=True,
    )


def profile(command: str, on_nsight: bool = False) -> Request[Report]:
    """The report of an ``nsys profile`` command. LabError with the tool's own words where nsys fails.

    Live with a GPU and without nsys it is the trace of PyTorch's profiler, or, ``on_nsight``, what was recorded.
    Of several that were recorded it is the one in the middle, and how long the shortest and the longest took is said.
    """
    words = profiling.check(command)
    name, command = Path(words[words.index("--output") + 1]).name, shlex.join(words)

    def jobs(here: Machine) -> list[Job]:
        if here.traces and on_nsight:
            raise NotHere("there is no nsys, and this lab is about what it alone records.")
        ending = running.TRACE if here.traces else ".nsys-rep"
        return [Job(command, command, [f"{name}{ending}"], took_s("profiles", name), "profile")]

    def amount(results: Sequence[Result]) -> str:
        others = sorted(one["duration_ms"] for one in results[0].record.get("others", ()))
        if len(others) < 2:
            return ""
        least, most = (f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" for ms in (others[0], others[-1]))
        return f"the middle of {len(others) + 1} profiles of {least} to {most} ms"

    return Request(
        commands=[command],
        shown=[profiling.abridged(words)],
        find=lambda command, where: [recorded.named("profiles", name, command, where)],
        jobs=jobs,
        read=lambda results: open_report(results[0].file),
        amount=amount,
        names_files=True,
    )


def rank_profiles(command: str) -> Request[list[Report]]:
    """The reports of a ``torchrun … --no-python nsys profile`` command, one a rank, in their order."""
    words = profiling.check_ranks(command)
    names, command = profiling.rank_names(words), shlex.join(words)

    def jobs(here: Machine) -> list[Job]:
        if here.traces:
            raise NotHere("there is no nsys.")
        files = [f"{name}.nsys-rep" for name in names]
        return [Job(command, command, files, took_s("profiles", names[0]), "rank_profiles", len(names))]

    def read(results: Sequence[Result]) -> list[Report]:
        first = results[0].file  # beside which the record of all lies
        return [open_report(first.with_name(first.name.replace(names[0], name))) for name in names]

    return Request(
        commands=[command],
        shown=[profiling.abridged(words)],
        find=lambda command, where: recorded.rank_files(words, where)[:1],
        jobs=jobs,
        read=read,
        amount=lambda results: count_of(len(names), "report"),
    )


def counts(command: str, brief: bool = False, same_kernels: Counted | None = None) -> Request[Counted]:
    """What an ``ncu`` command counted. ``brief``: show only whence the counts are.

    ``same_kernels``: what was counted of a program whose kernels are the same; in quick mode it is taken.
    """
    words = counting.check(command)
    name, command = Path(words[words.index("--log-file") + 1]).stem, shlex.join(words)

    def read(results: Sequence[Result]) -> Counted:
        ((_, file, record),) = results
        text = file.read_text(encoding="utf-8", errors="replace")
        origin = counted_on(record["machine"]["gpu"]) if "machine" in record else noted(text, ORIGIN)
        return Counted(parse(text, file.name), command, origin)

    return Request(
        commands=[command],
        shown=[] if brief else [counting.abridged(words)],
        find=lambda command, where: [recorded.named("counters", name, command, where)],
        jobs=lambda here: [Job(command, command, [f"{name}.csv"], took_s("counters", name), "count", is_quiet=brief)],
        read=read,
        names_files=True,
        same=same_kernels,
    )


def counted_on(gpu: str | None) -> str:
    """The origin of counts that were made live."""
    return f"{gpu}, live"


def count_of(number: int, what: str = "run") -> str:
    """``3 runs``"""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _times(results: Sequence[Result]) -> Counter[str]:
    """How many results each command has, in the order of the first of each."""
    return Counter(one.command for one in results)


def _script(
    command: str, here: Machine, kind: str, file: str = "{kind}/{key}-01.json", way: str = "run", said: str = ""
) -> Job:
    """A run of a script, as the mode has it, which leaves its own record."""
    words = quick.as_run(command, here.cores)
    expected_s = recorded_cold_s(words) if way == "run_cold" else recorded_s(kind, words)
    name = file.format(kind=kind, key=recorded.key(words))
    return Job(command, words, [name], expected_s, way, said=said and f"{said}{typed(words)}")
