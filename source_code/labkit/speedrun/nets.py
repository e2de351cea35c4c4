"""Which network do the entries on 'any net' share? Two pooled convolutions and two linear layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

MATRICES = ("conv1", "conv2", "linear1")  # what Muon steps


class SmallNet(nn.Module):
    """Weights only: ``first`` channels of 5 x 5 pixels, ``second`` of 3 x 3, each pooled, then ``units``, then ten.

    Those of the convolutions are channels-last: ``(out, height, width, in)``.
    """

    def __init__(self, first: int, second: int, units: int) -> None:
        super().__init__()
        shapes = {
            "conv1": (first, 5, 5, 1), "conv1_bias": (first,),
            "conv2": (second, 3, 3, first), "conv2_bias": (second,),
            "linear1": (units, 5 * 5 * second), "linear1_bias": (units,),
            "linear2": (10, units), "linear2_bias": (10,),
        }  # fmt: skip
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights and biases as PyTorch's own layers draw them: uniform, within 1 / √inputs."""
        for name, parameter in self.named_parameters():
            inputs = getattr(self, name.removesuffix("_bias"))[0].numel()
            parameter.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs))


def first_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution of ``(N, 1, 28, 28)`` by ``(C, k, k, 1)``: each sample's patches, in rows of a multiple of 8."""
    count, size = len(x), weight.shape[1]
    side, fill = 29 - size, -size * size % 8
    patches = x[:, 0].unfold(1, size, 1).unfold(2, size, 1).reshape(count, side * side, size * size)
    matrix = F.pad(weight.flatten(1), (0, fill)).t()
    y = torch.bmm(F.pad(patches, (0, fill)), matrix.expand(count, *matrix.shape))
    return y.view(count, side, side, -1).permute(0, 3, 1, 2)


def convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of ``(N, C, height, width)`` by ``(out, k, k, C)``."""
    return F.conv2d(x, weight.permute(0, 3, 1, 2))
