"""The exercises of lab 13: what keeps off the Tensor Cores, what layout copies cost, and where a layout breaks."""

from __future__ import annotations

from collections.abc import Callable

from labkit.exercises.kinds import BOUND, READ, Choice, Code, NothingToAnswer, Number
from labkit.numbers import shown
from stepbudget.ask import ops, tensor_cores
from stepbudget.report import Report


def _idle_reason(report: Report) -> str:
    idle = ops.eligible(report)
    idle = idle[idle["group"] == ops.NOT_USING]
    return "none" if idle.empty else idle.groupby("reason")["gpu_ms"].sum().idxmax()


IDLE_OPERATION = Choice(
    READ,
    "Of the rows that are 'not using', take the reason that costs most milliseconds; 'none' where no row is.",
    right=_idle_reason,
    wrong={
        "shape": "that is no reason that stands there: copy the text of the column",
        "none": "there are rows that are 'not using': look at the column 'Tensor Cores' again",
        "aten::convolution_backward": "that is the operation: which reason stands beside it?",
        "not using": "that is the verdict: which reason stands beside it?",
    },
)


def _kernels_ms(report: Report) -> float:
    found = float(tensor_cores.kernels(report)["gpu_ms"].sum())
    if not found:
        raise NothingToAnswer("no kernel was profiled here")
    return found


def _copies_ms(report: Report) -> float:
    return float(ops.eligible(report)["layout_ms"].sum())


def _without(report: Report, ms: float) -> float:
    """How many times as fast all kernels together are with so many milliseconds less."""
    return _kernels_ms(report) / (_kernels_ms(report) - ms)


def _largest_copies_ms(report: Report) -> float:
    return float(ops.eligible(report)["layout_ms"].max())


def _copying_ms(report: Report) -> float:
    """Of the operations that copy, all that they do."""
    found = ops.eligible(report)
    return float(found.loc[found["layout_ms"] > 0, "gpu_ms"].sum())


def _without_in_eligible(report: Report) -> float:
    own = float(ops.eligible(report)["gpu_ms"].sum())
    return own / (own - _copies_ms(report))


LAYOUT_BOUND = Number(
    BOUND,
    "Milliseconds of all kernels, over those that are left when the sum of layout_ms is gone.",
    right=lambda report: _without(report, _copies_ms(report)),
    wrong={
        "that is the share that is left: how many times as fast?": lambda r: 1 / _without(r, _copies_ms(r)),
        "that is the share of the copies: how many times as fast is what is left?": lambda r: (
            _copies_ms(r) / _kernels_ms(r)
        ),
        "that is one operation's copies: take the sum of all": lambda r: _without(r, _largest_copies_ms(r)),
        "those operations also compute: only their layout_ms would go": lambda r: _without(r, _copying_ms(r)),
        "that is of the eligible operations: the epoch has other kernels too": _without_in_eligible,
    },
    within=0.005,
)


CHANNELS, ROWS, COLUMNS = 8, 4, 5  # of the images of the trial
WHOLE_PASSES = ("cat", "clone", "copy_", "_to_copy", "contiguous")  # operators that read a tensor and write all of it


def with_places(x):
    """``x`` and two channels more, the row and the column of each pixel from -1 to 1; it leaves ``channels_last``."""
    import torch

    return torch.cat([x, *_places(x)], 1)


def _places(x) -> list:
    import torch  # here and below: the recorded labs need none

    rows, columns = (torch.linspace(-1, 1, size) for size in x.shape[2:])
    return [own.expand(len(x), 1, *x.shape[2:]) for own in (rows.view(-1, 1), columns)]


def _passes(call: Callable, x) -> tuple[object, int]:
    """What a call returns, and how many times it wrote as many numbers as ``x`` has, or more."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        passes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            self.passes += func.overloadpacket.__name__ in WHOLE_PASSES and found.numel() >= x.numel()
            return found

    with Counting() as counting:
        return call(x), counting.passes


def _try_with_places(mended: Callable) -> str | None:
    import torch

    torch.manual_seed(0)
    last = torch.channels_last
    x = torch.randn(2, CHANNELS, ROWS, COLUMNS).to(memory_format=last)
    found, passes = _passes(mended, x)
    if not isinstance(found, torch.Tensor):
        return f"it returns {shown(found)}, not a tensor"
    wanted = with_places(x)
    if found.shape != wanted.shape:
        return f"its result has the sizes {list(found.shape)}, not {list(wanted.shape)}"
    if not torch.allclose(found, wanted):
        return "it hands on other numbers: the channels of x first, then each pixel's row, then its column"
    if not found.is_contiguous(memory_format=last):
        return "it still hands on NCHW: of which of the joined tensors are the channels of a pixel not side by side?"
    if passes > 1:
        return f"the layout is right, but all of the image is written {passes} times: convert only what is new"
    return None


def _new_alone(x):
    import torch

    return torch.cat(_places(x), 1).to(memory_format=torch.channels_last)


def _converted_at_the_end(x):
    import torch

    return with_places(x).contiguous(memory_format=torch.channels_last)


def _joined(parts: Callable) -> Callable:
    def call(x):
        import torch

        return torch.cat(parts(x), 1)

    return call


KEEPS_LAYOUT = Code(
    "Join the two new channels first, convert those, and join the result with x.",
    _try_with_places,
    wrong={
        "it still hands on NCHW": with_places,
        "it still hands on NCHW: of which": _joined(lambda x: [x.contiguous(), _new_alone(x)]),
        "all of the image is written 2 times": _converted_at_the_end,
        "it hands on other numbers": _joined(lambda x: [_new_alone(x), x]),
        "it hands on other numbers: the channels of x first": _joined(lambda x: [x, _new_alone(x).flip(1)]),
        "its result has the sizes [2, 2, 4, 5]": _new_alone,
        "something of type NoneType, not a tensor": lambda x: None,
    },
)

EXERCISES = {"13.1": IDLE_OPERATION, "13.2": LAYOUT_BOUND, "13.3": KEEPS_LAYOUT}
