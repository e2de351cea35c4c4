"""How is a step counted? The ``ncu`` command that does it, as it is shown, and as it is run on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from labkit import paths
from labkit.errors import LabError, NotHere
from labkit.paths import at_home, typed
from labkit.source import container
from labkit.source.command import check_writable, stream
from labkit.training import machine
from stepbudget.export import processes
from stepbudget.export.nsys import ANSWERS_S, misnamed
from stepbudget.ncu.counters import DENIED, IN_DEPTH, INSIDE, METRICS, STALLS, what_went_wrong

# fmt: off
FLAGS = [
    "--clock-control", "none",  # leave the clocks as they are: this is about the GPU as one uses it
    "--cache-control", "none",  # and the caches: what one kernel leaves in L2, the next finds
    "--profile-from-start", "off",  # from cudaProfilerStart on: --profile calls it in the second epoch
    "--nvtx", "--nvtx-push-pop-scope", "process", "--nvtx-include", "training/",  # autograd's thread too; no test
    "--target-processes", "application-only",  # not the helpers that a compiler starts
    "--graph-profiling", "node",  # each kernel of a CUDA graph, not the graph as one
    "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "demangled",
]
# fmt: on
NCU_PLACES = (
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/cuda*/bin/ncu",
    "/usr/local/bin/ncu",
    "/usr/local/NVIDIA-Nsight-Compute*/ncu",
)
NOT_FOUND = "Nsight Compute (ncu) was not found: install it, or set LAB_NCU to its path."
UNKNOWN_METRIC = re.compile(r"[Ff]ailed to find metric|[Uu]nknown metric|not.*(available|supported).*metric")


def count_command(name: str, program: str, in_depth: bool = False, inside: bool = False, stalls: bool = False) -> str:
    """The command that counts one step of ``program`` (a script of source_code/ with its flags).

    A step is an epoch on as many digits as a batch holds: ``main_opt7.py --profile --epochs 2 --limit 1024``.
    ``in_depth``: also count what the Tensor Cores and the CUDA cores did and how busy each unit was, in more passes,
    after which each kernel's bytes are not to be trusted. ``inside``: also its instructions, loads and banks;
    ``stalls``: also what its warps waited for.
    """
    asked = (IN_DEPTH if in_depth else METRICS) | (INSIDE if inside else {}) | (STALLS if stalls else {})
    metrics = ",".join(asked.values())
    flags = shlex.join([*FLAGS, "--metrics", metrics, "--log-file", f"reports/{name}.csv"])
    return f"ncu {flags} {typed(program)}"


# One launch of each kernel: those of labs 26 and 27, and of each rung of lab 29.
KERNELS = count_command("kernels_units", "count_kernels.py --profile", in_depth=True, inside=True, stalls=True)
RUNGS = count_command("rungs_units", "count_rungs.py --profile", in_depth=True, inside=True)


def check(command: str) -> list[str]:
    """The words of a counting command; LabError where it is none."""
    words = paths.words(command)
    if words[:1] != ["ncu"] or "--log-file" not in words or "python3" not in words:
        raise LabError("a counting command reads: ncu [flags] --log-file reports/NAME.csv python3 SCRIPT …")
    return words


def run(words: Sequence[str], log: Path, show: Callable[[str], None] = print) -> None:
    """Run a counting command on this machine; afterwards ``log`` holds ncu's CSV. LabError in one sentence if not."""
    ncu = find_ncu()
    if ncu is None:
        if wrong := misnamed("LAB_NCU", "ncu"):
            raise LabError(wrong)
        raise NotHere(NOT_FOUND)
    if machine.gpu_name() is None:
        raise NotHere("Nsight Compute counts on a GPU, and none answers here.")
    check_writable(log.parent)
    words = at_home(words)
    split = words.index("python3")
    words = [ncu, *words[1:split], sys.executable, *words[split + 1 :]]
    status, said = _run(words, log, show)
    while UNKNOWN_METRIC.search(said) and (fewer := without_unknown(words, said)) != words:
        words = fewer
        show("| ncu does not know all of these counters on this GPU: counting without those")
        status, said = _run(words, log, show)
    if problem := what_went_wrong(said, status):
        raise (NotHere if DENIED in problem else LabError)(problem + container.hint(problem))


def _run(words: list[str], log: Path, show: Callable[[str], None]) -> tuple[int, str]:
    """ncu's exit status, and all that it and the program said."""
    log.unlink(missing_ok=True)
    status, said = stream(words, show)
    return status, f"{said}\n{log.read_text(encoding='utf-8', errors='replace') if log.is_file() else ''}"


def without_unknown(words: Sequence[str], said: str) -> list[str]:
    """The same command without the counters that ncu said it does not know; if it named none, without all of IN_DEPTH.

    Not every GPU counts everything; what every GPU counts (METRICS) stays.
    """
    words = list(words)
    at = words.index("--metrics") + 1
    asked = words[at].split(",")
    complaints = " ".join(line for line in said.splitlines() if UNKNOWN_METRIC.search(line))
    optional = [metric for metric in asked if metric not in METRICS.values()]
    unknown = [metric for metric in optional if metric in complaints] or optional
    words[at] = ",".join(metric for metric in asked if metric not in unknown)
    return words


@cache
def find_ncu() -> str | None:
    """The ncu to use: ``LAB_NCU``, else the one on PATH, else one in NVIDIA's usual places; None if none runs."""
    named = os.environ.get("LAB_NCU")
    root = Path("/")
    usual = [str(path) for place in NCU_PLACES for path in sorted(root.glob(place[1:]), reverse=True)]
    return next(filter(_answers, filter(None, [named] if named else [shutil.which("ncu"), *usual])), None)


def version() -> str | None:
    """The version of the ncu in use, as it prints it, or None."""
    ncu = find_ncu()
    said = _told(ncu) if ncu else ""
    found = re.search(r"Version (\S+)", said)
    return found.group(1) if found else None


def _answers(path: str) -> bool:
    return "Nsight Compute" in _told(path)


def _told(path: str) -> str:
    """What a program says of its version; nothing where it does not start, fails, or does not end."""
    try:
        status, said = processes.stream([path, "--version"], lambda line: None, limit_s=ANSWERS_S)
    except (OSError, ValueError, processes.Stalled):  # the second: a name that no system takes
        return ""
    return said if status == 0 else ""


def abridged(words: Sequence[str]) -> str:
    """The command in one line, ``ncu … python3 SCRIPT …``, as of ``nsys``: all of it stands in the lab's cell."""
    return f"ncu … {shlex.join(words[words.index('python3') :])}"
