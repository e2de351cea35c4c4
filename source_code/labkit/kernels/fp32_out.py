"""Who rounds a product of BF16 matrices that is wanted in FP32? Nobody, where the product itself writes FP32.

Tensor Cores sum in FP32 anyway. A product that rounds its sums to BF16 wants another launch to widen them again: for
fc1's weight gradient, 1.2 million numbers, that is 5 MB to write and to read again.
"""

import torch

WRITES_FP32 = hasattr(torch.ops.aten.mm, "dtype_out")  # torch 2.8 and newer, for CUDA


def product_in_fp32(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out[:] = a @ b``: ``a`` ``(M, K)`` and ``b`` ``(K, N)`` both BF16 or both FP16, ``out`` float32 ``(M, N)``.

    On the CPU, of whatever type, and with an older PyTorch: in the type of ``a`` and ``b``, then copied.
    """
    if WRITES_FP32 and a.is_cuda:
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    else:
        out.copy_(a @ b)
