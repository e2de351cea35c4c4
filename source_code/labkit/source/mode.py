"""Do the labs run live on this machine, or show what was recorded?"""

from __future__ import annotations

import os

from labkit.errors import LabError
from labkit.source import recorded
from labkit.training import machine
from stepbudget.export import nsys

MODES = ("auto", "live", "recorded")


def mode() -> str:
    """``"live"`` or ``"recorded"``, from ``LAB_MODE=auto|live|recorded``.

    *auto*, the default, is live where both nsys and a GPU answer. Raises LabError for another word.
    """
    wanted = os.environ.get("LAB_MODE", "auto").strip().lower() or "auto"
    if wanted not in MODES:
        raise LabError(f"LAB_MODE={wanted} is not a mode: use {', '.join(MODES)}.")
    if wanted != "auto":
        return wanted
    return "live" if nsys.find_nsys() and machine.gpu_name() else "recorded"


def is_live() -> bool:
    """Do the labs run their commands here?"""
    return mode() == "live"


def is_strict() -> bool:
    """Are these the course's own recordings, of which every sentence of the text must hold?"""
    return not is_live() and recorded.folder().name == recorded.DEFAULT


def _gpu_line() -> str:
    if machine.gpu_name():
        return f"{machine.gpu_name()}, driver {machine.driver_version()}"
    has_driver = (
        machine.driver_version() is not None
    )  # then there is a GPU, and the reader wants to know what is wrong with it
    return f"none that CUDA can use: {machine.gpu_problem()}" if has_driver and machine.gpu_problem() else "none"


def summary() -> dict[str, str]:
    """What this machine has, a line each: for the front page of the course."""
    found = nsys.find_nsys()
    return {
        "GPU": _gpu_line(),
        "Nsight Systems": found.version_text if found else "not found",
        "CPU cores": str(machine.usable_cores()),
        "labs run": mode(),
    }
