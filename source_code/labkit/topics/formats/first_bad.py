"""Where did the first NaN come from? Hooks that look at what each module is given and what it makes of that.

    with first_bad(model) as found:
        loss = model(x); loss.backward()
    print(found)

The loss is NaN long after something went wrong, and often far from it. What tells is the first module whose input was
finite and whose output was not; on the way back, the first whose gradient came in finite and went out otherwise. Every
look waits for the GPU, so this is for a step that is known to fail, not for a training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Culprit:
    """The first module that made a number that is not finite: its name, which way, and what it made. Empty at first."""

    module: str | None = None
    way: str | None = None  # "forward" or "backward"
    made: str | None = None  # "inf" or "NaN"

    def __str__(self) -> str:
        if self.module is None:
            return "every number was finite"
        return f"the first {self.made} was made in {self.module}, {self.way}"


@contextmanager
def first_bad(model: nn.Module) -> Iterator[Culprit]:
    """Watch a model's innermost modules while the block runs; what it yields says in the end who was first."""
    found, hooks = Culprit(), []

    def look(name: str, way: str, came: object, went: object) -> None:
        if found.module is None and not bad(came) and (made := bad(went)):
            found.module, found.way, found.made = name, way, made

    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            hooks += [
                module.register_forward_hook(lambda _, came, went, n=name: look(n, "forward", came, went)),
                module.register_full_backward_hook(lambda _, went, came, n=name: look(n, "backward", came, went)),
            ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def bad(tensors: object) -> str | None:
    """``"NaN"`` or ``"inf"``, if a tensor in here holds one; NaN first."""
    flat = [tensors] if isinstance(tensors, torch.Tensor) else [one for one in tensors or () if one is not None]
    kinds = [("NaN", torch.isnan), ("inf", torch.isinf)]
    return next((word for word, ask in kinds if any(bool(ask(one).any()) for one in flat)), None)
