"""How is an item of the plan made? A file appears only when it is whole, with what made it in it or beside it.

``make record`` makes what is missing or no longer true, and nothing else; interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from unittest.mock import patch

from labkit import cases
from labkit.errors import LabError
from labkit.paths import REPORTS
from labkit.recording import anonymous
from labkit.recording.plan import ON_CPU, SIDE_BY_SIDE, Item
from labkit.recording.tools import TOOLS, TRACE
from labkit.source import command, counting, running, turns
from labkit.source.facts import torch_version
from labkit.source.originals import checksum
from labkit.training import machine, manifest
from labkit.training.data import raw_folder
from labkit.training.record import write_json
from stepbudget.ask.budget import budget
from stepbudget.export import nsys
from stepbudget.export import stats as nsys_stats
from stepbudget.export.slim import slim
from stepbudget.ncu import counters
from stepbudget.report import open_report

_warmed: set[str] = set()  # commands that this session has run: what they compile is in the caches


def run(item: Item, file: Path) -> None:
    """Time a script; those that are about the CPU see no GPU."""
    running.run_once(item.command, file, {"CUDA_VISIBLE_DEVICES": ""} if item.kind in ON_CPU else None)


def warm(item: Item, file: Path) -> None:
    """Time a step that compiles, once this session has run it before, so that the compilers' caches are warm."""
    if item.command not in _warmed:
        with tempfile.TemporaryDirectory() as scratch:
            running.run_once(item.command, Path(scratch) / file.name)
        _warmed.add(item.command)
    running.run_once(item.command, file)


def cold(item: Item, file: Path) -> None:
    """Time a step whose compilers find nothing that they made before."""
    running.run_cold(item.command, file)


def torch_profile(item: Item, file: Path) -> None:
    """Run a step under PyTorch's own profiler; the trace lies beside the record."""
    running.run_traced(item.command, file)


def profile(item: Item, file: Path) -> None:
    """Run a step under Nsight Systems and keep the slim report; of several, the one whose epoch is in the middle.

    Of the others the budgets are kept, ``others``: ``{"duration_ms": …, "ms": {cause: …}}`` each.
    """
    report = REPORTS / f"{item.label}.nsys-rep"
    with (
        _record_beside(item, file, nsys=nsys.need_nsys().version_text) as about,
        tempfile.TemporaryDirectory(dir=file.parent) as scratch,
    ):
        whole = [Path(scratch) / f"{number}.nsys-rep" for number in range(item.times)]
        for one in whole:
            command.run_profile(shlex.split(item.command), report, show=lambda line: None)
            shutil.move(report, one)
        drafts = [one.with_suffix(".sqlite.xz") for one in whole]
        with ThreadPoolExecutor() as pool:  # at the same time, now that nothing is measured
            list(pool.map(lambda one, draft: slim(nsys.export(one), draft), whole, drafts))
        if item.times > 1:
            budgets = {draft: _budget(draft) for draft in drafts}
            drafts.sort(key=lambda draft: budgets[draft]["duration_ms"])
            middle = drafts.pop(len(drafts) // 2)
            about["others"] = [budgets[draft] for draft in drafts]
        else:
            middle = drafts[0]
        middle.replace(file)


def _budget(file: Path) -> dict:
    """The budget of a report's epoch: its length, and milliseconds by cause."""
    with open_report(file) as report:
        found = budget(report)
        return {"duration_ms": found.window.duration_ms, "ms": {cause: ms for cause, ms in found.ms.items() if ms}}


def case(item: Item, file: Path) -> None:
    """Profile a program of the clinic, which knows nothing of the course.

    For other tools the whole report stays, and a trace by PyTorch's own profiler, where it can look at the program.
    """
    report = REPORTS / f"{item.label}.nsys-rep"
    with _record_beside(item, file, nsys=nsys.need_nsys().version_text):
        with _cold_caches():
            command.run_profile(shlex.split(item.command), report, show=lambda line: None)
        slim(nsys.export(report), file)
    with _cold_caches():
        status, said = command.stream(traced_words(item), show=lambda line: None)
    if status:
        print(f"no trace of {item.label}: {said.strip().splitlines()[-1:]}", flush=True)


def both(item: Item, file: Path) -> None:
    """A program's budget by Nsight Systems and, of a run right after it, by PyTorch's profiler; a rank's, of several.

    ``nsys_budget`` and ``torch_budget``, each as of ``_budget``.
    """
    report = REPORTS / f"{file.stem}.nsys-rep"
    with _record_beside(item, file, nsys=nsys.need_nsys().version_text, torch=torch_version()) as about:
        with _cold_caches():
            command.run_profile(shlex.split(item.command), report, show=lambda line: None)
        about["nsys_budget"] = _budget(nsys.export(report))
        with _cold_caches():
            status, said = command.stream(traced_words(item), show=lambda line: None)
        if status:
            raise LabError(f"PyTorch's profiler did not see {item.label}: {said.strip().splitlines()[-1:]}")
        about["torch_budget"] = _budget(min(REPORTS.glob(f"{file.stem}{TRACE}*.json")))


def traced_words(item: Item) -> list[str]:
    """The program of a case's profiling command, under PyTorch's profiler instead."""
    name = Path(item.file).name.partition(".")[0]
    for left_behind in REPORTS.glob(f"{name}{TRACE}*.json"):
        left_behind.unlink()
    return command.traced_words(shlex.split(item.command), REPORTS / f"{name}{TRACE}.json")


def findings(item: Item, file: Path) -> None:
    """What another tool says of a case's whole report; ``error`` where it fails, null where it has no input."""
    name, tool = file.stem.partition("--")[2], TOOLS[file.stem.partition("--")[0]]
    report, source = cases.case(name).report, stats_source(file)
    if not (REPORTS / f"{report}.sqlite").is_file() or not source.is_file():
        raise LabError(f"{report}.sqlite is not in {REPORTS}: profile it first (--only clinic).")
    about = {"command": item.command, "version": tool.version(), "run_at": _now(), "of": checksum(source)}
    inputs = sorted(REPORTS.glob(f"{report}{tool.reads}"))
    try:
        said = tool.ask(inputs[0]) if inputs else None
    except LabError as error:
        said = {"error": str(error)}
    write_json(file, about | {"manifest": manifest.manifest([]), "said": said})


def rank_reports(item: Item, file: Path) -> None:
    """Run the ranks of a program, each under an Nsight Systems of its own, and keep their slim reports, all or none."""
    kept = [file.parents[1] / name for name in item.files]
    reports = [REPORTS / f"{one.name.partition('.')[0]}.nsys-rep" for one in kept]
    with _record_beside(item, file, nsys=nsys.need_nsys().version_text):
        command.run_rank_profiles(shlex.split(item.command), reports)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            slims = [Path(scratch) / one.name for one in kept]
            for report, draft in zip(reports, slims, strict=True):
                slim(nsys.export(report), draft)
            for draft, one in zip(slims, kept, strict=True):
                draft.replace(one)


def whole_report(item: Item, file: Path) -> None:
    """Keep a report as Nsight Systems writes it, profiled where it can learn neither host, user nor variables."""
    nsys_here = nsys.need_nsys()
    with tempfile.TemporaryDirectory() as scratch, _record_beside(item, file, nsys=nsys_here.version_text):
        draft = anonymous.record(shlex.split(item.command), Path(scratch), nsys_here)
        shutil.copyfile(draft, file)


def count(item: Item, file: Path) -> None:
    """Count a step under Nsight Compute and keep what the labs read of it."""
    log = REPORTS / f"{item.label}.csv"
    with _record_beside(item, file, ncu=counting.version()):
        counting.run(shlex.split(item.command), log, show=lambda line: None)
        origin = f"{machine.gpu_name()}, {datetime.now(timezone.utc).date()}"
        text = counters.slim(log.read_text(encoding="utf-8", errors="replace"), item.command, origin)
        draft = file.with_suffix(".tmp")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


def stats(item: Item, file: Path) -> None:
    """What nsys stats says about a recorded report, as CSV texts by question."""
    source = stats_source(file)
    with open_report(source) as report:
        tables = nsys_stats.stats(report, list(nsys_stats.TABLES))
    about = {"command": item.command, "nsys": nsys.need_nsys().version_text, "run_at": _now()}
    write_json(file, about | {"of": checksum(source), "manifest": manifest.manifest([]), "tables": tables})


def stats_source(file: Path) -> Path:
    """The recorded report that the tables, or another tool's findings, in ``file`` are about."""
    tool, _, name = file.stem.partition("--")
    return file.parents[1] / "profiles" / f"{cases.PREFIX + name if name else tool}.sqlite.xz"


def reference(item: Item, file: Path, script: Path) -> None:
    """Time PyTorch's own MNIST example, given as ``script``, with the course's batch size and epochs."""
    data = os.environ.get("LAB_DATA_DIR")
    if not data or not raw_folder(Path(data)).is_dir():
        raise LabError("--reference reads MNIST from LAB_DATA_DIR: set it.")
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "data").symlink_to(Path(data).resolve())
        inside = Path(scratch) / "mnist"  # the example reads ../data
        inside.mkdir()
        words = [sys.executable, str(script.resolve()), "--batch-size", "1024", "--epochs", "10"]
        run_at, start = _now(), time.perf_counter()
        done = subprocess.run(words, cwd=inside, capture_output=True, text=True)
        process_s = time.perf_counter() - start
    correct = re.findall(r"Accuracy: (\d+)/10000", done.stdout)
    if done.returncode != 0 or len(correct) != 10:
        raise LabError(f"the reference example failed: {done.stderr.strip().splitlines()[-1:]}")
    record = {"command": item.command, "status": "complete", "process_s": process_s}
    record |= {"test_accuracy_pct": int(correct[-1]) / 100, "run_at": run_at}
    write_json(file, record | {"script_sha256": checksum(script), "manifest": manifest.manifest([])})


WAYS = {
    way.__name__: way
    for way in (run, warm, cold, torch_profile, profile, whole_report, case, rank_reports, findings, both, count, stats)
}


def make(
    folder: Path,
    items: list[Item],
    is_done: Callable[[Item], bool],
    jobs: int = 1,
    time_limit_s: float = float("inf"),
    script: Path | None = None,
) -> list[Item]:
    """Make the items that are not done, ``jobs`` at a time where nothing is timed; those still missing afterwards.

    ``time_limit_s``: begin nothing new after so many seconds. ``script``: PyTorch's MNIST example, where that is asked.
    """
    ways = WAYS | {"reference": partial(reference, script=script)}
    stop_at = time.monotonic() + time_limit_s
    todo = [item for item in items if not is_done(item)]
    made = iter(range(len(items) - len(todo) + 1, len(items) + 1))

    def one(item: Item) -> None:
        if time.monotonic() < stop_at:
            file = folder / item.file
            file.parent.mkdir(parents=True, exist_ok=True)
            alone = item.kind not in SIDE_BY_SIDE and machine.gpu_name() is not None
            with turns.turn(item.label, partial(print, flush=True)) if alone else nullcontext():
                start = time.monotonic()
                ways[item.how](item, file)
            took = f"{time.monotonic() - start:.1f} s"
            print(f"[{next(made)}/{len(items)}] {item.kind}: {item.label} ({took})", flush=True)

    for item in todo:
        if item.kind not in SIDE_BY_SIDE:  # these are timed, or profiled: alone on the machine
            one(item)
    with ThreadPoolExecutor(jobs) as pool:
        side_by_side = [pool.submit(one, item) for item in todo if item.kind in SIDE_BY_SIDE]
        for future in as_completed(side_by_side):
            future.result()
    return [item for item in items if not is_done(item)]


@contextmanager
def _cold_caches() -> Iterator[None]:
    """Compilers find nothing that they made before, as in a program's first run."""
    with tempfile.TemporaryDirectory() as scratch:
        caches = {name: str(Path(scratch) / name) for name in running.CACHES}
        with patch.dict(os.environ, caches):
            yield


@contextmanager
def _record_beside(item: Item, file: Path, **tool: str | None) -> Iterator[dict]:
    """While ``file`` is made, watch which of our modules run; then keep that in its record, beside it.

    So is what the block puts into the dict. ``took_s`` is of one time.

    A program that loads none of ours, as in the clinic,
    names none: then its script is all of our code that ran.
    """
    run_at, start = _now(), time.monotonic()
    with running.watching() as made_by:
        yield made_by
    if made_by["manifest"] is None:
        script = next(word for word in shlex.split(item.command) if word.endswith(".py"))
        made_by["manifest"] = manifest.manifest([script.removeprefix("source_code/")])
    took_s = (time.monotonic() - start) / item.times
    about = {"command": item.command, **tool, "gpu": machine.gpu_name(), "driver": machine.driver_version()}
    about |= {"cpu": machine.cpu_name(), "cpu_cores": machine.usable_cores(), "run_at": run_at, "took_s": took_s}
    write_json(file.parents[1] / item.record, about | made_by)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
