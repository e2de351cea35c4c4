"""How do kernels of our own come under autograd and torch.compile? As one operator that PyTorch knows by name.

The hot block of the network, from the bytes of the images to dropout1, in the four kernels of ``conv1`` and ``conv2``.
All around it stays PyTorch's: parameters, optimizer, the layers behind it. What ``torch.library`` is told of the
operator is what a compiler and autograd have to know: what comes out of which shapes (without running it), and what
the way back is. The compiler puts it into its graph whole, and looks no further.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.conv2 import KEPT, conv1_gradient, conv2_pool, conv2_weight_gradient
from labkit.kernels.triton_or_not import NARROW, runs_triton
from labkit.training.model import Net

# Gradients lie in one array, which is emptied in one launch: those of conv2's weight and bias, then conv1's.
SHAPES = (64, 3, 3, 32), (64,), (32, 1, 3, 3), (32,)
SIZES = [torch.Size(shape).numel() for shape in SHAPES]


def _for_kernels(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """conv2's weight channels last, in the type of what it is multiplied by."""
    return weight.permute(0, 2, 3, 1).to(like.dtype).contiguous()


@torch.library.custom_op("labkit::block", mutates_args=())
def block(
    images: torch.Tensor,
    order: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    seed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``dropout1(max_pool2d(relu(conv2(relu(conv1(normalise(images[order]))))), 2))``, channels last.

    ``images`` uint8 ``(M, 28, 28)``, ``order`` int64 ``(N,)``; weights and biases of both convolutions float32, in
    PyTorch's layout. Dropout with the random numbers that follow from ``seed``, int64 ``(1,)`` on the device: a graph
    that draws it drops others at each launch. None: no dropout. Returns BF16 ``(N, 12, 12, 64)`` (in the weights' type
    on the CPU), and what the way back needs: the winners of ``conv2_pool``, and conv1's output.
    """
    with torch.autocast(images.device.type, enabled=False):
        hidden = conv1_relu(images, order, weight1, bias1)
        pooled, winner = conv2_pool(hidden, _for_kernels(weight2, hidden), bias2, seed)
    return pooled, winner, hidden


@block.register_fake
def _(images, order, weight1, bias1, weight2, bias2, seed=None):
    count, dtype = order.shape[0], NARROW if runs_triton(images) else weight1.dtype
    pooled = images.new_empty(count, 12, 12, 64, dtype=dtype)
    return pooled, images.new_empty(count, 12, 12, 64), images.new_empty(count, 26, 26, 32, dtype=dtype)


@torch.library.custom_op("labkit::block_gradients", mutates_args=())
def block_gradients(
    images: torch.Tensor,
    order: torch.Tensor,
    weight2: torch.Tensor,
    winner: torch.Tensor,
    hidden: torch.Tensor,
    upstream: torch.Tensor,
    kept: float,
) -> torch.Tensor:
    """The gradients of SHAPES, one behind the other, from ``upstream``, that of the block's first result.

    ``kept`` is dropout's, 1 without it.
    """
    found = torch.zeros(sum(SIZES), dtype=weight2.dtype, device=weight2.device)
    of_weight2, of_bias2, of_weight1, of_bias1 = _parts(found)
    upstream = upstream.contiguous()
    conv2_weight_gradient(hidden, upstream, winner, of_weight2, of_bias2, kept)
    weight = _for_kernels(weight2, hidden)
    conv1_gradient(images, order, hidden, upstream, winner, weight, of_weight1, of_bias1, kept)
    return found


@block_gradients.register_fake
def _(images, order, weight2, winner, hidden, upstream, kept):
    return weight2.new_empty(sum(SIZES))


def _parts(gradients: torch.Tensor) -> list[torch.Tensor]:
    return [part.view(shape) for part, shape in zip(gradients.split(SIZES), SHAPES, strict=True)]


def _remember(ctx, inputs, output) -> None:
    images, order, _, _, weight2, _, seed = inputs
    _, winner, hidden = output
    ctx.kept = 1.0 if seed is None else KEPT
    ctx.save_for_backward(images, order, weight2, winner, hidden)
    ctx.mark_non_differentiable(winner, hidden)
    ctx.set_materialize_grads(False)


def _back(ctx, upstream, *_) -> tuple[torch.Tensor | None, ...]:
    weight2, bias2, weight1, bias1 = _parts(block_gradients(*ctx.saved_tensors, upstream, ctx.kept))
    return None, None, weight1, bias1, weight2.permute(0, 3, 1, 2), bias2, None


block.register_autograd(_back, setup_context=_remember)


class BlockNet(Net):
    """``Net``, the same function of the same parameters, of bytes: its hot block is one operator.

    dropout1 is in the operator: with its rate of 0.25, or with none where that is set to 0. The block multiplies in
    BF16 on a GPU, what is behind it as autocast says.
    """

    def forward(self, images: torch.Tensor, order: torch.Tensor | None = None) -> torch.Tensor:
        """Of the digits ``images[order]``, or of all: uint8 ``(M, 28, 28)`` and int64 ``(N,)``."""
        device = images.device
        if order is None:
            order = torch.arange(len(images), device=device)
        drops = self.training and self.dropout1.p > 0
        seed = torch.randint(2**62, (1,), device=device) if drops else None
        parameters = self.conv1.weight, self.conv1.bias, self.conv2.weight, self.conv2.bias
        x, _, _ = block(images, order, *parameters, seed)
        autocast = torch.is_autocast_enabled(device.type)
        x = x.to(torch.get_autocast_dtype(device.type) if autocast else self.fc1.weight.dtype)
        weight = self.fc1.weight.view(128, 64, 144).transpose(1, 2).flatten(1)
        x = F.relu(F.linear(x.flatten(1), weight, self.fc1.bias))
        x = self.fc2(self.dropout2(x))
        return F.log_softmax(x, dim=1)
