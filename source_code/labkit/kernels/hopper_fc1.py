"""How few launches do the gradients around the first linear layer need? One, for Hopper, in CUDA C++, for both.

It lies beside this file: ``hopper_fc1_backward.cu``. Blocks work together in clusters: what several of them have summed
is put together from shared memory to shared memory.
"""

from __future__ import annotations

import torch

from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.hopper import FOLDER, kernel
from labkit.kernels.weights import Weights

FILES = {"fc1_backward": FOLDER / "hopper_fc1_backward.cu"}
BACKWARD_THREADS = 256  # of a block: two warpgroups
BACKWARD_BYTES = 216_392  # of shared memory: ``struct Backward``
BACKWARD_COLUMNS, BACKWARD_CLUSTER = 144, 2
UNITS, FEATURES = 128, 9216  # out of fc1, and into it


def fc1_backward(pooled: torch.Tensor, back: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Write the gradient of fc1's weight to ``weights.gradients``, float32; returns that of ``pooled``, in its shape.

    ``back`` ``(N, 128)`` is the gradient of fc1's outputs. The same numbers give the same results, to the last digit.
    LabError on a GPU that is not a Hopper.
    """
    weight, gradient = weights.copies["fc1.weight"], weights.gradients["fc1.weight"]
    if not pooled.is_cuda:
        product_in_fp32(back.t(), pooled.flatten(1), gradient)
        return (back @ weight).view_as(pooled)
    upstream = torch.empty_like(pooled)
    with torch.cuda.device(pooled.device):
        kernel("fc1_backward", BACKWARD_BYTES, files=FILES)(
            (FEATURES // BACKWARD_COLUMNS * BACKWARD_CLUSTER, 1), (BACKWARD_THREADS, 1), back, pooled, weight, upstream,
            gradient, len(pooled),
        )  # fmt: skip
    return upstream
