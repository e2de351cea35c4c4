"""A GPU machine to the labs, where there is none: what they run live returns what was recorded, each thing once.

Python imports this at its start if this folder is on PYTHONPATH. With ``LAB_PRETEND_LIVE=<folder>`` it puts recorded
runs, reports, counts and traces in the place of those that a live lab would make, and keeps them in that folder, apart
for each process. A script that was recorded for several labs has one record here, perhaps another lab's. A lab then
takes every path of live mode but the last step, the program on the GPU. What it asks for and nobody recorded is an
error. ``make test-dry`` runs the notebooks so.
"""

import json
import lzma
import os
import shlex
import shutil
from pathlib import Path

from labkit.source import counting
from stepbudget.export import nsys


def pretend(folder: Path) -> None:
    from labkit import paths

    paths.REPORTS = folder  # before the other modules take it
    folder.mkdir(parents=True, exist_ok=True)

    from labkit.errors import LabError
    from labkit.source import command, recorded, timing
    from labkit.topics.profilers import torch_profiler
    from labkit.training import keras_run, machine
    from stepbudget.export import files
    from stepbudget.ncu import counters

    source = recorded.provenance()
    machine.gpu_name()  # once as it is: it catches what CUDA has to say against this machine, if anything
    machine.gpu_name = lambda: source["gpu"]
    machine.device = lambda: "cpu"  # what a cell itself trains, it trains here
    machine.driver_version = lambda: source["driver"]
    machine.usable_cores = lambda: source["cpu_cores"]
    nsys.find_nsys = lambda: nsys.Nsys("nsys", tuple(map(int, source["nsys"].split("."))))
    keras_run.missing = lambda *packages: []

    def run_once(words: str, file: Path, environment: dict | None = None) -> dict:
        cold = recorded.folder() / "runs" / f"{recorded.key(words)}-cold.json"
        record = json.loads(cold.read_text()) if environment else one_of_the_recorded(words)
        file.write_text(json.dumps(record))
        return record

    def one_of_the_recorded(words: str) -> dict:
        for kind in ("runs", "benchmarks", "keras"):
            try:
                return recorded.records(kind, words)[-1]
            except LabError:
                continue
        raise LabError(f"'{words}' runs live, and was never recorded")

    def run_profile(words: list[str], report: Path, show) -> None:
        report.write_bytes(files.NSYS_MAGIC)
        slim = recorded.report_file(report.stem, shlex.join(words))
        report.with_suffix(".sqlite").write_bytes(lzma.decompress(slim.read_bytes()))  # newer: counts as its export
        show("| Generated")

    def count(words: list[str], log: Path, show=print) -> None:
        text = counting.recorded_file(log.stem).read_text()
        if counters.made_with(text) != shlex.join(words):
            raise LabError(f"the counts {log.stem} were recorded with another command")
        log.write_text(text)
        show("| ==PROF== Connected")

    def run_torch_profiler(words: str, file: Path) -> dict:
        there = recorded.folder() / torch_profiler.KIND / file.name
        for name in (there, torch_profiler.trace_beside(there)):
            shutil.copy(name, file.parent)
        return json.loads(there.read_text())

    timing.run_once = run_once
    command.run_profile = run_profile
    counting.run = count
    torch_profiler.run = run_torch_profiler


if os.environ.get("LAB_PRETEND_LIVE"):
    pretend(Path(os.environ["LAB_PRETEND_LIVE"]) / str(os.getpid()))
