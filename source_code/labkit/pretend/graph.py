"""What does a CUDA graph remember, and what can it not? A model of one, for machines without a GPU.

It records the operations that PyTorch carries out and plays them again on the same memory, as a graph does with
kernels. It makes nothing faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "unique_")  # results, or their sizes, are values


class CaptureError(RuntimeError):
    """The work needs a value that is not there while the work is recorded."""


def captured(work: Callable[[], object]) -> Callable[[], None]:
    """``work`` recorded, not run; each call of the result plays what was recorded.

    Tensors that ``work`` reads or changes are remembered by their place, all other things by their value at recording.
    Raises CaptureError where ``work`` reads a value on the CPU (``.item()``, ``if`` over a tensor) or makes a tensor
    whose size is one.
    """
    recorder = _Recorder()
    try:
        with recorder:
            work()
    finally:
        recorder.put_back()
    return recorder.replay


def refusal(work: Callable[[], object]) -> str | None:
    """Why ``work`` cannot be captured, in a sentence; None where it can."""
    try:
        captured(work)
    except CaptureError as error:
        return str(error)
    return None


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # tensors from outside, and their contents
        self._made: set[int] = set()  # storages that the recorded operations made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch's compiler is imported, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = _tensors((args, kwargs))
        masked = name == "index" and any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
        if masked or name.startswith(READS):
            raise CaptureError(f"the CPU asks for a value ({name}) that does not exist while the work is recorded")
        for tensor in tensors:
            if _place(tensor) not in self._made and _place(tensor) not in self._before:
                self._before[_place(tensor)] = tensor, _whole(tensor).clone()
        result = func(*args, **kwargs)
        shared = {_place(tensor) for tensor in tensors}
        new = [tensor for tensor in _tensors(result) if _place(tensor) not in shared]
        self._made |= {_place(tensor) for tensor in new}
        self._calls.append((func, args, kwargs, result))
        return result

    def put_back(self) -> None:
        """Undo what recording has done to tensors from outside: a capture does not run the work."""
        for tensor, contents in self._before.values():
            _whole(tensor).copy_(contents)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            shared = {_place(tensor) for tensor in _tensors((args, kwargs))}
            again = func(*args, **kwargs)
            for kept, new in zip(_tensors(result), _tensors(again), strict=True):
                if _place(kept) not in shared:
                    kept.copy_(new)


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that a tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
