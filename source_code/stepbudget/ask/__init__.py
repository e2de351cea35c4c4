"""What does a Nsight Systems report say? Rooms that read reports; none of them knows about training.

A room is imported when it is first asked for: ``--tables`` answers sooner than pandas, which most rooms need, loads.
"""

import importlib

__all__ = [
    "advice", "budget", "clocks", "collectives", "compare", "copies", "flops", "idle", "iterations", "launch", "lines",
    "memory", "ops", "phases", "predict", "ranks", "sums", "tensor_cores",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The room of this name (PEP 562)."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
