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


class PoolWindows(torch.autograd.Function):
    """2 x 2 max pooling of ``(N, 24, 24, C)``, channels last, that remembers one byte a window: which of the four won.

    PyTorch's own remembers an int64 index, and a compiler turns its backward into a search; here it is a comparison.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        count, height, width, channels = x.shape
        windows = x.view(count, height // 2, 2, width // 2, 2, channels)
        a, b, c, d = (windows[:, :, row, :, column] for row in (0, 1) for column in (0, 1))
        best = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        winner = torch.where(a == best, 0, torch.where(b == best, 1, torch.where(c == best, 2, 3)))
        ctx.save_for_backward(winner.to(torch.uint8))
        return best

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        (winner,) = ctx.saved_tensors
        count, height, width, channels = winner.shape
        place = torch.arange(4, device=winner.device, dtype=torch.uint8).view(2, 1, 2, 1)
        windows = torch.where(winner[:, :, None, :, None] == place, gradient[:, :, None, :, None], 0)
        return windows.reshape(count, 2 * height, 2 * width, channels)


class FirstLayer(torch.autograd.Function):
    """``relu(conv1(x))`` of ``(N, 28, 28)``, channels last, ``(N, 26, 26, 32)``, without a convolution.

    With one input channel an output is nine multiplications and additions, which a compiler puts into one pass over
    memory. The weights' gradient is a matrix product, of patches in rows of 16: nine pixels, a 1 for the bias, and six
    zeros, since Tensor Cores take 16. It is made for each sample, then summed: not one product 692,224 long.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        y = bias
        for row in range(3):
            for column in range(3):
                y = y + x[:, row : row + 26, column : column + 26, None] * weight[:, 0, row, column]
        y = F.relu(y).to(dtype)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y = ctx.saved_tensors
        count = len(x)
        pixels = x.unfold(1, 3, 1).unfold(2, 3, 1).reshape(count, 26 * 26, 9)
        patches = torch.cat([pixels, pixels.new_ones(count, 26 * 26, 1), pixels.new_zeros(count, 26 * 26, 6)], dim=2)
        alive = torch.where(y > 0, gradient, 0).view(count, 26 * 26, 32)
        shares = torch.bmm(alive.transpose(1, 2), patches.to(alive.dtype))  # (N, 32, 16)
        total = shares.sum(0, dtype=x.dtype)
        return None, total[:, :9].reshape(32, 1, 3, 3), total[:, 9], None


class LeanNet(Net):
    """``Net``, the same function of the same parameters, in an order that moves less memory.

    The first convolution is no convolution; the second one's bias and ReLU come after the pooling, for a quarter of the
    values: the largest of four stays the largest. All stays channels-last: fc1's weights are put in that order.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x = FirstLayer.apply(x.view(-1, 28, 28), self.conv1.weight, self.conv1.bias, dtype)
        x = F.conv2d(x.permute(0, 3, 1, 2), self.conv2.weight).permute(0, 2, 3, 1)
        x = self.dropout1(F.relu(PoolWindows.apply(x) + self.conv2.bias.to(x.dtype)))
        weight = self.fc1.weight.view(128, 64, 144).transpose(1, 2).flatten(1)
        x = F.relu(F.linear(x.flatten(1), weight, self.fc1.bias))
        x = self.fc2(self.dropout2(x))
        return F.log_softmax(x, dim=1)
