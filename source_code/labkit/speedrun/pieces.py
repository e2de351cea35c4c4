"""What may entries share? One launch for a whole training, the order of the digits, an optimizer that starts anew."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from labkit.errors import LabError
from labkit.kernels.adam import Adam
from labkit.kernels.muon import Muon
from labkit.kernels.shifted import shifted
from labkit.kernels.weights import Weights
from labkit.training import machine


def one_launch(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """``work`` as a CUDA graph, launched by a call of the result; on the CPU ``work`` itself.

    It is run once now, for all that happens once: kernels are compiled and libraries loaded.
    """
    if device.type != "cuda":
        return work
    torch.cuda.synchronize(device)
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def triangle(step: int, steps: int, warm: float) -> float:
    """The share of the highest learning rate in a step: up in a straight line over ``warm`` of all steps, then down."""
    place = (step + 1) / (steps + 1)
    return place / warm if place < warm else (1 - place) / (1 - warm)


class Batches:
    """The digits of a whole training in the order in which it takes them, each shifted a little if that is wanted."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, batch: int, epochs: float, shift: int) -> None:
        """``epochs`` need not be whole; what does not fill a batch is left out. ``shift``: pixels at most, 0 for none.

        ValueError where not even one batch is filled.
        """
        self.images, self.labels, self.batch, self.shift = images, labels, batch, shift
        self.steps = int(epochs * len(labels) / batch)
        if not self.steps:
            raise ValueError(f"{epochs} epochs of {len(labels)} digits do not fill a batch of {batch}")
        count, device = self.steps * batch, images.device
        self.order = torch.zeros(count, dtype=torch.int64, device=device)
        self.by = torch.zeros(count, 2, dtype=torch.int64, device=device)
        self.digits = torch.zeros(count, 28, 28, dtype=torch.uint8, device=device)
        self.targets = torch.zeros(count, dtype=torch.int64, device=device)

    def draw(self) -> None:
        """Another order, every digit once an epoch, and other shifts: part of the training, so it is timed."""
        for part in self.order.split(len(self.labels)):
            part.copy_(torch.randperm(len(self.labels), device=part.device)[: len(part)])
        if self.shift:
            self.by.random_(-self.shift, self.shift + 1)

    def gather(self) -> None:
        """Fill ``digits`` and ``targets`` by what was drawn. May stand in a graph."""
        shifted(self.images, self.order, self.by, self.digits)
        torch.index_select(self.labels, 0, self.order, out=self.targets)

    def place(self, step: int) -> slice:
        """Which of ``digits`` and ``targets`` a step takes."""
        return slice(step * self.batch, (step + 1) * self.batch)


class Optimizer:
    """Muon for the matrices that are named, AdamW for the rest, both with rates that rise and fall."""

    def __init__(self, net: nn.Module, matrices: tuple[str, ...], recipe: dict) -> None:
        """``recipe``: ``muon_rate``, ``momentum``, ``rows``, ``adam_rate``, ``betas``, ``decay`` and ``warm``.

        LabError on a GPU without BF16, in which the products of the entries' kernels are.
        """
        if next(net.parameters()).is_cuda and not machine.has_bf16():
            raise LabError(f"this entry multiplies in BF16, and {machine.gpu_name()} has none (Ampere and newer do).")
        self.net, self.recipe = net, recipe
        self.weights = Weights(net)
        self.muon = Muon(self.weights, matrices, recipe["rows"])
        self.adam = Adam(self.weights, but=matrices)

    def start(self, seed: int) -> None:
        """Fresh weights, as PyTorch draws them, and an empty state."""
        torch.manual_seed(seed)
        for layer in self.net.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        self.weights.load(self.net)
        self.muon.begin()

    @torch.no_grad()
    def step(self, number: int, steps: int) -> None:
        """Step ``number`` of ``steps``; empties the gradients."""
        recipe, share = self.recipe, triangle(number, steps, self.recipe["warm"])
        self.muon.step(number, share * recipe["muon_rate"], recipe["momentum"])
        self.adam.step(number, share * recipe["adam_rate"], recipe["betas"], recipe["decay"])

    def shapes(self) -> dict[str, list[int]]:
        """The parameters' shapes by name, as the network has them."""
        return {name: list(parameter.shape) for name, parameter in self.net.named_parameters()}
