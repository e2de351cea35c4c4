"""Where did the first NaN come from? Hooks that look at what each module is given and what it makes of that.

    with first_bad(model) as found:
        loss = model(x); loss.backward()
    print(found)

The loss is NaN long after something went wrong, and often far from it. What tells is the first module whose input was
finite and whose output was not; on the way back, the first to which a finite gradient came and which made another of
it, for its input or its weights. Every look waits for the GPU: this is for a step that is known to fail.
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

    def watch(name: str, module: nn.Module, given: object, result: object) -> None:
        """One call of a module: look now, and on the way back at what arrives and at each gradient that leaves."""
        look(name, "forward", given, result)
        came: list[torch.Tensor] = []
        for one in tensors_of(result):
            if one.requires_grad:
                hooks.append(one.register_hook(lambda gradient: came.append(gradient)))
        for one in (*tensors_of(given), *module.parameters(recurse=False)):
            if one.requires_grad:
                hooks.append(one.register_hook(lambda gradient: look(name, "backward", came, [gradient])))

    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            hooks.append(module.register_forward_hook(lambda own, given, result, n=name: watch(n, own, given, result)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def bad(tensors: object) -> str | None:
    """``"NaN"`` or ``"inf"``, if a tensor in here holds one; NaN first."""
    kinds = [("NaN", torch.isnan), ("inf", torch.isinf)]
    return next((word for word, ask in kinds if any(bool(ask(one).any()) for one in tensors_of(tensors))), None)


def tensors_of(given: object) -> list[torch.Tensor]:
    """The tensors in a tensor, tuple or list."""
    if isinstance(given, torch.Tensor):
        return [given]
    return [one for part in given for one in tensors_of(part)] if isinstance(given, tuple | list) else []
