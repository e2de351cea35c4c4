"""What does a Triton kernel do, program by program? A model of Triton, for machines without a GPU and without Triton.

It executes a kernel's source in plain PyTorch, one program after another, and keeps count. Like a GPU it knows where
each tensor ends; unlike a GPU it says so, when a kernel reads or writes beyond. It makes nothing faster.

    from labkit.pretend.triton import launch, tl
    launch(kernel, (4,), x, y, len(x), BLOCK=256)

Only what the course's kernels need is there, under the names and with the rules of ``triton.language``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace

import torch


class PretendError(RuntimeError):
    """A kernel did what a GPU would not do, or not survive."""


@dataclass
class Work:
    """What a launch did: its programs, and the numbers that they read from and wrote to memory."""

    programs: int = 0
    loaded: int = 0
    stored: int = 0
    most_stored: int = 0  # by one program
    multiplications: int = 0  # in ``tl.dot``
    places: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # per store: the tensor's name, the elements


@dataclass(frozen=True)
class Pointer:
    """An address, or a block of them: elements of a tensor's memory, counted from its first."""

    memory: torch.Tensor
    name: str
    at: torch.Tensor | int = 0

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def __add__(self, offset: torch.Tensor | int) -> Pointer:
        return Pointer(self.memory, self.name, self.at + offset)

    __radd__ = __add__

    def __sub__(self, offset: torch.Tensor | int) -> Pointer:
        return self + -offset


_running: dict[str, object] = {}  # of the launch under way: its grid, its program's number, its Work


def launch(kernel: Callable, grid: tuple[int, ...], *arguments: object, **constants: object) -> Work:
    """Run every program of the grid; what they did. Tensors become pointers to their first elements.

    ``kernel`` is a plain function that calls ``tl``, or one that ``triton.jit`` has wrapped. Raises PretendError where
    it reads or writes outside of a tensor without a mask, or asks for a block whose size is no power of two.
    """
    source = getattr(kernel, "fn", kernel)
    names = source.__code__.co_varnames
    # The same source with this module's tl, whatever the name means where the source was written.
    names_there = {**source.__globals__, "tl": tl}
    function = FunctionType(source.__code__, names_there, None, source.__defaults__, source.__closure__)
    pointers = [_pointer(value, names[place]) for place, value in enumerate(arguments)]
    work = Work()
    for number in range(math.prod(grid)):
        _running.update(grid=grid, program=number, work=work)
        work.programs += 1
        before = work.stored
        function(*pointers, **constants)
        work.most_stored = max(work.most_stored, work.stored - before)
    _running.clear()
    return work


def _pointer(value: object, name: str) -> object:
    """A tensor's memory as a flat tensor that starts at the tensor's first element; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    reach = 1 + builtins.sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return Pointer(value.as_strided((reach if value.numel() else 0,), (1,)), name)


def _program_id(axis: int) -> int:
    grid, number = _running["grid"], _running["program"]
    if axis >= len(grid):
        return 0  # a grid has three axes, of one program each where nothing else is said
    return number // math.prod(grid[:axis]) % grid[axis]


def _arange(start: int, end: int) -> torch.Tensor:
    size = end - start
    if size < 1 or size & (size - 1):
        raise PretendError(f"tl.arange: a block has a power of two of elements, not {size}")
    return torch.arange(start, end)


def _places(pointer: Pointer, mask: object, doing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The addresses of a block and which of them count; PretendError where one that counts lies outside."""
    at = torch.as_tensor(pointer.at)
    wanted = torch.as_tensor(True if mask is None else mask)
    at, wanted = torch.broadcast_tensors(at, wanted)
    outside = wanted & ((at < 0) | (at >= len(pointer.memory)))
    if outside.any():
        first = int(at[outside].flatten()[0])
        raise PretendError(
            f"program {_running['program']} {doing} element {first} of {pointer.name}, which has "
            f"{len(pointer.memory)}: a mask is missing, or wrong"
        )
    return at, wanted


def _load(pointer: Pointer, mask: object = None, other: float | None = None) -> torch.Tensor:
    at, wanted = _places(pointer, mask, "reads")
    _running["work"].loaded += int(wanted.sum())
    # What a mask leaves out and ``other`` does not fill is undefined: here it is something that shows.
    rest = torch.nan if pointer.memory.dtype.is_floating_point else torch.iinfo(pointer.memory.dtype).max
    found = torch.full(at.shape, rest if other is None else other, dtype=pointer.memory.dtype)
    found[wanted] = pointer.memory[at[wanted]]
    return found


def _store(pointer: Pointer, value: object, mask: object = None) -> None:
    at, wanted = _places(pointer, mask, "writes")
    value = torch.as_tensor(value).to(pointer.memory.dtype).broadcast_to(at.shape)
    pointer.memory[at[wanted]] = value[wanted]
    _running["work"].stored += int(wanted.sum())
    _running["work"].places.append((pointer.name, at[wanted]))


def _dot(
    left: torch.Tensor, right: torch.Tensor, total: torch.Tensor | None = None, input_precision: str = "tf32"
) -> torch.Tensor:
    sizes = (*left.shape, right.shape[1])
    if min(sizes) < 16:
        raise PretendError(f"tl.dot: a Tensor Core takes blocks of 16 and more, not {' x '.join(map(str, sizes))}")
    _running["work"].multiplications += math.prod(sizes)
    found = left.float() @ right.float()
    return found if total is None else total + found


def _reduced(how: Callable) -> Callable:
    return lambda block, axis=None: how(block) if axis is None else how(block, axis)


tl = SimpleNamespace(
    constexpr=object,
    float32=torch.float32,
    float16=torch.float16,
    bfloat16=torch.bfloat16,
    int32=torch.int32,
    program_id=_program_id,
    num_programs=lambda axis: _running["grid"][axis],
    cdiv=lambda a, b: -(-a // b),
    arange=_arange,
    zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    load=_load,
    store=_store,
    dot=_dot,
    where=lambda condition, a, b: torch.where(torch.as_tensor(condition), torch.as_tensor(a), torch.as_tensor(b)),
    maximum=lambda a, b: torch.maximum(*_both(a, b)) if _block(a, b) else builtins.max(a, b),
    minimum=lambda a, b: torch.minimum(*_both(a, b)) if _block(a, b) else builtins.min(a, b),
    sum=_reduced(torch.sum),
    max=_reduced(torch.amax),
    exp=torch.exp,
    log=torch.log,
    trans=lambda block: block.t(),
    range=builtins.range,
    static_range=builtins.range,
)


def _block(*values: object) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values)


def _both(a: object, b: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Two blocks of one type: a plain number takes that of the block beside it."""
    dtype = next(value.dtype for value in (a, b) if isinstance(value, torch.Tensor))
    return tuple(value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype) for value in (a, b))
