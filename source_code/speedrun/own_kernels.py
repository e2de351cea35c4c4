"""Entry: the network of any_net.py in kernels of our own; a step is eleven launches, and one graph holds them all."""

import torch
import torch.nn.functional as F

from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.pooled import first_gradient, first_pooled, second_pooled, second_weight_gradient
from labkit.kernels.smooth_head import smooth_head
from labkit.speedrun.nets import MATRICES, SmallNet
from labkit.speedrun.pieces import Batches, Optimizer, one_launch

TRACK = "any net"
RECIPE = {
    "sizes": (32, 64, 128), "batch": 512, "epochs": 0.6, "shift": 0, "smoothing": 0.1, "warm": 0.1,
    "muon_rate": 0.15, "momentum": 0.75, "rows": 64, "adam_rate": 0.02, "betas": (0.7, 0.9), "decay": 0.0,
}  # fmt: skip
SPACE = {
    "batch": [384, 512], "epochs": [0.5, 0.6], "muon_rate": [0.15, 0.12, 0.09], "momentum": [0.75, 0.85],
    "adam_rate": [0.02, 0.01], "smoothing": [0.1, 0.2],
}  # fmt: skip
HEAD = ("linear1_bias", "linear2", "linear2_bias")


class Trainer:
    def __init__(self, images, labels, sizes, batch, epochs, shift, smoothing, **rates):
        self.smoothing = smoothing
        self.batches = Batches(images, labels, batch, epochs, shift)
        self.optimizer = Optimizer(SmallNet(*sizes).to(images.device), MATRICES, rates)
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
        weights = self.optimizer.weights
        value, copy, gradient = weights.values, weights.copies, weights.gradients
        hidden, winner1 = first_pooled(digits, copy["conv1"], value["conv1_bias"])
        pooled, winner2 = second_pooled(hidden, copy["conv2"], value["conv2_bias"])
        linear = pooled.flatten(1) @ copy["linear1"].t()
        parameters, slopes = ([of[name] for name in HEAD] for of in (value, gradient))
        back = smooth_head(linear, parameters, slopes, targets, self.places, loss_sum, self.smoothing)
        product_in_fp32(back.t(), pooled.flatten(1), gradient["linear1"])
        upstream = (back @ copy["linear1"]).view_as(pooled)
        second_weight_gradient(hidden, upstream, winner2, gradient["conv2"], gradient["conv2_bias"])
        first_gradient(
            digits, winner1, upstream, winner2, copy["conv2"], gradient["conv1"], gradient["conv1_bias"]
        )  # fmt: skip

    @torch.no_grad()
    def predict(self, images):
        value, copy = self.optimizer.weights.values, self.optimizer.weights.copies
        found = []
        for part in images.split(1000):
            hidden, _ = first_pooled(part, copy["conv1"], value["conv1_bias"])
            pooled, _ = second_pooled(hidden, copy["conv2"], value["conv2_bias"])
            linear = (pooled.flatten(1) @ copy["linear1"].t()).float()
            hidden = F.relu(linear + value["linear1_bias"])
            found.append(F.linear(hidden, value["linear2"], value["linear2_bias"]).argmax(1))
        return torch.cat(found)


def prepare(images, labels, **recipe):
    return Trainer(images, labels, **recipe)
