"""Entry: a smaller network, of which PyTorch makes every kernel but the optimizer's.

Both convolutions are followed by a pooling, as in github.com/tuomaso/train_mnist_fast, whose time is the one to beat.
``engine``: PyTorch's own kernels (``eager``), or those that its compiler makes of them (``compiled``). ``first``: the
first layer as a ``convolution`` of one channel, for which there is no good kernel, or as a matrix ``product``.
``sizes``: those of ``SmallNet``.
"""

import torch
import torch.nn.functional as F

from labkit.speedrun.nets import MATRICES, SmallNet, convolution, first_product
from labkit.speedrun.pieces import Batches, Optimizer, one_launch
from labkit.training.data import normalise

TRACK = "any net"
RECIPE = {
    "engine": "compiled", "first": "product", "sizes": (32, 64, 128),
    "batch": 512, "epochs": 0.6, "shift": 0, "smoothing": 0.1, "warm": 0.1,
    "muon_rate": 0.15, "momentum": 0.75, "rows": 64, "adam_rate": 0.02, "betas": (0.7, 0.9), "decay": 0.0,
}  # fmt: skip


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
