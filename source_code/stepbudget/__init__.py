"""Where does every nanosecond of a training step go? A reader of Nsight Systems' reports and PyTorch's traces.

    import stepbudget as sb

    report = sb.open("run.nsys-rep")  # or a trace of torch.profiler, "trace.json.gz"
    sb.budget(report)   # where the time goes
    sb.advice(report)   # what to do next, and what that gains at most

``open`` opens a report; ``timeline``, ``budget``, ``bounds``, ``advice``, ``phases``, ``copies``, ``kernels``,
``steps``, ``launches``, ``tensor_cores`` … ask it, ``compare`` holds two against each other, ``ranks`` those of a run.
Each answer shows itself (HTML in a notebook, text elsewhere) and has what it shows as attributes and as a ``frame``.
``answer`` is all of it as one object, which ``--json`` prints. What cannot be read raises ``ReportError``, whose
message says what to do about it. In a notebook, ``%load_ext stepbudget`` brings a cell magic.

A name is imported when it is first asked for: ``--tables`` answers sooner than pandas loads.
"""

import importlib

__version__ = "0.2.0"

_VERBS = (
    *("advice", "bounds", "budget", "compare", "copies", "eligible", "idle", "kernels", "launches", "operations"),
    *("phases", "ranks", "sampled", "steps", "tensor_cores"),
)
_ROOMS = {
    **dict.fromkeys(_VERBS, ("show.answers", None)),
    "ReportError": ("errors", None),
    "answer": ("show.summary", None),
    "load_ipython_extension": ("magic", None),
    "open": ("report", "open_report"),
    "open_report": ("report", None),
    "timeline": ("show.timeline", None),
}

__all__ = sorted({*_ROOMS} - {"load_ipython_extension"})


def __getattr__(name: str) -> object:
    """What is public under this name (PEP 562)."""
    if name in _ROOMS:
        room, own = _ROOMS[name]
        return getattr(importlib.import_module(f"{__name__}.{room}"), own or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
