"""How does a linear layer multiply in FP8? Every matrix gets a scale of its own, out of its largest number.

The recipe is NVIDIA's (Micikevicius et al., FP8 Formats for Deep Learning, 2022, arXiv:2209.05433): inputs and weights
in E4M3, which has more digits; gradients in E5M2, which has more range. The scale is worked out anew for each product
("dynamic scaling"), for the whole matrix ("per tensor") or for each of its rows ("row-wise").
"""

from __future__ import annotations

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2  # largest: 448 and 57344; digits after the leading one: 3 and 2
UNIT = 16  # rows, columns and inner size are multiples of it: what the FP8 Tensor Cores' products take


def quantised(x: torch.Tensor, kind: torch.dtype, by_row: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` as FP8 numbers and the scale to multiply them by: FP32, one number, or ``(rows, 1)``.

    The largest number of ``x``, or of the row, becomes the largest that ``kind`` has.
    """
    largest = x.abs().amax(dim=1, keepdim=True) if by_row else x.abs().amax()
    scale = largest.float().clamp(min=1e-30) / torch.finfo(kind).max  # of nothing but zeros: any scale will do
    return (x / scale).to(kind), scale


def product(a, b, scale_a, scale_b, out: torch.dtype, fast: bool) -> torch.Tensor:
    """``a @ b`` of FP8 matrices, times both scales: ``a`` row-major ``(m, k)``, ``b`` column-major ``(k, n)``.

    ``fast``: sums are kept in fewer than FP32's digits while they grow, which Hopper's Tensor Cores do faster. On a CPU
    the same FP8 numbers are multiplied in FP32.
    """
    if a.device.type == "cpu":
        return (a.float() @ b.float() * scale_a * scale_b).to(out)
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out, use_fast_accum=fast)


class _Multiplied(torch.autograd.Function):
    """``x @ weight.T`` for ``x`` of ``(rows, inputs)``; all three products of a training step are in FP8."""

    @staticmethod
    def forward(ctx, x, weight, out):
        x8, scale_x = quantised(x, E4M3)
        w8, scale_w = quantised(weight, E4M3)
        ctx.save_for_backward(x8, scale_x, w8, scale_w)  # one byte a number
        ctx.kinds = x.dtype, weight.dtype
        return product(x8, w8.t(), scale_x, scale_w, out, fast=True)

    @staticmethod
    def backward(ctx, gradient):
        x8, scale_x, w8, scale_w = ctx.saved_tensors
        g8, scale_g = quantised(gradient, E5M2)
        # The product wants its second matrix column by column in memory: of a matrix that lies in rows, a copy.
        of_x = product(g8, w8.t().contiguous().t(), scale_g, scale_w, ctx.kinds[0], fast=False)
        of_weight = product(g8.t().contiguous(), x8.t().contiguous().t(), scale_g, scale_x, ctx.kinds[1], fast=False)
        return of_x, of_weight, None


class Float8Linear(nn.Linear):
    """A linear layer that multiplies in FP8. Its weights stay as they are: the optimizer sees no FP8.

    The result is in autocast's type where that is on, else in the input's. ValueError where a size is no multiple of
    16.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, -2)
        if any(size % UNIT for size in (len(rows), self.in_features, self.out_features)):
            sizes = f"{len(rows)} x {self.in_features} times {self.in_features} x {self.out_features}"
            raise ValueError(f"FP8 products want sizes in multiples of {UNIT}: {sizes}")
        kind = x.device.type
        out = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        result = _Multiplied.apply(rows, self.weight, out)
        result = result if self.bias is None else result + self.bias.to(out)
        return result.unflatten(0, x.shape[:-1])


def to_float8(model: nn.Module, but: tuple[str, ...] = ()) -> nn.Module:
    """Make all linear layers multiply in FP8, in place, but those called so and those whose sizes do not fit.

    Weights, and so the model's state, remain. Usual exceptions: the first layer and the last.
    """
    for name, layer in model.named_modules():
        fits = type(layer) is nn.Linear and not (layer.in_features % UNIT or layer.out_features % UNIT)
        if fits and name not in but:
            layer.__class__ = Float8Linear
    return model


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """``‖found - exact‖ / ‖exact‖``, in FP64."""
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / exact.norm())
