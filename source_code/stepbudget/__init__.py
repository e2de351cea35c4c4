"""Where does every nanosecond of a training step go? A reader of Nsight Systems' reports.

    import stepbudget

    with stepbudget.open_report("run.nsys-rep") as report:
        found = stepbudget.budget(report)
        print(found.table())
        for one in stepbudget.advice(report, found):
            print(one.upper_bound_ms, one.evidence)

``open_report`` opens a report; ``budget``, ``advice`` and ``compare`` ask it; ``answer`` is all of it as one object,
which ``--json`` prints. What cannot be read raises ``ReportError``, whose message says what to do about it. In a
notebook, ``%load_ext stepbudget`` brings a cell magic.

A name is imported when it is first asked for: ``--tables`` answers sooner than pandas loads.
"""

import importlib

__version__ = "0.2.0"

__all__ = ["ReportError", "advice", "answer", "budget", "compare", "open_report", "timeline"]

_ROOMS = {
    "ReportError": "errors",
    "advice": "ask.advice",
    "answer": "say.summary",
    "budget": "ask.budget",
    "compare": "ask.compare",
    "load_ipython_extension": "magic",
    "open_report": "report",
    "timeline": "show.timeline",
}


def __getattr__(name: str) -> object:
    """What is public under this name (PEP 562)."""
    if name in _ROOMS:
        return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
