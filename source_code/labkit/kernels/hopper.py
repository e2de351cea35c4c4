"""How does Hopper's own instruction for products make the convolutions faster? Two kernels in CUDA C++, for main_opt8.

They lie beside this file: ``hopper_forward.cu``, from the bytes of an image to what is pooled, and
``hopper_backward.cu``, from the gradient of that to the gradients of both convolutions' weights; each begins with a
drawing of its shared memory and its warps. The hidden layer between them is never in the GPU's memory: either kernel
makes it anew in shared memory, where wgmma reads it in place. NVRTC compiles them, for compute capability 9.0 alone:
wgmma belongs to that architecture (PTX ISA, "wgmma.mma_async": ``sm_90a``).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from labkit.errors import LabError
from labkit.kernels import nvrtc
from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.conv2 import KEPT, conv1_gradient, conv2_pool, conv2_weight_gradient
from labkit.kernels.weights import Weights
from labkit.training.data import MEAN, STD

FOLDER = Path(__file__).parent
FILES = {"conv_forward": FOLDER / "hopper_forward.cu", "conv_backward": FOLDER / "hopper_backward.cu"}
HOPPER = (9, 0)
FORWARD_THREADS, BACKWARD_THREADS = 384, 512  # of a block: three and four warpgroups
FORWARD_BYTES, BACKWARD_BYTES = 85_504, 228_864  # of shared memory: ``struct Forward`` and ``struct Backward``


def is_hopper(device: torch.device) -> bool:
    """Is it a GPU that these kernels are for?"""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def conv_forward(
    images: torch.Tensor, order: torch.Tensor, weights: Weights, seeds: torch.Tensor | None = None, step: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """``dropout1(relu(max_pool2d(conv2(relu(conv1(normalise(images[order])))), 2)))`` and the winners.

    ``images`` uint8 ``(M, 28, 28)``, ``order`` int64 ``(N,)``. Dropout with the random numbers that follow from
    ``seeds[step]`` (int64), or none where ``seeds`` is None. Returns the pooled values, BF16 (in the weights' type on
    the CPU), and the winners as ``conv2_pool`` has them, uint8, ``(N, 12, 12, 64)`` both. LabError on a GPU that is
    not a Hopper.
    """
    value, copy = weights.values, weights.copies
    first = value["conv1.weight"], value["conv1.bias"]
    if not images.is_cuda:
        return conv2_pool(conv1_relu(images, order, *first), copy["conv2.weight"], value["conv2.bias"], seeds, step)
    count = len(order)
    pooled = torch.empty(count, 12, 12, 64, dtype=torch.bfloat16, device=images.device)
    winner = torch.empty(count, 12, 12, 64, dtype=torch.uint8, device=images.device)
    with torch.cuda.device(images.device):
        _kernel("conv_forward", FORWARD_BYTES, seeds is not None)(
            (min(count, _multiprocessors(images.device.index)), 1), (FORWARD_THREADS, 1), images, order, *first,
            copy["conv2.weight"], value["conv2.bias"], order if seeds is None else seeds, pooled, winner, count, step,
        )  # fmt: skip
    return pooled, winner


def conv_backward(
    images: torch.Tensor,
    order: torch.Tensor,
    weights: Weights,
    upstream: torch.Tensor,
    winner: torch.Tensor,
    kept: float = KEPT,
) -> None:
    """Add the gradients of both convolutions' weights and biases to ``weights.gradients``, float32.

    ``upstream`` is the gradient of ``conv_forward``'s first result, ``winner`` its second; ``kept`` is 1 where that was
    without dropout. Blocks add their shares with atomics: the last digits change from run to run.
    """
    value, copy, gradient = weights.values, weights.copies, weights.gradients
    first = value["conv1.weight"], value["conv1.bias"]
    out = [gradient[name] for name in ("conv2.weight", "conv2.bias", "conv1.weight", "conv1.bias")]
    if not images.is_cuda:
        hidden = conv1_relu(images, order, *first)
        conv2_weight_gradient(hidden, upstream, winner, *out[:2], kept)
        conv1_gradient(images, order, hidden, upstream, winner, copy["conv2.weight"], *out[2:], kept)
        return
    count = len(order)
    with torch.cuda.device(images.device):
        _kernel("conv_backward", BACKWARD_BYTES)(
            (min(count, _multiprocessors(images.device.index)), 1), (BACKWARD_THREADS, 1), images, order, *first,
            copy["conv2.weight"], upstream, winner, *out, count, 1 / kept,
        )  # fmt: skip


@cache
def flags(dropout: bool) -> tuple[str, ...]:
    """The compiler's, for kernels with dropout or without. Raises as ``nvrtc.headers``."""
    constants = {"DROPOUT": int(dropout), "MEAN": f"{MEAN}f", "STD": f"{STD}f", "KEPT": f"{KEPT}f"}
    folders = (f"--include-path={folder}" for folder in (nvrtc.headers(), FOLDER))
    return "--gpu-architecture=sm_90a", *folders, *(f"-D{name}={value}" for name, value in constants.items())


def _kernel(name: str, more_bytes: int, dropout: bool = False) -> nvrtc.Kernel:
    """For PyTorch's current GPU; ``nvrtc`` keeps one for each."""
    if not is_hopper(torch.device("cuda")):
        raise LabError(f"these kernels are for Hopper (H100, H200, GH200), not for {torch.cuda.get_device_name()}.")
    return nvrtc.compiled(nvrtc.source(FILES[name]), name, flags(dropout), more_bytes)


@cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
