"""Entry: the course's network, its own kernels, and another recipe: Muon and smoothed labels, few epochs.

Layers and sizes are those of every step of the ladder; dropout is left out, which is part of the recipe. The
convolutions' kernels are main_opt8's on a Hopper, elsewhere main_opt7's.
"""

import torch
import torch.nn.functional as F

from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.conv2 import conv1_gradient, conv2_pool, conv2_weight_gradient
from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.hopper import conv_backward, conv_forward, is_hopper
from labkit.kernels.smooth_head import smooth_head
from labkit.speedrun.pieces import Batches, Optimizer, one_launch
from labkit.training.model import Net

TRACK = "the course's net"
RECIPE = {
    "fc1": "muon", "batch": 528, "epochs": 0.8, "shift": 0, "smoothing": 0.2, "warm": 0.1,
    "muon_rate": 0.09, "momentum": 0.85, "rows": 64, "adam_rate": 0.01, "betas": (0.7, 0.9), "decay": 0.0,
}  # fmt: skip
SPACE = {
    "batch": [528, 396], "epochs": [0.8, 0.9], "muon_rate": [0.09, 0.12], "momentum": [0.85, 0.75, 0.9],
    "adam_rate": [0.01, 0.02], "smoothing": [0.2, 0.1],
}  # fmt: skip
HEAD = ("fc1.bias", "fc2.weight", "fc2.bias")


class Trainer:
    def __init__(self, images, labels, batch, epochs, shift, smoothing, fc1, **rates):
        self.smoothing, self.on_hopper = smoothing, is_hopper(images.device)
        self.batches = Batches(images, labels, batch, epochs, shift)
        matrices = ("conv1.weight", "conv2.weight", *(["fc1.weight"] if fc1 == "muon" else []))
        self.optimizer = Optimizer(Net().to(images.device), matrices, rates)
        self.losses = torch.zeros(self.batches.steps, device=images.device)
        self.places = torch.arange(batch, device=images.device)
        self.launch = one_launch(self.all_steps, images.device)

    def start(self, seed):
        self.optimizer.start(seed)

    def parameters(self):
        return self.optimizer.shapes()

    def train(self):
        self.batches.draw()
        self.launch()

    @torch.no_grad()
    def all_steps(self):
        self.losses.zero_()
        self.batches.gather()
        for step in range(self.batches.steps):
            place = self.batches.place(step)
            self.gradients(self.batches.digits[place], self.batches.targets[place], self.losses[step])
            self.optimizer.step(step, self.batches.steps)

    def gradients(self, digits, targets, loss_sum):
        value, copy, gradient = (getattr(self.optimizer.weights, name) for name in ("values", "copies", "gradients"))
        pooled, winner, hidden = self.forward(digits, self.places)
        linear = pooled.flatten(1) @ copy["fc1.weight"].t()
        parameters, slopes = ([of[name] for name in HEAD] for of in (value, gradient))
        back = smooth_head(linear, parameters, slopes, targets, self.places, loss_sum, self.smoothing)
        product_in_fp32(back.t(), pooled.flatten(1), gradient["fc1.weight"])
        self.backward(digits, hidden, (back @ copy["fc1.weight"]).view_as(pooled), winner)

    def forward(self, images, order):
        """Both convolutions of ``images[order]``: what is pooled, the winners, and conv1's pixels if they are kept."""
        weights = self.optimizer.weights
        if self.on_hopper:
            return *conv_forward(images, order, weights), None
        hidden = conv1_relu(images, order, weights.values["conv1.weight"], weights.values["conv1.bias"])
        return *conv2_pool(hidden, weights.copies["conv2.weight"], weights.values["conv2.bias"]), hidden

    def backward(self, digits, hidden, upstream, winner):
        """Add the gradients of both convolutions' weights and biases."""
        weights, order = self.optimizer.weights, self.places
        if self.on_hopper:
            conv_backward(digits, order, weights, upstream, winner, kept=1.0)
            return
        gradient = weights.gradients
        conv2_weight_gradient(hidden, upstream, winner, gradient["conv2.weight"], gradient["conv2.bias"], kept=1.0)
        conv1_gradient(
            digits, order, hidden, upstream, winner, weights.copies["conv2.weight"], gradient["conv1.weight"],
            gradient["conv1.bias"], kept=1.0,
        )  # fmt: skip

    @torch.no_grad()
    def predict(self, images):
        value, copy = self.optimizer.weights.values, self.optimizer.weights.copies
        found = []
        for batch in torch.arange(len(images), device=images.device).split(1000):
            pooled = self.forward(images, batch)[0]
            linear = (pooled.flatten(1) @ copy["fc1.weight"].t()).float()
            found.append(F.linear(F.relu(linear + value["fc1.bias"]), value["fc2.weight"], value["fc2.bias"]).argmax(1))
        return torch.cat(found)


def prepare(images, labels, **recipe):
    return Trainer(images, labels, **recipe)
