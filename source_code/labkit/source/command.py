"""How is a report made? The ``nsys profile`` command that does it, as it is shown, and as it is run on this machine.

The labs hold each command as one would type it in a terminal at the checkout's top folder. It is run after the few
changes that the machine asks for: the path of nsys, an older spelling of a flag, no GPU, no permission for counters.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from labkit import paths
from labkit.errors import LabError, NotHere
from labkit.paths import ROOT, at_home, typed
from labkit.source import running, visible
from labkit.training import machine, traced
from stepbudget.errors import ReportError
from stepbudget.export import profile
from stepbudget.export.leftovers import sweep
from stepbudget.export.nsys import Nsys, need_nsys

PROFILE_FLAGS = [*profile.TRACED, *profile.CAPTURED, profile.METRICS, "all"]
FORCED = ["--force-overwrite", "true"]
NO_GPU_FLAGS = ["--trace", "osrt,nvtx", "--sample", "none", "--cpuctxsw", "none"]
# A CPU needs minutes for a full epoch.
NO_GPU_LIMIT = ["--limit", "2048", "--epochs", "1", "--batch-size", "256"]
ON_JAX = "--backend jax"
OTHERS = re.compile(r"--backend (?!torch\b)")  # programs of other frameworks than PyTorch
JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
# JAX would not keep what was compiled within a second, or what is small.
KEEPS_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def profile_command(name: str, program: str, more: Sequence[str] = (), processes: int = 1) -> str:
    """The command that profiles ``program`` (a script of source_code/ with its flags) into ``reports/<name>``.

    ``more``: flags of nsys beside those that all labs use. ``processes``: of the program, a GPU each; torchrun starts
    them, by its module, since a script of that name is not on every PATH.
    """
    flags = [*PROFILE_FLAGS, *more, "--output", f"reports/{name}", "--force-overwrite", "true"]
    python, program = typed(program).split(" ", 1)
    launcher = f" -m torch.distributed.run --standalone --nproc-per-node {processes}" if processes > 1 else ""
    return f"nsys profile {shlex.join(flags)} {python}{launcher} {program}"


def ranks_command(program: str, ranks: int) -> str:
    """The command that runs ``program`` on so many GPUs, a process each, with one CPU thread an operator in each."""
    return f"{_launcher(ranks)} {typed(program).split(' ', 1)[1]}"


def rank_profiles_command(name: str, program: str, ranks: int) -> str:
    """The command that runs ``program`` so, each rank under an Nsight Systems of its own: ``reports/<name>_rank<n>``.

    Without the GPUs' counters, which only one at a time may read.
    """
    flags = [*profile.TRACED, *profile.CAPTURED, "--output", f"reports/{name}_rank%q{{RANK}}", *FORCED]
    nsys = " ".join(["nsys profile", *flags])
    return f"{_launcher(ranks)} --no-python {nsys} {typed(program)}"


def check_ranks(command: str) -> list[str]:
    """The words of a command like ``rank_profiles_command``'s; LabError where it is none."""
    words = paths.words(command)
    if not {"torchrun", "--nproc-per-node", "--no-python", "nsys", "--output", "python3"} <= {*words}:
        raise LabError("such a command reads: torchrun … --nproc-per-node N --no-python nsys profile … python3 SCRIPT")
    if not rank_names(words)[0].endswith("rank0"):
        raise LabError("each rank needs a report of its own: --output reports/NAME_rank%q{RANK}")
    return words


def rank_names(words: Sequence[str]) -> list[str]:
    """What the reports of such a command are called, rank by rank."""
    name, ranks = words[words.index("--output") + 1], int(words[words.index("--nproc-per-node") + 1])
    return [Path(name.replace("%q{RANK}", str(rank))).name for rank in range(ranks)]


def _launcher(ranks: int) -> str:
    return f"OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node {ranks}"


def run_rank_profiles(words: Sequence[str], reports: Sequence[Path]) -> None:
    """Run a command of ``rank_profiles_command``; afterwards all these reports exist. LabError if not."""
    nsys = need_nsys()
    check_writable(reports[0].parent)
    for left_behind in reports:
        left_behind.unlink(missing_ok=True)
    running.run_ranks(shlex.join(at_home(words)), {"nsys": nsys.path, "python3": sys.executable})
    if missing := [report.name for report in reports if not report.is_file()]:
        raise LabError(f"the ranks ran, and nsys left no {' nor '.join(missing)}.")


def check(command: str) -> list[str]:
    """The words of a profiling command; LabError where it is none."""
    words = paths.words(command)
    if words[:2] != ["nsys", "profile"] or "--output" not in words or "python3" not in words:
        raise LabError("a profiling command reads: nsys profile [flags] --output reports/NAME [flags] python3 SCRIPT …")
    return words


def adapt(words: list[str], nsys: Nsys, has_gpu: bool) -> list[str]:
    """The command as this machine can run it: nsys and python by path, flags in the spelling that this nsys knows."""
    split = words.index("python3")
    flags, program = words[2:split], [sys.executable, *words[split + 1 :]]
    if not has_gpu:
        kept = flags[flags.index("--output") :]
        flags, program = [*NO_GPU_FLAGS, *kept], [*program, *NO_GPU_LIMIT]
    else:
        if profile.METRICS in flags:  # the other GPUs may be somebody else's
            flags[flags.index(profile.METRICS) + 1] = sampled()[0]
        flags = profile.spelled(flags, nsys)
    return [nsys.path, "profile", *flags, *program]


def sampled() -> tuple[str, str | None]:
    """Of which GPUs nsys is to read the counters, as its flag wants them, and a remark where they are not just ours.

    Those that CUDA_VISIBLE_DEVICES names, by number or UUID; all where it names none, or one that nobody knows.
    """
    if not visible.named():
        return "all", None
    ours = visible.gpus()
    if unknown := [gpu.named for gpu in ours if gpu.number is None]:
        return "all", f"nvidia-smi knows no {' nor '.join(unknown)}: the counters in the report are of all GPUs"
    slices = [gpu.named for gpu in ours if gpu.is_slice]
    remark = f"the counters in the report are of the whole GPU, of which {slices[0]} is a slice" if slices else None
    return ",".join(dict.fromkeys(str(gpu.number) for gpu in ours)), remark


def run_profile(words: list[str], report: Path, show: Callable[[str], None]) -> None:
    """Run a profiling command on this machine; afterwards ``report`` exists. LabError with nsys's own words if not.

    Where ``report`` is a trace, PyTorch's profiler looks at the program instead of nsys.
    """
    if report.name.endswith(running.TRACE):
        _trace(words, report, show)
        return
    nsys = need_nsys()
    has_gpu = machine.gpu_name() is not None
    run = adapt(at_home(words), nsys, has_gpu)
    if not has_gpu:
        show("| no GPU here: CPU phases only, on a few digits")
    elif profile.METRICS in words and (remark := sampled()[1]):
        show(f"| {remark}")
    check_writable(report.parent)
    try:
        with compiled_before(run, report.parent, show) if has_gpu else nullcontext() as variables:
            profile.record(run, report, nsys, lambda line: show(f"| {line}"), ROOT, variables)
    except ReportError as error:
        raise LabError(str(error)) from None


def _trace(words: list[str], trace: Path, show: Callable[[str], None]) -> None:
    check_traceable(words)
    show("| without nsys: PyTorch's profiler traces the program; no system calls, no GPU counters")
    check_writable(trace.parent)
    trace.unlink(missing_ok=True)
    status, said = stream(traced_words(at_home(words), trace), show)
    if status or not trace.is_file():
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise LabError(f"the program failed under PyTorch's profiler, with status {status}: {last[0]}")


def check_traceable(words: Sequence[str]) -> None:
    """NotHere for a program of another framework than PyTorch, whose profiler is to look at it."""
    if OTHERS.search(shlex.join(words)):
        raise NotHere("there is no nsys, and PyTorch's profiler looks at PyTorch alone.")


def traced_words(words: Sequence[str], trace: Path) -> list[str]:
    """The program of a profiling command under PyTorch's profiler, which leaves ``trace`` (one a rank)."""
    program = [*words[words.index("python3") + 1 :]]
    script = next(at for at, word in enumerate(program) if word.endswith(".py"))
    return [sys.executable, *program[:script], str(traced.__file__), str(trace), *program[script:]]


@contextmanager
def compiled_before(words: Sequence[str], folder: Path, show: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Variables with which a program on JAX finds XLA's code in a cache; of a program without JAX none.

    Where XLA compiles in the traced process, the report breaks off (lab 17). So the program of the command, as
    ``adapt`` gave it, runs once alone, and leaves its code in ``folder`` until this ends. LabError where it fails,
    ReportError where it hangs.
    """
    program = [word for word in words[words.index(sys.executable) :] if word != "--profile"]
    if ON_JAX not in shlex.join(program):
        yield {}
        return
    sweep(folder, running.SCRATCH)
    with tempfile.TemporaryDirectory(prefix=running.SCRATCH, dir=folder) as cache:
        variables = {JAX_CACHE: cache, **KEEPS_ALL}
        show("| first without the profiler: XLA compiles there, and JAX keeps the code")
        status, said = profile.stream(program, lambda line: None, ROOT, variables)
        if status:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise LabError(f"the program failed without the profiler, with status {status}: {last[0]}")
        yield variables


def stream(words: list[str], show: Callable[[str], None]) -> tuple[int, str]:
    """Run a command at the checkout's top, show its output line by line as it comes; exit status and all it said."""
    return profile.stream(words, lambda line: show(f"| {line}"), ROOT)


def check_writable(folder: Path) -> None:
    """LabError where nothing can be written into ``folder``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LabError(f"cannot write into {folder}: {error.strerror}. It takes a writable folder there.") from error


def abridged(words: Sequence[str]) -> str:
    """The command in one line, ``nsys profile … python3 SCRIPT …``: what runs, without the flags of what watches it.

    All of it stands in the lab's cell.
    """
    at = words.index("nsys")
    launcher = [*words[: words.index("torchrun") + 1], "…"] if at else []
    return " ".join([*launcher, "nsys profile …", shlex.join(words[words.index("python3") :])])
