"""How does an optimizer update weights that have eight significant bits? AdamW over BF16 weights, stored in three ways.

All three compute in FP32. ``nearest`` rounds weights and state to BF16 after each step, ``stochastic`` rounds them up
or down by chance so that the mean is right, ``master`` keeps FP32 copies of the weights and an FP32 state beside them.
"""

from __future__ import annotations

import torch

WAYS = ("nearest", "stochastic", "master")


def stochastic_bf16(x: torch.Tensor) -> torch.Tensor:
    """FP32 to BF16, up with the probability that makes the mean right, else down; infinities and NaN stay.

    BF16 is FP32 without its last 16 bits: add a random number of 16 bits, cut them off.
    """
    bits = x.contiguous().view(torch.int32)
    noisy = (bits + torch.randint_like(bits, 1 << 16)) & -(1 << 16)
    return torch.where(x.isfinite(), noisy.view(torch.float32), x).bfloat16()


class BF16AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101) for a model in BF16; ``way``: one of WAYS.

    The weights are laid into one block of memory, so that a step is a dozen kernels whatever the number of layers.
    ValueError where a parameter is not in BF16.
    """

    def __init__(self, parameters, way: str, lr: float = 1e-3, betas=(0.9, 0.999), eps: float = 1e-8, decay=1e-2):
        parameters = list(parameters)
        if any(one.dtype != torch.bfloat16 for one in parameters) or way not in WAYS:
            raise ValueError(f"BF16AdamW wants BF16 parameters, and a way of {', '.join(WAYS)}")
        super().__init__(parameters, {"lr": lr})
        self.way, self.betas, self.eps, self.decay, self.steps = way, betas, eps, decay, 0
        self.weights = torch.cat([one.detach().flatten() for one in parameters])
        self.gradients = torch.zeros_like(self.weights)
        start = 0
        for one in parameters:
            place = slice(start, start := start + one.numel())
            one.data, one.grad = self.weights[place].view_as(one), self.gradients[place].view_as(one)
        self.master = self.weights.float() if way == "master" else None
        self.mean = torch.zeros_like(self.weights if self.master is None else self.master)
        self.square = torch.zeros_like(self.mean)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """The gradients stay where they are, and become zero."""
        self.gradients.zero_()

    def stored(self, x: torch.Tensor, into: torch.Tensor) -> None:
        """Round ``x`` as this way does, into memory that is there."""
        into.copy_(stochastic_bf16(x) if self.way == "stochastic" and into.dtype == torch.bfloat16 else x)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """One update of all weights; no closure."""
        self.steps += 1
        lr, (beta1, beta2) = self.param_groups[0]["lr"], self.betas
        weights = self.weights.float() if self.master is None else self.master
        gradient = self.gradients.float()
        mean = self.mean.float().lerp_(gradient, 1 - beta1)
        square = self.square.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2**self.steps)).sqrt_().add_(self.eps)
        weights = weights.mul(1 - lr * self.decay).addcdiv_(mean, root, value=-lr / (1 - beta1**self.steps))
        self.stored(mean, self.mean)
        self.stored(square, self.square)
        if self.master is not None:
            self.master.copy_(weights)
            self.weights.copy_(weights)
        else:
            self.stored(weights, self.weights)

    def state_bytes(self) -> int:
        """Bytes of what is kept beside weights and gradients."""
        kept = [self.mean, self.square, *([] if self.master is None else [self.master])]
        return sum(one.numel() * one.element_size() for one in kept)
