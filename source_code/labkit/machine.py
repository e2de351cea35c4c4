"""What can this machine do? GPU, driver, cores, Nsight Systems; and so: do the labs run live or recorded?"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.errors import LabError

MODES = ("auto", "live", "recorded")

# Where NVIDIA's installers put nsys when they do not put it on PATH, newest first within each pattern.
NSYS_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
    "/usr/lib/nsight-systems/target-linux-x64/nsys",
)


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity mask, and the quota of its cgroup where one is set.

    ``multiprocessing.cpu_count()`` counts the cores of the host instead, which is wrong in most containers.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: "<quota µs or max> <period µs>"
    try:
        limit, period = quota.read_text().split()
        if limit != "max":
            cores = min(cores, math.ceil(int(limit) / int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)


@cache
def gpu_name() -> str | None:
    """The first GPU's name as CUDA gives it, or None where no GPU answers (``gpu_problem`` may say why)."""
    return _ask_cuda()[0]


def device() -> str:
    """Where PyTorch computes here: ``"cuda"`` or ``"cpu"``."""
    return "cuda" if gpu_name() else "cpu"


@cache
def gpu_problem() -> str | None:
    """What CUDA says against a driver or GPU that it cannot use, in one sentence; None where it has nothing to say."""
    return _ask_cuda()[1]


@cache
def _ask_cuda() -> tuple[str | None, str | None]:
    import torch  # takes seconds to import: only those who ask for the GPU pay

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    problem = str(said[0].message).removeprefix("CUDA initialization: ").split(". ")[0] if said else None
    return name, problem


@cache
def driver_version() -> str | None:
    """The NVIDIA driver's version from NVML (what nvidia-smi reads, without starting a process), or None."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0:
        return None
    ok = nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))) == 0
    nvml.nvmlShutdown()
    return text.value.decode() if ok else None


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.machine()


@dataclass(frozen=True)
class Nsys:
    """An nsys that answers: its path and its version as numbers, for example ``(2025, 3, 1)``."""

    path: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


@cache
def find_nsys() -> Nsys | None:
    """The nsys to use: ``LAB_NSYS``, else the one on PATH, else one in NVIDIA's usual places; None if none runs."""
    named = os.environ.get("LAB_NSYS")
    candidates = [named] if named else [shutil.which("nsys"), *_installed_nsys()]
    for path in filter(None, candidates):
        if version := _nsys_version(path):
            return Nsys(path, version)
    return None


def _installed_nsys() -> list[str]:
    root = Path("/")
    return [str(path) for place in NSYS_PLACES for path in sorted(root.glob(place[1:]), reverse=True)]


def _nsys_version(path: str) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"version (\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, match.groups())) if match else None


def mode() -> str:
    """``"live"`` or ``"recorded"``, from ``LAB_MODE=auto|live|recorded``.

    *auto*, the default, is live where both nsys and a GPU answer. Raises LabError for another word.
    """
    wanted = os.environ.get("LAB_MODE", "auto").strip().lower() or "auto"
    if wanted not in MODES:
        raise LabError(f"LAB_MODE={wanted} is not a mode: use {', '.join(MODES)}.")
    if wanted != "auto":
        return wanted
    return "live" if find_nsys() and gpu_name() else "recorded"


def is_live() -> bool:
    """Do the labs run their commands here?"""
    return mode() == "live"


def _gpu_line() -> str:
    if gpu_name():
        return f"{gpu_name()}, driver {driver_version()}"
    has_driver = driver_version() is not None  # then there is a GPU, and the reader wants to know what is wrong with it
    return f"none that CUDA can use: {gpu_problem()}" if has_driver and gpu_problem() else "none"


def summary() -> dict[str, str]:
    """What this machine has, a line each: for the front page of the course."""
    nsys = find_nsys()
    return {
        "GPU": _gpu_line(),
        "Nsight Systems": f"{nsys.version_text}" if nsys else "not found",
        "CPU cores": str(usable_cores()),
        "labs run": mode(),
    }
