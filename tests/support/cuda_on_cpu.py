"""A kernel in CUDA C++, run on the CPU: a thread of the system for each of a block's, one block after another.

Its source is compiled by g++ as it is. Threads of a block meet at ``__syncthreads``, shared memory is the block's own.
What it is not: fast, or a model of warps. For index arithmetic, masks and what lies between the barriers it will do.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

COMPILER = shutil.which("g++")
AROUND = r"""
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>
struct Place {{ int x, y; }};
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static std::barrier<> *meeting;
#define __global__
#define __device__
#define __shared__ static
static void __syncthreads() {{ meeting->arrive_and_wait(); }}
static long long clock64() {{ return 0; }}
{source}
extern "C" void run(Place grid, Place block{parameters})
{{
    gridDim = grid, blockDim = block;
    std::barrier<> all(block.x * block.y);
    meeting = &all;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < block.x * block.y; ++thread)
        threads.emplace_back([=] {{
            threadIdx = {{thread % block.x, thread / block.x}};
            for (int number = 0; number < grid.x * grid.y; ++number) {{
                blockIdx = {{number % grid.x, number / grid.x}};
                {name}({arguments});
                __syncthreads();
            }}
        }});
    for (auto &thread : threads)
        thread.join();
}}
"""


class Place(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int))


def run(
    source: str, name: str, defines: Sequence[str], grid: tuple, block: tuple, arguments: Sequence, folder: Path
) -> None:
    """Run ``grid`` blocks of ``block`` threads of the kernel; tensors are changed in place. A race is not noticed."""
    words = {torch.float32: "float *", torch.int64: "long long *"}
    types = [words[a.dtype] if isinstance(a, torch.Tensor) else "int " if isinstance(a, int) else "float "
             for a in arguments]  # fmt: skip
    names = [f"a{number}" for number in range(len(arguments))]
    parameters = "".join(f", {kind}{own}" for kind, own in zip(types, names, strict=True))
    text = AROUND.format(source=source, name=name, parameters=parameters, arguments=", ".join(names))
    library = folder / f"kernel{abs(hash((text, *defines)))}.so"
    if not library.exists():  # the same kernel again, of other sizes
        file = folder / "kernel.cpp"
        file.write_text(text)
        command = [COMPILER, "-std=c++20", "-w", "-shared", "-fPIC", "-pthread", *defines, str(file)]
        subprocess.run([*command, "-o", str(library)], check=True, capture_output=True, text=True)
    values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a)
              if isinstance(a, int) else ctypes.c_float(a) for a in arguments]  # fmt: skip
    ctypes.CDLL(str(library)).run(Place(*grid), Place(*block), *values)
