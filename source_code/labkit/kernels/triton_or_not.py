"""Is Triton there, and does it run this tensor? It comes with PyTorch's CUDA builds for Linux only."""

import os
import sys
from functools import cache

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of PyTorch: the kernels cannot be built, but their modules can be imported

    class triton:
        """Stands in for the package where it is absent, so that a module with kernels can be imported."""

        @staticmethod
        def jit(function=None, **_):
            return function or (lambda kernel: kernel)

    class tl:
        """Stands in for triton.language in the kernels' signatures, and in the constants that they read."""

        class constexpr:
            def __init__(self, value: object) -> None:
                self.value = value


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run in Python, on any machine

EARLY = hasattr(getattr(getattr(tl, "extra", None), "cuda", None), "gdc_wait")  # programmatic dependent launch

NARROW = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter cannot multiply in BF16


def runs_triton(tensor: torch.Tensor) -> bool:
    """Does Triton run kernels on this tensor? On a GPU, or anywhere with TRITON_INTERPRET=1 (slow, for tests)."""
    return tensor.is_cuda or INTERPRETED


def starts_early(tensor: torch.Tensor) -> bool:
    """May a kernel start before the one that it waits for has ended? On Hopper and newer, by Triton 3.4 and newer."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0) and EARLY


def programs(tensor: torch.Tensor, per_multiprocessor: int) -> int:
    """How many programs to start for a kernel whose programs loop over the work: so many a multiprocessor."""
    if not tensor.is_cuda:
        return 3
    return per_multiprocessor * torch.cuda.get_device_properties(tensor.device).multi_processor_count


def shared_memory(tensor: torch.Tensor) -> int:
    """How many bytes of shared memory a program may use on this tensor's GPU, as Triton asks the driver.

    From 101,376 to 232,448: NVIDIA, "CUDA C++ Programming Guide", table "Technical Specifications per Compute
    Capability". The interpreter knows no limit.
    """
    return _shared_memory(tensor.device.index) if tensor.is_cuda else sys.maxsize


@cache  # Triton asks the driver anew at each call, for clock rates, too
def _shared_memory(device: int) -> int:
    return triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]
