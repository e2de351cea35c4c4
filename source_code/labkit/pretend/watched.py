"""Which operations does PyTorch run below a function? Each as it is dispatched, in order, and what it returned."""

from __future__ import annotations

from collections.abc import Callable


def operations(work: Callable[[], object]) -> tuple[object, list[tuple]]:
    """What ``work`` returns, and each operation below it: (``torch._ops.OpOverload``, its arguments, its result)."""
    from torch.utils._python_dispatch import TorchDispatchMode  # here: the recorded labs need none

    seen = []

    class Watching(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else PyTorch's compiler is imported, which takes seconds

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            seen.append((func, args, result))
            return result

    with Watching():
        return work(), seen
