"""How few launches does the first linear layer need? Two, for Hopper, in CUDA C++, where main_opt7 has five or six.

They lie beside this file: ``hopper_fc1_head.cu``, the product with fc1's weight and all behind it, down to the loss and
back up to the gradient ``back`` of fc1's outputs, as ``head`` computes it; and ``hopper_fc1_backward.cu``, both
products with that. Blocks work together in clusters: what several of them have summed is put together from shared
memory to shared memory.
"""

from __future__ import annotations

import torch

from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.head import head
from labkit.kernels.hopper import FOLDER, kernel
from labkit.kernels.rungs import tensor_map
from labkit.kernels.weights import Weights

FILES = {"fc1_head": FOLDER / "hopper_fc1_head.cu", "fc1_backward": FOLDER / "hopper_fc1_backward.cu"}
HEAD_THREADS, BACKWARD_THREADS = 160, 256  # of a block: five warps, and two warpgroups
HEAD_BYTES, BACKWARD_BYTES = 207_520, 216_392  # of shared memory: ``struct Head`` and ``struct Backward``
HEAD_SAMPLES, HEAD_CLUSTER = 64, 8  # a cluster's, and its blocks
BACKWARD_COLUMNS, BACKWARD_CLUSTER = 144, 2
UNITS, FEATURES = 128, 9216  # out of fc1, and into it


def fc1_head(
    pooled: torch.Tensor,
    labels: torch.Tensor,
    order: torch.Tensor,
    weights: Weights,
    losses: torch.Tensor,
    seeds: torch.Tensor | None = None,
    step: int = 0,
) -> torch.Tensor:
    """``head(pooled.flatten(1) @ fc1.weight.T, …)``: adds loss and small gradients, returns ``back`` ``(N, 128)``.

    ``pooled`` BF16 ``(N, 12, 12, 64)``, ``labels`` and ``order`` int64. Dropout as ``head`` chooses from
    ``seeds[step]``. The sums are never rounded to BF16, as they are on their way from a product into ``head``. LabError
    on a GPU that is not a Hopper.
    """
    weight = weights.copies["fc1.weight"]
    if not pooled.is_cuda:
        return head(pooled.flatten(1) @ weight.t(), labels, order, weights, losses, seeds, step)
    value, gradient, count = weights.values, weights.gradients, len(pooled)
    names = ("fc1.bias", "fc2.weight", "fc2.bias")
    back = torch.empty(count, UNITS, dtype=pooled.dtype, device=pooled.device)
    with torch.cuda.device(pooled.device):
        kernel("fc1_head", HEAD_BYTES, seeds is not None, FILES)(
            (-(-count // HEAD_SAMPLES) * HEAD_CLUSTER, 1), (HEAD_THREADS, 1),
            tensor_map(pooled.flatten(1), HEAD_SAMPLES), tensor_map(weight, UNITS), *(value[name] for name in names),
            labels, order, order if seeds is None else seeds, losses, back, *(gradient[name] for name in names),
            count, step,
        )  # fmt: skip
    return back


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
