"""How is a report made? The ``nsys profile`` command that does it, as it is shown, and as it is run on this machine.

The labs hold each command as one would type it in a terminal at the checkout's top folder. It is run after the few
changes that the machine asks for: the path of nsys, an older spelling of a flag, no GPU, no permission for counters.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.errors import LabError
from labkit.paths import ROOT, typed
from labkit.training import machine
from stepbudget.export.nsys import Nsys, need_nsys

METRICS = "--gpu-metrics-devices"
# Without --sample none and --cpuctxsw none the same run writes a thousand times as much.
# fmt: off
PROFILE_FLAGS = [
    "--trace", "cuda,osrt,nvtx", "--sample", "none", "--cpuctxsw", "none",
    "--capture-range", "cudaProfilerApi", "--capture-range-end", "stop",
    METRICS, "all",
]
# fmt: on
NO_GPU_FLAGS = ["--trace", "osrt,nvtx", "--sample", "none", "--cpuctxsw", "none"]
NO_GPU_LIMIT = [
    "--limit",
    "2048",
    "--epochs",
    "1",
    "--batch-size",
    "256",
]  # a CPU needs minutes for a full epoch
METRICS_DENIED = re.compile(r"ERR_NVGPUCTRPERM|[Ii]nsufficient privilege|GPU Metrics.*(not supported|failed)")


def profile_command(name: str, program: str, more: Sequence[str] = (), processes: int = 1) -> str:
    """The command that profiles ``program`` (a script of source_code/ with its flags) into ``reports/<name>``.

    ``more``: flags of nsys beside those that all labs use. ``processes``: of the program, a GPU each; torchrun starts
    them, by its module, since a script of that name is not on every PATH.
    """
    flags = [*PROFILE_FLAGS, *more, "--output", f"reports/{name}", "--force-overwrite", "true"]
    python, program = typed(program).split(" ", 1)
    launcher = f" -m torch.distributed.run --standalone --nproc-per-node {processes}" if processes > 1 else ""
    return f"nsys profile {shlex.join(flags)} {python}{launcher} {program}"


def check(command: str) -> list[str]:
    """The words of a profiling command; LabError where it is none."""
    words = shlex.split(command)
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
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if METRICS in flags and re.fullmatch(r"\d+(,\d+)*", visible):  # the other GPUs may be somebody else's
            flags[flags.index(METRICS) + 1] = visible
        if nsys.version < (2024, 1):
            flags = ["--gpu-metrics-device" if flag == METRICS else flag for flag in flags]
    return [nsys.path, "profile", *flags, *program]


def without_metrics(words: list[str]) -> list[str]:
    """The same command without GPU metrics, for those who may not read them."""
    at = next((i for i, word in enumerate(words) if word.startswith("--gpu-metrics-device")), None)
    return words if at is None else words[:at] + words[at + 2 :]


def run_profile(words: list[str], report: Path, show: Callable[[str], None]) -> None:
    """Run a profiling command on this machine; afterwards ``report`` exists. LabError with nsys's own words if not."""
    nsys = need_nsys()
    has_gpu = machine.gpu_name() is not None
    run = adapt(words, nsys, has_gpu)
    if not has_gpu:
        show("| no GPU here: CPU phases only, on a few digits")
    check_writable(report.parent)
    for left_behind in (report, report.with_suffix(".qdstrm")):
        left_behind.unlink(missing_ok=True)
    status, said = stream(run, show)
    if not report.is_file() and METRICS_DENIED.search(said) and without_metrics(run) != run:
        show("| no permission to read GPU metrics: profiling without them. To get them, run as root, add")
        show("| --cap-add=SYS_ADMIN to the container, or see https://developer.nvidia.com/ERR_NVGPUCTRPERM")
        status, said = stream(without_metrics(run), show)
    if report.is_file() and status == 0:
        return
    if "importer" in said or report.with_suffix(".qdstrm").is_file():
        raise LabError(
            "nsys recorded the run but cannot make a report of it: its importer does not start. On Ubuntu install "
            "libdw1 and libelf1; with Debian's package, link host-linux-x64 beside target-linux-x64 (see README.md)."
        )
    last = " / ".join(line for line in said.strip().splitlines()[-4:] if line.strip())
    raise LabError(f"nsys profile failed with status {status}: {last or 'it said nothing'}")


def stream(words: list[str], show: Callable[[str], None]) -> tuple[int, str]:
    """Run a command at the checkout's top, show its output line by line as it comes; exit status and all it said."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    said = []
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            for raw in process.stdout:  # bytes: text mode would end a line at each carriage return
                line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]  # of a progress bar, its last state
                said.append(line)
                if line:
                    show(f"| {line}")
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    return process.returncode, "\n".join(said)


def check_writable(folder: Path) -> None:
    """LabError where nothing can be written into ``folder``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LabError(
            f"cannot write into {folder}: {error.strerror}. Reports need a writable folder there."
        ) from error


def folded(words: list[str]) -> str:
    """The command over several lines, a flag with its value never apart, as one would paste it into a terminal."""
    split = words.index("python3")
    parts, i = [], 2
    while i < split:
        step = 2 if i + 1 < split and not words[i + 1].startswith("--") else 1
        parts.append(shlex.join(words[i : i + step]))
        i += step
    lines, line = [], "nsys profile"
    for part in parts:
        if len(line) + len(part) > 96:
            lines.append(line)
            line = "   "
        line += f" {part}"
    return " \\\n".join([*lines, line, f"    {shlex.join(words[split:])}"])
