"""Does this run in a container, and what was that not given? The flag that mends it, said where its error appears.

Docker hands in no GPU, little shared memory and no right to read counters unless it is told to. Apptainer shares the
host's memory, and brings the driver's libraries with ``--nv`` only. On shared and locked memory NCCL's guide says more:
docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Engine(NamedTuple):
    """What runs containers: its name, the mark that it leaves in each, and the flags that hand something in."""

    name: str
    mark: str
    gpu: str
    counters: str
    shared: str | None  # None: its containers have the host's
    locked: str | None


_ADMIN = "--user root --cap-add=SYS_ADMIN"
ENGINES = (
    Engine("Docker", ".dockerenv", "docker run --gpus all", _ADMIN, "--ipc=host", "--ulimit memlock=-1"),
    Engine(
        "Podman",
        "run/.containerenv",
        "podman run --device nvidia.com/gpu=all",
        _ADMIN,
        "--ipc=host",
        "--ulimit memlock=-1",
    ),
    Engine("Apptainer", ".singularity.d", "apptainer exec --nv", "", None, None),
)
DRIVER = "proc/driver/nvidia/version"  # of the kernel, which container and host share
OUT_OF_SHARED = re.compile(r"Bus error|/dev/shm|shared memory ?\(shm\)|</?torch_\d+")  # a GPU has another of that name
OUT_OF_LOCKED = re.compile(r"ibv_reg_mr|[Mm]emlock|RLIMIT_MEMLOCK")
MAY_NOT_COUNT = re.compile(r"ERR_NVGPUCTRPERM")


def engine() -> Engine | None:
    """What runs the container that this process is in; None outside of containers, and in those of other engines."""
    return next((one for one in ENGINES if (ROOT / one.mark).exists()), None)


def not_given(gpu: str | None, driver: str | None) -> str | None:
    """One sentence where the host has an NVIDIA driver and this container got no GPU of it; else None.

    ``gpu`` and ``driver``: as this process sees them, which in a container without a GPU sees no driver either.
    """
    inside = engine()
    if inside is None or gpu or driver or not (ROOT / DRIVER).exists():
        return None
    return f"The host has an NVIDIA driver, and this container was given no GPU: start it with {inside.gpu}."


def rows(gpu: str | None, driver: str | None, counters: bool) -> Iterator[tuple[str, str, str]]:
    """What is looked at, what was found, what to do: of the container that this runs in; nothing outside of one."""
    inside = engine()
    if inside is None:
        return
    so = not_given(gpu, driver) or ""
    if not (so or gpu or driver):
        so = f"if its host has a GPU: {inside.gpu}"
    elif gpu and not counters:
        flags = f"{inside.name.lower()} run {inside.counters}, or " if inside.counters else ""
        so = f"GPU counters: {flags}the host's driver allows them to all (labs/running.md, GPU metrics)"
    yield "container", f"{inside.name}'s", so


def hint(said: str) -> str:
    """What to add to a failed program's words: the flag that mends it in this container, or nothing."""
    inside = engine()
    if inside is None:
        return ""
    for why, pattern, flag in (
        ("too little shared memory", OUT_OF_SHARED, inside.shared),
        ("too little memory to lock", OUT_OF_LOCKED, inside.locked),
        ("no right to read counters", MAY_NOT_COUNT, inside.counters),
    ):
        if flag and flag not in said and pattern.search(said):
            return f" (This container has {why}, it seems: {inside.name.lower()} run {flag})"
    return ""
