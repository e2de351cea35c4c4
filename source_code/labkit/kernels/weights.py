"""How do all parameters fit into one launch? They lie in one flat array each: values, copies, gradients, state."""

import torch
from torch import nn

from labkit.kernels.triton_or_not import NARROW, runs_triton

# Parameters whose layout is not PyTorch's, with the permutation that makes it: channels last, as the activations are.
LAYOUTS = {"conv2.weight": ((64, 32, 3, 3), (0, 2, 3, 1)), "fc1.weight": ((128, 64, 12, 12), (0, 2, 3, 1))}
OVERWRITTEN = "fc1.weight"  # whose gradient is the output of one product, not a sum of many blocks' shares


class Weights:
    """The parameters of a ``Net`` for the kernels: views into flat arrays, by parameter name.

    ``values`` float32; ``copies`` the same in BF16, which products read (on the CPU the values themselves);
    ``gradients`` float32, which kernels add to and the optimizer empties; but for ``fc1.weight``, whose gradient a
    product writes. It lies behind all others: ``added`` and ``overwritten`` are both parts' slices of the flat arrays.
    ``conv2.weight`` is ``(64, 3, 3, 32)`` here, and ``fc1.weight`` ``(128, 9216)`` takes its inputs channels last.
    """

    def __init__(self, net: nn.Module) -> None:
        parameters = dict(sorted(net.named_parameters(), key=lambda named: named[0] == OVERWRITTEN))
        device = next(iter(parameters.values())).device
        self._places: dict[str, tuple[int, torch.Size]] = {}
        length = 0
        for name, parameter in parameters.items():
            self._places[name] = (length, _here(name, parameter).shape)
            length += -(-parameter.numel() // 64) * 64  # each begins at a multiple of 64 elements: aligned for any load
        begin, _ = self._places.get(OVERWRITTEN, (length, None))
        self.added, self.overwritten = slice(begin), slice(begin, length)
        self.flat_values = torch.zeros(length, device=device)
        self.flat_gradients, self.square_average, self.delta_average = torch.zeros(3, length, device=device)
        self.flat_copies = self.flat_values
        if runs_triton(self.flat_values):
            self.flat_copies = self.flat_values.to(NARROW)
        self.values, self.copies = self._views(self.flat_values), self._views(self.flat_copies)
        self.gradients = self._views(self.flat_gradients)
        self.load(net)

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: flat[at : at + shape.numel()].view(shape) for name, (at, shape) in self._places.items()}

    @torch.no_grad()
    def load(self, net: nn.Module) -> None:
        """Take the net's parameters over, and begin with an optimizer that has seen nothing."""
        for name, parameter in net.named_parameters():
            self.values[name].copy_(_here(name, parameter))
        self.flat_copies.copy_(self.flat_values)
        for flat in (self.flat_gradients, self.square_average, self.delta_average):
            flat.zero_()

    @torch.no_grad()
    def store(self, net: nn.Module) -> None:
        """Put the values back into the net, in PyTorch's layout."""
        for name, parameter in net.named_parameters():
            parameter.copy_(_there(name, self.values[name]))

    def gradient_of(self, name: str) -> torch.Tensor:
        """A parameter's gradient in PyTorch's layout."""
        return _there(name, self.gradients[name])


def _here(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """A parameter in the kernels' layout."""
    if name not in LAYOUTS:
        return parameter
    shape, order = LAYOUTS[name]
    moved = parameter.view(shape).permute(order)
    return moved if parameter.dim() == 4 else moved.flatten(1)


def _there(name: str, values: torch.Tensor) -> torch.Tensor:
    """The same back in PyTorch's layout."""
    if name not in LAYOUTS:
        return values
    shape, order = LAYOUTS[name]
    moved = values.view([shape[axis] for axis in order]).permute(0, 3, 1, 2)
    return moved if values.dim() == 4 else moved.flatten(1)
