"""Entry: a smaller network, of which PyTorch makes every kernel but the optimizer's.

Both convolutions are followed by a pooling, as in github.com/tuomaso/train_mnist_fast, whose time is the one to beat.
``engine``: PyTorch's own kernels (``eager``), or those that its compiler makes of them (``compiled``). ``first``: the
first layer as a ``convolution`` of one channel, for which there is no good kernel, or as a matrix ``product``.
``sizes``: those of ``SmallNet``.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from labkit.speedrun.pieces import Batches, Optimizer, one_launch
from labkit.training.data import normalise

TRACK = "any net"
RECIPE = {
    "engine": "compiled", "first": "product", "batch": 512, "epochs": 0.8, "shift": 0, "smoothing": 0.1,
    "muon_rate": 0.05, "momentum": 0.6, "adam_rate": 0.01, "betas": (0.7, 0.9), "decay": 0.0, "warm": 0.2,
    "sizes": (32, 5, 64, 3, 128),
}  # fmt: skip
MATRICES = ("conv1", "conv2", "linear1")


class SmallNet(nn.Module):
    """Weights only; those of the convolutions are channels-last: ``(out, height, width, in)``.

    ``first`` channels of ``wide`` by ``wide`` pixels, ``second`` of ``narrow`` by ``narrow``, then ``units``.
    """

    def __init__(self, first, wide, second, narrow, units):
        super().__init__()
        side = ((28 - wide + 1) // 2 - narrow + 1) // 2
        shapes = {
            "conv1": (first, wide, wide, 1), "conv1_bias": (first,),
            "conv2": (second, narrow, narrow, first), "conv2_bias": (second,),
            "linear1": (units, side * side * second), "linear1_bias": (units,),
            "linear2": (10, units), "linear2_bias": (10,),
        }  # fmt: skip
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    @torch.no_grad()
    def reset_parameters(self):
        for name, parameter in self.named_parameters():
            inputs = getattr(self, name.removesuffix("_bias"))[0].numel()
            parameter.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs))  # as PyTorch's own layers do


def first_product(x, weight):
    """The convolution of ``(N, 1, 28, 28)`` by ``(C, k, k, 1)``: each sample's patches, in rows of a multiple of 8."""
    count, size = len(x), weight.shape[1]
    side, fill = 29 - size, -size * size % 8
    patches = x[:, 0].unfold(1, size, 1).unfold(2, size, 1).reshape(count, side * side, size * size)
    matrix = F.pad(weight.flatten(1), (0, fill)).t()
    y = torch.bmm(F.pad(patches, (0, fill)), matrix.expand(count, *matrix.shape))
    return y.view(count, side, side, -1).permute(0, 3, 1, 2)


def convolution(x, weight):
    """Of ``(N, C, height, width)`` by ``(out, k, k, C)``."""
    return F.conv2d(x, weight.permute(0, 3, 1, 2))


def logits(weight, images, first):
    """``(N, 10)`` float32 for uint8 ``(N, 28, 28)``; to pool before bias and ReLU is the same, and less work."""
    x = normalise(images).to(weight["conv1"].dtype)
    for layer, convolve in (("conv1", first), ("conv2", convolution)):
        x = F.max_pool2d(convolve(x, weight[layer]), 2)
        x = F.relu(x + weight[f"{layer}_bias"][:, None, None])
    x = F.relu(F.linear(x.permute(0, 2, 3, 1).flatten(1), weight["linear1"], weight["linear1_bias"]))
    return F.linear(x, weight["linear2"], weight["linear2_bias"]).float()


class Trainer:
    def __init__(self, images, labels, engine, first, sizes, batch, epochs, shift, smoothing, **rates):
        device = images.device
        self.batches = Batches(images, labels, batch, epochs, shift)
        self.optimizer = Optimizer(SmallNet(*sizes).to(device), MATRICES, rates)
        self.start(0)
        self.first = {"product": first_product, "convolution": convolution}[first]
        narrow = self.optimizer.weights.copies
        self.leaves = {name: copy.detach().requires_grad_() for name, copy in narrow.items()}

        def loss(digits, targets):
            return F.cross_entropy(logits(self.leaves, digits, self.first), targets, label_smoothing=smoothing)

        compiled = engine == "compiled" and device.type == "cuda"
        self.loss = torch.compile(loss, dynamic=False) if compiled else loss
        self.launch = one_launch(self.all_steps, device)

    def start(self, seed):
        self.optimizer.start(seed)

    def parameters(self):
        return self.optimizer.shapes()

    def train(self):
        self.batches.draw()
        self.launch()

    def all_steps(self):
        self.batches.gather()
        slopes = [self.optimizer.weights.gradients[name] for name in self.leaves]
        for step in range(self.batches.steps):
            place = self.batches.place(step)
            loss = self.loss(self.batches.digits[place], self.batches.targets[place])
            torch._foreach_copy_(slopes, torch.autograd.grad(loss, [*self.leaves.values()]))
            self.optimizer.step(step, self.batches.steps)

    @torch.no_grad()
    def predict(self, images):
        return torch.cat([logits(self.leaves, part, self.first).argmax(1) for part in images.split(1000)])


def prepare(images, labels, **recipe):
    return Trainer(images, labels, **recipe)
