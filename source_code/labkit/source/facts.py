"""What has this machine? The facts that decide what can run here; where CUDA does not start, PyTorch is not asked."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.errors import LabError
from labkit.source.counting import find_ncu
from labkit.training import machine
from stepbudget.export import nsys

PROFILERS = ("nsys", "torch")
SYS_ADMIN, PERFMON = 21, 38  # the capabilities of Linux with which one may read a GPU's counters


@dataclass(frozen=True)
class Machine:
    """A machine as the labs see it: its first GPU, its driver, its cores, and the profilers that answer."""

    gpu: str | None  # None: no GPU that CUDA can use
    capability: tuple[int, int] | None
    cores: int  # that a process may use
    driver: str | None
    nsys: str | None  # the version of Nsight Systems; None: not found
    ncu: bool  # is Nsight Compute there?
    counters: bool  # may the GPU's counters be read?
    gpus: int = 1  # that programs may use together

    @property
    def traces(self) -> bool:
        """Does PyTorch's profiler take the place of Nsight Systems, which is not here or not wanted?"""
        return self.gpu is not None and self.nsys is None

    @property
    def bf16(self) -> bool:
        """Has the GPU arithmetic in BF16 (Ampere and later)?"""
        return self.capability is not None and self.capability >= (8, 0)

    @property
    def tf32(self) -> bool:
        """Can its Tensor Cores multiply FP32 numbers as TF32 (Ampere and later)?"""
        return self.bf16

    @property
    def hopper(self) -> bool:
        """Is the GPU a Hopper (H100, H200, GH200), whose own instructions no other generation has?"""
        return self.capability == (9, 0)


@cache
def here() -> Machine:
    """This machine."""
    gpu = machine.gpu_name() if _cuda_starts() else None
    found = _nsys()
    return Machine(
        gpu=gpu,
        capability=machine.capability() if gpu else None,
        cores=machine.usable_cores(),
        driver=machine.driver_version(),
        nsys=found.version_text if found else None,
        ncu=find_ncu() is not None,
        counters=gpu is not None and _may_count(),
        gpus=_gpus() if gpu else 0,
    )


@cache
def torch_version(what: str = "__version__") -> str | None:
    """PyTorch's version as it tells it itself and records keep it (``2.11.0+cu130``); None where it is not installed.

    It is read from PyTorch's own file, which takes no import. The installed package's metadata may lack the ending.
    ``what``: ``cuda``, the version that it was built for (``13.2``); None for a CPU build.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    told = Path(found.origin).with_name("version.py").read_text()
    match = re.search(rf"^{what}\b.*= ['\"](.+)['\"]", told, re.MULTILINE)
    return match[1] if match else None


def _nsys() -> nsys.Nsys | None:
    """The nsys that profiles here; none where ``LAB_PROFILER=torch``. LabError for another word."""
    wanted = os.environ.get("LAB_PROFILER", "").strip().lower() or PROFILERS[0]
    if wanted not in PROFILERS:
        raise LabError(f"LAB_PROFILER={wanted} is no profiler of the labs: use {' or '.join(PROFILERS)}.")
    return nsys.find_nsys() if wanted == PROFILERS[0] else None


def _cuda_starts() -> bool:
    """Does the driver's own library start? Where it does not there is no GPU to use, and PyTorch need not be asked."""
    try:
        return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _may_count() -> bool:
    """Does the driver let this process read counters: everybody, or only those with a capability that it has?"""
    try:
        if "RmProfilingAdminOnly: 0" in Path("/proc/driver/nvidia/params").read_text():
            return True
        effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return True  # unknown: the profiler will tell
    held = int(effective[1], 16) if effective else 0
    return bool(held >> SYS_ADMIN & 1 or held >> PERFMON & 1)
