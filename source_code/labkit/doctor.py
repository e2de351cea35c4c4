"""What will work on this machine, and how is the rest mended? One page, before a lesson: ``make doctor``.

A line of what was found, and where something will not work, what to do. Exit status 1: the labs work in no mode here.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit import source, versions
from labkit.errors import LabError, speak_any_encoding
from labkit.paths import RECORDED, REPORTS
from labkit.source import container, originals, turns
from labkit.source.facts import torch_version
from labkit.subjects import prerequisites
from labkit.training import machine
from labkit.versions import PACKAGE
from labkit.versions.before import Row, show
from stepbudget.errors import ReportError
from stepbudget.export import nsys, profile

BATCH_BYTES = 1024 * (28 * 28 * 4 + 8)  # that a loader worker hands over: FP32 pixels and a label
AHEAD = 2  # batches that each worker keeps ready
LIVE_BYTES = 2 * 10**9  # that the reports of all labs, run live, may take
PATIENCE_S = 120.0  # for a profile of nothing
SHOWN = 4  # packages in another version than was tested


def packages(extra: str) -> Iterator[Row]:
    """The course's packages that are missing or outside their range; one line where all are as wanted."""
    mend = "make lab installs it" if extra == "course" else "make read installs it"
    try:
        wanted = {requirement.name: requirement for requirement in versions.required(PACKAGE, [extra])}.values()
    except importlib.metadata.PackageNotFoundError:
        yield "packages", "the course is not installed", mend
        return
    wrong = []
    for requirement in wanted:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append((f"package {requirement.name}", "not installed"))
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append((f"package {requirement.name}", f"{version}, wanted {requirement.specifier}"))
    yield from ((what, found, mend) for what, found in wrong)
    if not wrong:
        yield "packages", f"all {len(wanted)} as wanted", ""


def tested_set() -> Iterator[Row]:
    """Where the installed versions leave those that were tested together."""
    file = versions.held_by()
    try:
        differs = versions.moved(file)
    except importlib.metadata.PackageNotFoundError:
        return  # said above
    if not file.is_file():
        yield "tested together", "nothing yet on this Python", ""
        return
    some = [f"{name} {here} (tested: {tested})" for name, (tested, here) in differs.items() if tested]  # else her own
    others = f" and {len(some) - SHOWN} others" if len(some) > SHOWN else ""
    found = f"all but {len(some)}: {', '.join(some[:SHOWN])}{others}" if some else "all packages"
    yield "tested together", found, ""


def profiler() -> Row:
    """Does nsys profile a process and export its report, within a time?"""
    try:
        found = nsys.need_nsys()
    except ReportError as none:
        return "a profile", "none", str(none)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "doctor.nsys-rep"
        words = [found.path, "profile", "--trace", "osrt", "--sample", "none", "--cpuctxsw", "none"]
        words += ["--output", str(report.with_suffix("")), sys.executable, "-c", "pass"]
        try:
            profile.record(words, report, found, lambda line: None, limit_s=PATIENCE_S)
            nsys.export(report)
        except ReportError as problem:
            return "a profile", "none", f"{problem} (labs/running.md, When something is wrong)"
    return "a profile", "made and exported", ""


def shared_memory(workers: int, folder: Path = Path("/dev/shm")) -> Row:
    """Is there room for the batches that the loader's workers keep ready?"""
    if not folder.is_dir():
        return "shared memory", "not told", ""
    free, needs = shutil.disk_usage(folder).free, workers * (AHEAD + 1) * BATCH_BYTES
    found = f"{free / 1e6:,.0f} MB free, {workers} workers take {needs / 1e6:,.0f}"
    return "shared memory", found, "" if free > needs else "in a container: docker run --ipc=host"


def turn_taking(gpu: str | None) -> Iterator[Row]:
    """In a container: do live runs there know of those outside of it, on the same GPU? Nothing elsewhere."""
    inside = container.engine()
    if gpu and inside and inside.shared:
        so = f"those of other containers on this GPU wait for them only if all were started with {inside.shared}"
        yield "live runs", f"take turns through {turns.place()}", so


def disk(folder: Path) -> Row:
    """Can reports be written, and is there room for those of all labs?"""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:,.0f} GB free"
    if not os.access(there, os.W_OK):
        return "reports/", f"{found}, not writable", f"run the course from a folder of your own, not from {there}"
    return "reports/", found, "" if free > LIVE_BYTES else f"labs run live take {LIVE_BYTES / 1e9:.0f} GB: make room"


def recordings() -> Row:
    """Is every file that the course shipped with the one that was recorded?"""
    found, wrong = 0, []
    for folder in originals.machines(RECORDED):
        try:
            found += len(originals.about(folder)["sha256"])
            wrong += originals.differing(folder)
        except LabError as problem:
            return "recordings", "not all to be read", str(problem)
    if not wrong:
        return "recordings", f"all {found} files as recorded", "" if found else originals.AGAIN
    return "recordings", f"{len(wrong)} of {found} files differ", f"{originals.AGAIN}; {originals.ALL}"


def digits() -> Row:
    """Which digits will a training take?"""
    try:
        from labkit.training.data import load_digits

        return "digits", load_digits(limit=1).source, ""
    except ModuleNotFoundError as missing:
        return "digits", f"not asked: {missing.name} is not installed", ""
    except LabError as problem:
        return "digits", "none", str(problem)


def rows() -> Iterator[Row]:
    """All that is looked at."""
    found = source.this_machine()
    yield "Python", f"{platform.python_version()}, {platform.platform()}", ""
    yield from packages("course")
    yield from tested_set()
    problem = machine.gpu_problem() if found.driver else None
    yield from prerequisites.rows(found, torch_version("cuda"), prerequisites.cudnn_version(), problem)
    yield from container.rows(found.gpu, found.driver, found.counters)
    yield profiler()
    yield shared_memory(max(1, found.cores - 1))
    yield from turn_taking(found.gpu)
    yield disk(REPORTS)
    yield recordings()
    yield digits()


def mode(found: list[Row]) -> str:
    """The mode in which the labs work here, in a sentence; ``found``: all rows. LabError where they work in none."""
    if missing := [f"{what}: {said}" for what, said, mend in packages("read") if mend]:
        raise LabError(f"The labs do not open: {', '.join(missing)}; make read installs it.")
    here, unmended = source.current(), {what: f"{said}; {mend}" for what, said, mend in found if mend}
    if here.name == "recorded" and "recordings" in unmended:
        raise LabError(f"The labs cannot show what was recorded: {unmended['recordings']}.")
    if here.name == "live" and "a profile" in unmended:
        return "Live, but no profile can be made here (above): LAB_MODE=recorded make lab shows what was recorded."
    return here.greeting


def main() -> None:
    speak_any_encoding()
    found = []
    try:
        for row in rows():
            show([row])
            found.append(row)
        print(f"\n{mode(found)}")
    except LabError as problem:
        print(f"\n{problem}")
        sys.exit(1)


if __name__ == "__main__":
    main()
