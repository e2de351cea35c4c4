"""How does CUDA C++ in a string become a kernel? NVRTC compiles it while the program runs, in well under a second.

    kernel = compiled(source, "transpose", ("-DFORM=1",))
    kernel(grid, block, tensor_or_number, …)

Compiling needs NVIDIA's compiler library and no GPU; both come with PyTorch's CUDA builds (``cuda-bindings``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch


class CompileError(RuntimeError):
    """The compiler's own words."""


def cubin(source: str, capability: tuple[int, int], flags: Sequence[str] = ()) -> bytes:
    """Machine code for GPUs of this compute capability, with the source's line numbers in it, for Nsight Compute.

    CompileError with the compiler's words where it refuses; ModuleNotFoundError without ``cuda-bindings``.
    """
    from cuda.bindings import nvrtc

    program = _held(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    words = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17", "-lineinfo", *flags]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _held(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(log.decode(errors="replace").strip("\0 \n"))
        code = b" " * _held(nvrtc.nvrtcGetCUBINSize(program))
        _held(nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be started on this GPU; what it takes of a multiprocessor."""

    function: object
    registers: int  # of a thread
    shared_bytes: int  # of a block

    def __call__(self, grid: tuple[int, int], block: tuple[int, int], *arguments: torch.Tensor | int | float) -> None:
        """Start ``grid`` blocks of ``block`` threads on PyTorch's current stream.

        A tensor becomes its address, an ``int`` C's int, a ``float`` C's float.
        """
        from cuda.bindings import driver

        values = tuple(one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments)
        kinds = tuple(
            ctypes.c_void_p
            if isinstance(one, torch.Tensor)
            else ctypes.c_int
            if isinstance(one, int)
            else ctypes.c_float
            for one in arguments
        )
        stream = torch.cuda.current_stream().cuda_stream
        _held(driver.cuLaunchKernel(self.function, *grid, 1, *block, 1, 0, stream, (values, kinds), 0))


@cache
def compiled(source: str, name: str, flags: tuple[str, ...] = ()) -> Kernel:
    """The kernel called ``name`` (``extern "C"``) of a source, for this GPU; compiled once for each set of flags."""
    from cuda.bindings import driver

    torch.cuda.init()
    torch.cuda.current_stream().synchronize()  # the driver's context is PyTorch's
    library = _held(driver.cuModuleLoadData(cubin(source, torch.cuda.get_device_capability(), flags)))
    function = _held(driver.cuModuleGetFunction(library, name.encode()))
    facts = driver.CUfunction_attribute
    asked = (facts.CU_FUNC_ATTRIBUTE_NUM_REGS, facts.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    return Kernel(function, *(_held(driver.cuFuncGetAttribute(one, function)) for one in asked))


def _held(answer: tuple) -> object:
    """What a call of the driver or the compiler returns behind its status; RuntimeError where that is no success."""
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"CUDA: {status.name}")
    return rest[0] if rest else None
