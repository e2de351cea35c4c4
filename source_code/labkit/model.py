"""What is trained? The network of PyTorch's MNIST example, and how many operations one sample costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """Two convolutions and two linear layers: 1,199,882 parameters.

    Layers, sizes and dropout rates are those of the ``mnist`` example in the pytorch/examples repository.
    Input ``(N, 1, 28, 28)``, output ``(N, 10)`` log-probabilities.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(x.flatten(1)))
        x = self.fc2(self.dropout2(x))
        return F.log_softmax(x, dim=1)


def flops_per_sample() -> dict[str, int]:
    """Floating-point operations of one sample's forward pass, a layer each (a multiply and an add count as two)."""
    return {
        "conv1": 2 * 26 * 26 * 32 * 1 * 9,
        "conv2": 2 * 24 * 24 * 64 * 32 * 9,
        "fc1": 2 * 9216 * 128,
        "fc2": 2 * 128 * 10,
    }


def training_flops_per_sample() -> int:
    """Forward and backward of one sample.

    Backward costs a convolution or product twice (gradients of weights and of inputs), except in the first layer,
    whose input needs no gradient.
    """
    layers = flops_per_sample()
    return 3 * sum(layers.values()) - layers["conv1"]
