"""How does Hopper's own instruction for products make the convolutions faster? Two kernels in CUDA C++, for main_opt8.

``convolutions`` holds them. Forward, from the bytes of an image to what is pooled; backward, from the gradient of that
to the gradients of both convolutions' weights. The hidden layer between them is never in the GPU's memory: either
kernel makes it anew in shared memory, where wgmma reads it in place. NVRTC compiles them, for compute capability 9.0
alone: wgmma belongs to that architecture (PTX ISA, "wgmma.mma_async": ``sm_90a``).
"""

from __future__ import annotations

from functools import cache

import torch

from labkit.errors import LabError
from labkit.kernels import convolutions, nvrtc
from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.conv2 import KEPT, conv1_gradient, conv2_pool, conv2_weight_gradient
from labkit.kernels.weights import Weights

HOPPER = (9, 0)
FORWARD_THREADS, BACKWARD_THREADS = 384, 512  # of a block: three and four groups of four warps
FORWARD_BYTES, BACKWARD_BYTES = 130_336, 229_376  # of shared memory: ``struct Forward`` and ``struct Backward``


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
    kernel = _kernel("conv_forward", FORWARD_BYTES, seeds is not None)
    kernel(
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
    _kernel("conv_backward", BACKWARD_BYTES)(
        (min(count, _multiprocessors(images.device.index)), 1), (BACKWARD_THREADS, 1), images, order, *first,
        copy["conv2.weight"], upstream, winner, *out, count, 1 / kept,
    )  # fmt: skip


def source() -> str:
    """The kernels with the products that they ask for."""
    products = (
        _product("multiply_104", 104),
        _product("multiply_96", 96, left_turned=True),
        _product("multiply_32", 32, in_registers=True),
        _product("multiply_turned_96", 96, in_registers=True, turned=True),
        _product("multiply_turned_16", 16, in_registers=True, turned=True),
    )
    common = convolutions.COMMON.replace("// PRODUCTS\n", "\n".join(products))
    return "\n".join((common, convolutions.FORWARD, convolutions.BACKWARD))


def flags(dropout: bool) -> tuple[str, ...]:
    """The compiler's, for kernels with dropout or without."""
    return "--gpu-architecture=sm_90a", f"-DDROPOUT={int(dropout)}"


@cache
def _kernel(name: str, more_bytes: int, dropout: bool = False) -> nvrtc.Kernel:
    if torch.cuda.get_device_capability() != HOPPER:
        raise LabError(f"these kernels are for Hopper (H100, H200, GH200), not for {torch.cuda.get_device_name()}.")
    return nvrtc.compiled(source(), name, flags(dropout), more_bytes)


@cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _product(
    name: str, columns: int, in_registers: bool = False, left_turned: bool = False, turned: bool = False
) -> str:
    """A function for one wgmma: 64 rows by so many columns, over 16 numbers, onto ``columns // 2`` sums a thread.

    The left side lies in registers or in shared memory, the right one in shared memory; ``turned`` where what lies
    side by side there is not the sum's. An instruction names each register on its own: so a program writes it.
    """
    sums = columns // 2
    held = ", ".join(f"%{place}" for place in range(sums))
    outputs = ", ".join(f'"+f"(sum[{place}])' for place in range(sums))
    if in_registers:
        left, right, add = f"{{%{sums}, %{sums + 1}, %{sums + 2}, %{sums + 3}}}", f"%{sums + 4}", f"%{sums + 5}"
        inputs = ", ".join(f'"r"(a[{place}])' for place in range(4))
    else:
        left, right, add, inputs = f"%{sums}", f"%{sums + 1}", f"%{sums + 2}", '"l"(a)'
    turns = f"{int(turned)}" if in_registers else f"{int(left_turned)}, {int(turned)}"
    kind = "const u32 (&a)[4]" if in_registers else "u64 a"
    return f"""__device__ __forceinline__ void {name}(float (&sum)[{sums}], {kind}, u64 b, int add) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, {add}, 0; "
        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{held}}}, {left}, {right}, p, 1, 1, {turns}; }}"
        : {outputs} : {inputs}, "l"(b), "r"(add));
}}
"""
