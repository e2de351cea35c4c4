"""How does CUDA C++ become a kernel? NVRTC compiles it while the program runs, in about a second, once a machine.

    kernel = compiled(source, "transpose", ("-DFORM=1",))
    kernel(grid, block, tensor_or_number, …)

Compiling needs NVIDIA's compiler library and no GPU; both come with PyTorch's CUDA builds (``cuda-bindings``). What it
made is kept beside what Triton keeps (``TRITON_CACHE_DIR``), for the next process.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from labkit.errors import LabError

INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]+)[>"]')
FREE_BYTES = 48 << 10  # of a block's shared memory: more has to be asked for (CUDA C++ Programming Guide)


class CompileError(RuntimeError):
    """The compiler's own words."""


class TooLarge(RuntimeError):
    """A block needs more shared memory than this GPU has for one."""


@dataclass(frozen=True)
class Code:
    """What the compiler made of a source: machine code for one GPU, and the assembly on the way there."""

    cubin: bytes
    ptx: str


@cache
def code(source: str, capability: tuple[int, int], flags: tuple[str, ...] = ()) -> Code:
    """The code for GPUs of this compute capability, with the source's line numbers in it, for Nsight Compute.

    ``flags``: the compiler's, for example ``-DNAME=value``, ``--include-path=…``, or another
    ``--gpu-architecture=sm_90a``, whose instructions one GPU alone has. CompileError with the compiler's
    words where it refuses; LabError without ``cuda-bindings``.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise LabError("CUDA C++ is compiled by way of cuda-bindings: pip install cuda-bindings.") from None

    words = ["--std=c++17", "-lineinfo", *flags]
    if not any(word.startswith("--gpu-architecture=") for word in flags):
        words.append(f"--gpu-architecture=sm_{capability[0]}{capability[1]}")
    kept = _kept(source, words, nvrtc.nvrtcVersion())
    with suppress(OSError):
        return Code(kept.with_suffix(".cubin").read_bytes(), kept.with_suffix(".ptx").read_text(encoding="utf-8"))

    program = _held(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise CompileError(log.decode(errors="replace").strip("\0 \n"))
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        made = Code(_text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), ptx.decode().strip("\0"))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    with suppress(OSError):  # a disk that is full, or not ours to write on: the next process compiles again
        kept.parent.mkdir(parents=True, exist_ok=True)
        for suffix, content in ((".cubin", made.cubin), (".ptx", made.ptx.encode())):
            unfinished = kept.with_suffix(f"{suffix}.{os.getpid()}")
            unfinished.write_bytes(content)
            unfinished.replace(kept.with_suffix(suffix))  # whole or not at all, whoever else writes it
    return made


def _kept(source: str, words: list[str], version: tuple) -> Path:
    """Where a source's code is kept: elsewhere once it, a file that it includes, a flag or the compiler changes."""
    folders = [Path(word.removeprefix("--include-path=")) for word in words if word.startswith("--include-path=")]
    key, left, seen = hashlib.sha256(repr((version, words)).encode()), [source], set()
    while left:
        text = left.pop()
        key.update(text.encode())
        places = [folder / name for name in INCLUDE.findall(text) for folder in folders or [Path()]]
        files = [file for file in places if file not in seen and file.is_file()]
        left += [file.read_text(encoding="utf-8", errors="replace") for file in files]
        seen.update(files)
    cache = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    return Path(cache) / "nvrtc" / key.hexdigest()


def source(file: Path) -> str:
    """What to hand to ``code`` or ``compiled``: the file by its name, so that a profiler finds it."""
    return f'#include "{file}"\n'


def headers() -> Path:
    """Where ``mma.h`` lies with all that it includes: Triton brings CUDA's headers, as a CUDA toolkit does.

    (The packages that pip brings with PyTorch hold ``mma.h`` alone.) LabError where there are none.
    """
    triton = importlib.util.find_spec("triton")
    places = [Path(found) / "backends/nvidia" for found in (triton and triton.submodule_search_locations) or ()]
    places += [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for include in (place / "include" for place in places):
        if (include / "mma.h").is_file() and (include / "crt/mma.h").is_file():
            return include
    raise LabError("CUDA's headers are not here: Triton brings them, or a CUDA toolkit, which CUDA_HOME names.")


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be started on this GPU; what it takes of a multiprocessor."""

    function: object
    registers: int  # of a thread
    shared_bytes: int  # of a block, as its source declares them
    more_bytes: int = 0  # of a block, as asked for: the kernel's ``extern __shared__``

    def __call__(
        self, grid: tuple[int, int], block: tuple[int, int], *arguments: torch.Tensor | int | float | ctypes.Structure
    ) -> None:
        """Start ``grid`` blocks of ``block`` threads on PyTorch's current stream.

        A tensor becomes its address, an ``int`` C's int, a ``float`` C's float; a structure goes by value.
        """
        from cuda.bindings import driver

        values = tuple(one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments)
        kinds = tuple(
            ctypes.c_void_p
            if isinstance(one, torch.Tensor)
            else None  # as cuda-bindings has it: the structure says its own size
            if isinstance(one, ctypes.Structure)
            else ctypes.c_int
            if isinstance(one, int)
            else ctypes.c_float
            for one in arguments
        )
        stream = torch.cuda.current_stream().cuda_stream
        _held(driver.cuLaunchKernel(self.function, *grid, 1, *block, 1, self.more_bytes, stream, (values, kinds), 0))


def compiled(source: str, name: str, flags: Sequence[str] = (), more_bytes: int = 0) -> Kernel:
    """The kernel called ``name`` (``extern "C"``) of a source, for PyTorch's current GPU; made once for each.

    ``more_bytes`` of shared memory for its blocks, beside those that the source declares. Raises as ``code``; TooLarge
    where a block has not so many; RuntimeError with the driver's status where that refuses.
    """
    return _loaded(source, name, tuple(flags), more_bytes, torch.cuda.current_device())


@cache
def _loaded(source: str, name: str, flags: tuple[str, ...], more_bytes: int, device: int) -> Kernel:
    machine = code(source, torch.cuda.get_device_capability(device), flags).cubin
    from cuda.bindings import driver

    torch.cuda.current_stream().synchronize()  # the driver's context is PyTorch's
    function = _held(driver.cuModuleGetFunction(_held(driver.cuModuleLoadData(machine)), name.encode()))
    facts = driver.CUfunction_attribute
    asked = (facts.CU_FUNC_ATTRIBUTE_NUM_REGS, facts.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    registers, shared_bytes = (_held(driver.cuFuncGetAttribute(one, function)) for one in asked)
    if shared_bytes + more_bytes > FREE_BYTES:
        most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        there = _held(driver.cuDeviceGetAttribute(most, device))
        if shared_bytes + more_bytes > there:
            raise TooLarge(f"{name}: {shared_bytes + more_bytes:,} bytes of shared memory, and a block has {there:,}")
        _held(driver.cuFuncSetAttribute(function, facts.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, more_bytes))
    return Kernel(function, registers, shared_bytes, more_bytes)


def _text(size: object, get: object, program: object) -> bytes:
    """What the compiler holds of a program, whose size one of its functions tells and another copies."""
    held = bytearray(_held(size(program)))
    _held(get(program, held))
    return bytes(held)


def _held(answer: tuple) -> object:
    """What a call of the driver or the compiler returns behind its status; RuntimeError where that is no success."""
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"CUDA: {status.name}")
    return rest[0] if rest else None
