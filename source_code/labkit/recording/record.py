"""How were the recorded runs made? ``make record`` measures everything that the labs show, on this machine's GPU.

    python3 -m labkit.recording                       everything into reports/recorded/<gpu>/
    python3 -m labkit.recording --only profiles       one kind
    python3 -m labkit.recording --named bench_peaks   only what has this in its name
    python3 -m labkit.recording --time-limit 500      begin nothing new after so many seconds

What is there and was made by the same code is kept, so an interrupted recording goes on where it stopped. A file
appears only when it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED, REPORTS, ROOT
from labkit.source import command, counting, recorded
from labkit.source import running as timing
from labkit.source.recorded import key
from labkit.source.running import run_cold
from labkit.training import keras_run, machine, manifest
from labkit.training.data import raw_folder
from labkit.training.record import write_json
from stepbudget.export import nsys, stats
from stepbudget.export.slim import slim
from stepbudget.ncu import counters
from stepbudget.report import open_report

KINDS = (
    "runs", "ledger", "benchmarks", "profiles", "operators", "nsys_stats", "counters", "torch_profiler", "nvml",
    "shapes", "loss_scaling",
    "keras", "keras_seeds",
    "accuracy",
)  # fmt: skip
SIDE_BY_SIDE = ("accuracy", "keras_seeds")  # not timed: several fit on the machine

STEPS = ["main_baseline.py", "main_baseline_nvtx.py", "main_opt1.py", "main_opt2.py", "main_opt3.py"]
VARIANTS = ["--amp-dtype float32 --tf32", "--amp-dtype bfloat16", "--no-grad-scaler"]
SWEEP = [f"main_opt1.py --epochs 3 --workers {workers}" for workers in (1, 2, 4, 8, 14, 16)]
RUNS = [*STEPS, *(f"main_opt3.py {flags}" for flags in VARIANTS), *SWEEP]
BENCHMARKS = [
    "bench_timing.py",
    "bench_transfers.py",
    "bench_underflow.py",
    "bench_peaks.py",
    "bench_matmul.py",
    "bench_startup.py",
]
LAUNCHES = "bench_launches.py"  # once: each of its numbers is a median over epochs, and it compiles for a minute
PROFILES = {
    **{step.removesuffix(".py"): f"{step} --profile --epochs 2" for step in STEPS},
    "main_opt3_tf32": "main_opt3.py --profile --epochs 2 --amp-dtype float32 --tf32",
    "main_opt3_bf16": "main_opt3.py --profile --epochs 2 --amp-dtype bfloat16",
}
# The same with a range for every operator and its shapes: slower, so never compared by its times on the CPU.
OPERATORS = {f"{name}_ops": f"{PROFILES[name]} --profile-ops" for name in ("main_opt2", "main_opt3_tf32", "main_opt3")}
# Part 2: every rung, each round from the first to the last. Compilers' caches are warm but where the name says cold.
LIMIT = ["main_opt4.py", "main_opt5.py", "main_opt6.py", "main_opt7.py"]
LEDGER = ["main_baseline.py", "main_opt1.py", "main_opt2.py", "main_opt3.py", *LIMIT]
COMPILED = LIMIT[2:]
_warmed: set[str] = set()  # those of them that this recording has run
# A graph's kernels are traced one by one, which makes the graph slower, but shows what is in it.
GRAPH_FLAGS = ["--cuda-graph-trace", "node"]
ACCURACY = ["main_baseline.py", "main_opt3.py", *(f"main_opt3.py {flags}" for flags in VARIANTS), *LIMIT]
LIMIT_PROFILES = {step.removesuffix(".py"): f"{step} --profile --epochs 2" for step in LIMIT}
# One step of each rung under Nsight Compute, its bytes; of the last two also what each of the GPU's units did.
COUNTED = {
    f"{name}_bytes": counting.count_command(f"{name}_bytes", counting.PROGRAMS[name]) for name in counting.PROGRAMS
}
COUNTED |= {
    f"{name}_units": counting.count_command(f"{name}_units", counting.PROGRAMS[name], in_depth=True)
    for name in ("main_opt6", "main_opt7")
}
# The same epoch by PyTorch's own profiler, and the driver's counters while steps train: once each.
TORCH_PROFILES = [
    "profile_torch.py main_baseline_nvtx.py",
    "profile_torch.py main_opt2.py --memory",
    "profile_torch.py main_opt3.py --memory",
    "profile_torch.py main_opt4.py --overhead 3",
]
NVML = "bench_nvml.py"
NVML_PROFILES = {"one_thread": "one_kernel.py thread --seconds 1 --profile"}
# Lab 10: the network of main_opt4.py (the second), and it with one thing changed.
SHAPES = [f"main_shapes.py {flags}".strip() for flags in ("--hidden 127", "", "--classes 16", "--channels-last")]
BENCH_SHAPES, BENCH_TF32 = "bench_shapes.py", "bench_tf32.py"  # the latter once: its answers are no times
_SHAPE_NAMES = dict(zip(("main_shapes_127", "main_shapes", "main_shapes_16", "main_shapes_last"), SHAPES, strict=True))
SHAPE_PROFILES = {name: f"{step} --profile --epochs 2" for name, step in _SHAPE_NAMES.items() if "16" not in name}
SHAPE_PROFILES |= {f"{name}_ops": f"{step} --profile --epochs 2 --profile-ops" for name, step in _SHAPE_NAMES.items()}
ACCURACY += SHAPES[2:]
# Lab 11: each once, with its seeds inside.
LOSS_SCALING = ["bench_sin_fit.py", "bench_gan.py", "bench_deep.py"]
LOSS_SCALING_PROFILES = {"bench_sin_fit": "bench_sin_fit.py --profile"}
# Lab 12, where Keras and JAX are installed: once each, timed in turn, and for the accuracy gate.
KERAS_ONCE = [
    "bench_keras.py --backend jax",
    "bench_keras.py --backend torch",
    "keras_mixed.py --backend jax --jit off --epochs 3",
]
KERAS_RUNS = [
    "keras_mnist.py --backend jax",
    "keras_mnist.py --backend jax --tf32",
    "keras_mixed.py --backend jax",
    "keras_mixed.py --backend jax --policy mixed_bfloat16",
]
KERAS_PROFILES = {
    "keras_mnist_jax": "keras_mnist.py --backend jax --profile --epochs 2",
    "keras_mixed_jax": "keras_mixed.py --backend jax --profile --epochs 2",
    "keras_mixed_torch": "keras_mixed.py --backend torch --profile --epochs 2",
}
KERAS_ACCURACY = ["keras_mnist.py --backend jax", "keras_mixed.py --backend jax"]
CHECKED = ("main_baseline_nvtx", "main_opt2", "main_opt3")  # profiles whose tables by nsys stats are kept
SLIM_MODULE = "stepbudget/export/slim.py"  # what is kept of a report
STATS_MODULE = "stepbudget/export/stats.py"  # what nsys stats is asked
REFERENCE = "pytorch/examples mnist/main.py --batch-size 1024 --epochs 10"


@dataclass(frozen=True)
class Item:
    """One thing to measure: its kind, what it is called, the file it ends in, and how."""

    kind: str
    label: str
    file: Path
    done: Callable[[], bool]
    make: Callable[[], None]


def plan(folder: Path, rounds: int, seeds: int, reference: Path | None) -> list[Item]:
    """Everything to measure, in order: the runs round by round, so that compared steps alternate."""
    return [
        *_runs(folder / "runs", RUNS, rounds, reference),
        *_ledger(folder / "runs", rounds),
        *_benchmarks(folder / "benchmarks", rounds),
        _timed("benchmarks", LAUNCHES, folder / "benchmarks" / f"{key(LAUNCHES)}-01.json", ""),
        *_profiles("profiles", PROFILES, folder / "profiles"),
        *_profiles("operators", OPERATORS, folder / "profiles"),
        *_profiles("ledger", LIMIT_PROFILES, folder / "profiles"),
        *_nsys_stats(folder),
        *_counters(folder / "counters"),
        *_torch_profiles(folder / recorded.TRACES),
        _timed("nvml", NVML, folder / "benchmarks" / f"{key(NVML)}-01.json", ""),
        *_profiles("nvml", NVML_PROFILES, folder / "profiles"),
        *_shapes(folder, rounds),
        *(_timed("loss_scaling", step, folder / "benchmarks" / f"{key(step)}-01.json", "") for step in LOSS_SCALING),
        *_profiles("loss_scaling", LOSS_SCALING_PROFILES, folder / "profiles"),
        *_keras(folder, rounds, seeds),
        *_accuracy(folder / "accuracy", seeds),
    ]


def _runs(folder: Path, commands: list[str], rounds: int, reference: Path | None) -> Iterator[Item]:
    for number in range(1, rounds + 1):
        if reference:
            file = folder / f"{key(REFERENCE)}-{number:02d}.json"
            yield Item(
                "runs",
                f"{REFERENCE}, round {number}",
                file,
                file.is_file,
                _bind(_run_reference, reference, file),
            )
        for step in commands:
            yield _timed("runs", step, folder / f"{key(step)}-{number:02d}.json", f"round {number}")


def _ledger(folder: Path, rounds: int) -> Iterator[Item]:
    """Every rung of the ladder in turn, with warm compiler caches; and each compiled step once with cold ones."""
    for step in COMPILED:
        file = folder / f"{key(step)}-cold.json"
        yield Item("ledger", f"{step}, cold caches", file, _is_done(file, step), _bind(run_cold, step, file))
    for number in range(1, rounds + 1):
        for step in LEDGER:
            file = folder / f"{key(step)}-{number:02d}.json"
            yield Item("ledger", f"{step}, round {number}", file, _is_done(file, step), _bind(_run_warm, step, file))


def _is_done(file: Path, step: str) -> Callable[[], bool]:
    return lambda: timing.finished(file, step) is not None


def _run_warm(step: str, file: Path) -> None:
    """Time a step; if it compiles, once this recording has run it before, so that the compilers' caches are warm."""
    if step in COMPILED and step not in _warmed:
        with tempfile.TemporaryDirectory() as scratch:
            timing.run_once(step, Path(scratch) / file.name)
        _warmed.add(step)
    timing.run_once(step, file)


def _benchmarks(folder: Path, rounds: int) -> Iterator[Item]:
    for number in range(1, rounds + 1):
        for script in BENCHMARKS:
            yield _timed("benchmarks", script, folder / f"{key(script)}-{number:02d}.json", f"round {number}")


def _accuracy(folder: Path, seeds: int) -> Iterator[Item]:
    """Two loader workers each, whatever the step's own number: no result changes, and several runs fit side by side."""
    for step in ACCURACY:
        for seed in range(1, seeds + 1):
            full = f"{step} --seed {seed} --workers 2"
            yield _timed("accuracy", full, folder / f"{key(step)}--seed-{seed:02d}.json", "")


def _profiles(kind: str, programs: dict[str, str], folder: Path) -> Iterator[Item]:
    for name, program in programs.items():
        target = folder / f"{name}.sqlite.xz"
        words = _profile_command(name, program)
        yield Item(kind, name, target, _bind(_is_made_so, target, words), _bind(_profile, name, words, target))


def _nsys_stats(folder: Path) -> Iterator[Item]:
    for name in CHECKED:
        target = folder / "nsys_stats" / f"{name}.json"
        source = folder / "profiles" / f"{name}.sqlite.xz"
        done = _bind(_is_of, target, source)
        yield Item("nsys_stats", f"nsys stats {name}", target, done, _bind(_stats, source, target))


def _counters(folder: Path) -> Iterator[Item]:
    for name, words in COUNTED.items():
        target = folder / f"{name}.csv"
        yield Item("counters", name, target, _bind(_is_made_so, target, words), _bind(_count, name, words, target))


def _torch_profiles(folder: Path) -> Iterator[Item]:
    for program in TORCH_PROFILES:
        file = folder / recorded.traced_name(program)
        make = _bind(timing.run_traced, program, file)
        yield Item("torch_profiler", program, file, _is_whole_profile(file, program), make)


def _is_whole_profile(file: Path, program: str) -> Callable[[], bool]:
    return lambda: timing.finished(file, program) is not None and timing.trace_beside(file).is_file()


def _shapes(folder: Path, rounds: int) -> Iterator[Item]:
    """What lab 10 shows: its runs and benchmarks, in turn, and its profiles."""
    for number in range(1, rounds + 1):
        for step in (BENCH_SHAPES, *SHAPES):
            what = "benchmarks" if step == BENCH_SHAPES else "runs"
            yield _timed("shapes", step, folder / what / f"{key(step)}-{number:02d}.json", f"round {number}")
    yield _timed("shapes", BENCH_TF32, folder / "benchmarks" / f"{key(BENCH_TF32)}-01.json", "")
    yield from _profiles("shapes", SHAPE_PROFILES, folder / "profiles")


def _keras(folder: Path, rounds: int, seeds: int) -> Iterator[Item]:
    """What lab 12 shows of a GPU. Its records of a CPU, TensorFlow's among them, are none of ``make record``'s."""
    for step in KERAS_ONCE:
        yield _timed("keras", step, folder / "keras" / f"{key(step)}-01.json", "")
    yield from _profiles("keras", KERAS_PROFILES, folder / "profiles")
    for number in range(1, rounds + 1):
        for step in KERAS_RUNS:
            yield _timed("keras", step, folder / "keras" / f"{key(step)}-{number:02d}.json", f"round {number}")
    for step in KERAS_ACCURACY:
        for seed in range(1, seeds + 1):
            file = folder / "accuracy" / f"{key(step)}--seed-{seed:02d}.json"
            yield _timed("keras_seeds", f"{step} --seed {seed}", file, "")


def _timed(kind: str, step: str, file: Path, note: str) -> Item:
    label = f"{step}{', ' if note else ''}{note}"
    return Item(kind, label, file, _is_done(file, step), _bind(timing.run_once, step, file))


def _bind(function: Callable, *arguments: object) -> Callable[[], None]:
    return lambda: function(*arguments)


def _profile_command(name: str, program: str) -> str:
    has_graphs = f"{name}.py" in LIMIT[1:] or name in KERAS_PROFILES
    return command.profile_command(name, program, GRAPH_FLAGS if has_graphs else ())


def _profile(name: str, words: str, target: Path) -> None:
    report = REPORTS / f"{name}.nsys-rep"
    with _record_beside(target, words, SLIM_MODULE, nsys=nsys.need_nsys().version_text):
        command.run_profile(shlex.split(words), report, show=lambda line: None)
        slim(nsys.export(report), target)


def _stats(source: Path, target: Path) -> None:
    """What nsys stats says about a recorded report, as CSV texts by question."""
    with open_report(source) as report:
        tables = stats.stats(report, list(stats.TABLES))
    made = {"command": f"nsys stats {source.name}", "nsys": nsys.need_nsys().version_text, "tables": tables}
    made |= {"run_at": _now(), "of": checksum(source), "manifest": manifest.manifest([STATS_MODULE])}
    write_json(target, made)


def _is_of(file: Path, source: Path) -> bool:
    """Was ``file`` made by today's code of the report that is there?"""
    record = _read(file)
    same = source.is_file() and record.get("of") == checksum(source)
    return same and manifest.is_current(record, f"nsys stats {source.name}")


def _count(name: str, words: str, target: Path) -> None:
    """Count a step under Nsight Compute and keep what the labs read of it."""
    log = REPORTS / f"{name}.csv"
    with _record_beside(target, words, ncu=counting.version()):
        counting.run(shlex.split(words), log, show=lambda line: None)
        origin = f"{machine.gpu_name()}, {datetime.now(timezone.utc).date()}"
        text = counters.slim(log.read_text(errors="replace"), words, origin)
        draft = target.with_suffix(".tmp")
        draft.write_text(text)
        draft.replace(target)


@contextmanager
def _record_beside(target: Path, words: str, *modules: str, **tool: str | None) -> Iterator[None]:
    """While ``target`` is made by this command, watch which of our modules run; then keep that beside it, as JSON.

    ``modules``: those that make ``target`` of what the tool wrote.
    """
    run_at, start = _now(), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= manifest.watched(Path(scratch))
        try:
            yield
        finally:
            del os.environ["LAB_MANIFEST"]
        seconds, made_by = time.monotonic() - start, manifest.gathered(Path(scratch), modules)
    about = {"command": words, **tool, "gpu": machine.gpu_name(), "driver": machine.driver_version()}
    about |= {"cpu_cores": machine.usable_cores(), "run_at": run_at, "took_s": seconds, "manifest": made_by}
    write_json(_beside(target), about)


def _beside(target: Path) -> Path:
    """The record of a report or of counts: ``main_opt3.sqlite.xz`` → ``main_opt3.json``"""
    return target.with_name(f"{target.name.partition('.')[0]}.json")


def _is_made_so(target: Path, words: str) -> bool:
    """Is ``target`` there, made by this command and by today's code?"""
    return target.is_file() and manifest.is_current(_read(_beside(target)), words)


def _read(file: Path) -> dict:
    """A record, or nothing where there is none that can be read."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _run_reference(script: Path, file: Path) -> None:
    """Time PyTorch's own MNIST example, given as a file, with the course's batch size and epochs."""
    data = os.environ.get("LAB_DATA_DIR")
    if not data or not raw_folder(Path(data)).is_dir():
        raise LabError("--reference reads MNIST from LAB_DATA_DIR: set it.")
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "data").symlink_to(Path(data).resolve())
        inside = Path(scratch) / "mnist"  # the example reads ../data
        inside.mkdir()
        words = [sys.executable, str(script.resolve()), "--batch-size", "1024", "--epochs", "10"]
        started = datetime.now(timezone.utc)
        start = time.perf_counter()
        done = subprocess.run(words, cwd=inside, capture_output=True, text=True)
        process_s = time.perf_counter() - start
    correct = re.findall(r"Accuracy: (\d+)/10000", done.stdout)
    if done.returncode != 0 or len(correct) != 10:
        raise LabError(f"the reference example failed: {done.stderr.strip().splitlines()[-1:]}")
    record = {"command": REFERENCE, "status": "complete", "process_s": process_s}
    record |= {"test_accuracy_pct": int(correct[-1]) / 100, "run_at": started.isoformat(timespec="seconds")}
    write_json(file, record)


def record(folder: Path, items: list[Item], jobs: int, time_limit_s: float, commit: str) -> int:
    """Measure what is not there yet; the number of items that are still missing afterwards."""
    stop_at = time.monotonic() + time_limit_s
    for item in items:
        item.file.parent.mkdir(parents=True, exist_ok=True)
    todo = [item for item in items if not item.done()]
    print(
        f"{folder.relative_to(ROOT)}: {len(items)} items, {len(items) - len(todo)} of them there already",
        flush=True,
    )
    counter = iter(range(len(items) - len(todo) + 1, len(items) + 1))

    def one(item: Item) -> None:
        if time.monotonic() < stop_at:
            start = time.monotonic()
            item.make()
            print(
                f"[{next(counter)}/{len(items)}] {item.kind}: {item.label} ({time.monotonic() - start:.1f} s)",
                flush=True,
            )

    try:
        for item in todo:
            if item.kind not in SIDE_BY_SIDE:  # these are timed, or profiled: alone on the machine
                one(item)
        with ThreadPoolExecutor(jobs) as pool:
            side_by_side = [pool.submit(one, item) for item in todo if item.kind in SIDE_BY_SIDE]
            for future in as_completed(side_by_side):
                future.result()
    finally:
        missing = [item for item in items if not item.done()]
        write_provenance(folder, items, commit)
    print(f"{len(missing)} of {len(items)} items are missing" if missing else f"all {len(items)} items are there")
    return len(missing)


def write_provenance(folder: Path, items: list[Item], commit: str) -> None:
    """``provenance.json``: where the folder's files come from, and a checksum for each.

    ``commit`` is that of the kinds among ``items``; other kinds keep the commit that they were measured at.
    """
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*/*.json"))]
    full = [entry for entry in records if entry.get("gpu")]
    if not full:
        return
    try:
        commits = json.loads((folder / "provenance.json").read_text())["commits"]
    except (OSError, ValueError, KeyError):
        commits = {}
    commits |= {item.kind: commit for item in items}
    found = nsys.find_nsys()
    dates = sorted(entry["run_at"] for entry in records)
    about = {name: full[0][name] for name in ("gpu", "driver", "cpu", "cpu_cores", "versions")}
    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    profiles = PROFILES | OPERATORS | LIMIT_PROFILES | NVML_PROFILES | SHAPE_PROFILES | LOSS_SCALING_PROFILES
    profiles |= KERAS_PROFILES
    write_json(
        folder / "provenance.json",
        {
            "recorded": dates[0],
            "finished": dates[-1],
            "made_by": "make record",
            "commits": commits,
            **about,
            "nsys": found.version_text if found else None,
            "repetitions": max(len(list(folder.glob(f"runs/{key(step)}-[0-9]*.json"))) for step in STEPS),
            "data_source": sorted({entry["data_source"] for entry in full if "data_source" in entry}),
            "profiles": {
                name: _profile_command(name, program)
                for name, program in profiles.items()
                if (folder / "profiles" / f"{name}.sqlite.xz").is_file()
            },
            "counters": {
                name: words for name, words in COUNTED.items() if (folder / "counters" / f"{name}.csv").is_file()
            },
            "commands": sorted({entry["command"] for entry in records}),
            "sha256": {str(file.relative_to(folder)): checksum(file) for file in files},
        },
    )


def checksum(file: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _commit() -> str:
    git = shutil.which("git")
    done = subprocess.run([git, "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True) if git else None
    return done.stdout.strip() if done and done.returncode == 0 else "unknown"


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m labkit.recording", description="Measure everything that the labs show."
    )
    parser.add_argument("--only", choices=KINDS, action="append", help="this kind only (may be given more than once)")
    parser.add_argument(
        "--named", metavar="TEXT", action="append", help="only what has TEXT in its name (may be given more than once)"
    )
    parser.add_argument("--rounds", type=int, default=timing.REPEATS, help="runs of each step (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="trainings for the accuracy gate (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=max(1, machine.usable_cores() // 2), help="accuracy runs at a time")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=float("inf"),
        metavar="S",
        help="begin nothing new after S seconds",
    )
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="also time PyTorch's MNIST example, given as FILE"
    )
    parser.add_argument("--commit", help="the commit that is measured (default: ask git)")
    return parser.parse_args()


def main() -> None:
    args = _parse_args()
    with one_sentence():
        gpu = machine.gpu_name()
        if gpu is None:
            raise LabError("recording needs a GPU, and none answers here.")
        folder = RECORDED / re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
        command.check_writable(folder)
        items = plan(folder, args.rounds, args.seeds, args.reference)
        if absent := keras_run.missing("keras", "jax"):
            print(f"lab 12 is left out: {' and '.join(absent)} cannot be imported here")
            items = [item for item in items if not item.kind.startswith("keras")]
        if args.only:
            items = [item for item in items if item.kind in args.only]
        if args.named:
            items = [item for item in items if any(text in item.label for text in args.named)]
            if not items:
                raise LabError(f"nothing that is recorded has {' or '.join(args.named)} in its name.")
        try:
            missing = record(folder, items, args.jobs, args.time_limit, args.commit or _commit())
        except KeyboardInterrupt:
            sys.exit("interrupted: what was finished is kept, and the next call goes on from there")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
