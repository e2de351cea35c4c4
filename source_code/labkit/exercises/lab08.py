"""The exercises of lab 8: when a compiler has paid for itself, a layer that moves less memory, and the lowest line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.topics.break_even import Cost, cost, epochs_until_even


def _lines(runs: Sequence[dict], cold: dict | None) -> tuple[Cost, Cost]:
    if cold is None:
        raise NothingToAnswer("there is no run with a cold cache here")
    return cost(runs), cost([cold])


def _ahead_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return compiled.fixed_s - plain.fixed_s


def _gained_s(runs: Sequence[dict], cold: dict) -> float:
    plain, compiled = _lines(runs, cold)
    return plain.epoch_s - compiled.epoch_s


COLD_BREAK_EVEN = Number(
    BOUND,
    "What it takes longer before and beside the epochs, over what it saves in each.",
    right=lambda runs, cold: epochs_until_even(*_lines(runs, cold)),
    wrong={
        "the whole processes differ by their epochs, too: compare what they cost without any": lambda runs, cold: (
            (_ahead_s(runs, cold) - 10 * _gained_s(runs, cold)) / _gained_s(runs, cold)
        ),
        "that is over what a compiled epoch takes, not over what it saves": lambda runs, cold: (
            _ahead_s(runs, cold) / cost([cold]).epoch_s
        ),
        "that is over what an epoch took before, not over what it saves": lambda runs, cold: (
            _ahead_s(runs, cold) / cost(runs).epoch_s
        ),
        "those are the seconds that it begins later: how many epochs make up for them?": _ahead_s,
    },
    within=0.03,  # whole epochs are an answer too
)

IMAGES, CHANNELS, SIDE = 3, 4, 12


def _written(work: Callable[[], object]) -> tuple[object, dict[str, int]]:
    """What ``work`` returns, and the most floating-point numbers that each operation wrote at once (a view: none)."""
    import torch  # here: the recorded labs need none
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    most: dict[str, int] = {}

    class Counting(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else PyTorch's compiler is imported, which takes seconds

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if not func.is_view:
                name = func.overloadpacket.__name__
                tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
                sizes = [one.numel() for one in tensors if one.is_floating_point()]
                most[name] = max([most.get(name, 0), *sizes])
            return result

    with Counting():
        result = work()
    return result, most


def _try_layer_end(layer_end: Callable) -> str | None:
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, generator=generator)
    scale = torch.rand(CHANNELS, 1, 1, generator=generator) + 0.5
    shift = torch.randn(CHANNELS, 1, 1, generator=generator)
    given, right = x.clone(), F.max_pool2d(F.relu(x * scale + shift), 2)
    made, written = _written(lambda: layer_end(x, scale, shift))
    if not torch.equal(x, given):
        return "it changes x itself: whoever needs x for the gradients finds another"
    if not isinstance(made, torch.Tensor) or made.shape != right.shape:
        return f"for this x the result is a tensor of the shape {tuple(right.shape)}"
    if not torch.allclose(made, right, atol=1e-6):
        return "other results: the same operations are wanted, each of them, in another order"
    for name, numbers in written.items():
        if numbers >= x.numel():
            return f"the results are right, but `{name}` writes {numbers:,} numbers, all that x has: pool before it"
    return None


def _pooled(x, stride: int = 2):
    import torch.nn.functional as F

    return F.max_pool2d(x, 2, stride)


def _mean_of_windows(x, scale, shift):
    import torch.nn.functional as F

    return (F.avg_pool2d(x, 2) * scale + shift).relu()


LAYER_END = Code(
    "The largest of four stays the largest when all are scaled by a positive number, shifted, and cut off at zero.",
    _try_layer_end,
    wrong={
        "`mul` writes 1,728 numbers, all that x has": lambda x, scale, shift: _pooled((x * scale + shift).relu()),
        "but `mul` writes": lambda x, scale, shift: _pooled(x * scale + shift).relu(),
        "but `add` writes": lambda x, scale, shift: (_pooled(x + shift / scale) * scale).relu(),
        "other results": lambda x, scale, shift: _pooled(x.relu()) * scale + shift,
        "each of them": lambda x, scale, shift: (_pooled(x) * scale).relu(),
        "in another order": _mean_of_windows,
        "of the shape (3, 4, 6, 6)": lambda x, scale, shift: (_pooled(x, 1) * scale + shift).relu(),
        "it changes x itself": lambda x, scale, shift: _pooled(x.mul_(scale).add_(shift).relu_()),
    },
)

MANY_EPOCHS = 200


def _lowest(costs: Mapping[str, Cost]) -> str:
    return min(costs, key=lambda name: costs[name].fixed_s + MANY_EPOCHS * costs[name].epoch_s)


LOWEST_LINE = Choice(
    READ,
    f"Go up from {MANY_EPOCHS} on the lower axis: which line do you meet first?",
    right=_lowest,
    wrong={
        "opt4: data on the GPU": "it begins low and rises the most: at 200 epochs another line lies below it",
        "opt5: one launch": "it begins low, and pays for each epoch: at 200 another line lies below it",
        "opt6: compiled": "its epochs are short, and its start is not paid for yet at 200",
        "opt6, cache cold": "its start is not paid for yet at 200: another line still lies below it",
    },
)

EXERCISES = {"8.1": COLD_BREAK_EVEN, "8.2": LAYER_END, "8.3": LOWEST_LINE}
