"""What can this machine do? GPU, driver, cores, packages."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import platform
import re
import warnings
from functools import cache
from pathlib import Path


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


@cache
def capability() -> tuple[int, int] | None:
    """The first GPU's compute capability, for example (9, 0) for Hopper; None where no GPU answers."""
    if gpu_name() is None:
        return None
    import torch

    return torch.cuda.get_device_capability(0)


def has_bf16() -> bool:
    """Does the GPU multiply in BF16 on its Tensor Cores? From Ampere (8.0) on; older ones emulate it."""
    return (capability() or (0, 0)) >= (8, 0)


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


def missing(*packages: str) -> list[str]:
    """Those of the packages that cannot be imported here."""
    return [package for package in packages if not _is_there(package)]


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it lies in is missing: ``cuda`` of ``cuda.bindings``
        return False


def cpu_name() -> str:
    """The processor's model name, or its architecture where the system does not tell."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.machine()
