"""Which GPUs may a program use that starts here, and what are they called? By CUDA_VISIBLE_DEVICES and ``nvidia-smi``.

That variable names a GPU by its number or by the start of its UUID, a slice of one (MIG) by UUID alone. Only the UUID
means the same GPU in every container; ``nsys`` wants the number. Source: NVIDIA, "CUDA C++ Programming Guide",
section "CUDA Environment Variables"; ``nvidia-smi -L`` lists both.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from typing import NamedTuple

LISTED = re.compile(r"^(?:GPU (\d+): .*|\s+MIG .*)\(UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)
LIMIT_S = 30


class Gpu(NamedTuple):
    """A GPU, or a slice of one: the GPU's number, its own UUID; None for what ``nvidia-smi`` does not tell."""

    number: int | None
    uuid: str | None
    named: str  # as CUDA_VISIBLE_DEVICES names it, else by its number

    @property
    def is_slice(self) -> bool:
        return self.named.startswith("MIG-")


def named() -> list[str]:
    """The names in CUDA_VISIBLE_DEVICES; empty where it leaves all to see."""
    return [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]


def gpus() -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, else all that there are."""
    there = listed()
    if not named():
        return [Gpu(number, uuid, str(number)) for number, uuid in there if uuid.startswith("GPU-")]
    found = []
    for name in named():
        own = [one for one in there if one[1].startswith(name) or (str(one[0]) == name and one[1].startswith("GPU-"))]
        number, uuid = own[0] if len(own) == 1 else (int(name) if name.isdecimal() else None, None)
        found.append(Gpu(number, uuid, name))
    return found


@cache
def listed() -> tuple[tuple[int, str], ...]:
    """Number and UUID of each GPU, and of its slices after it; empty where ``nvidia-smi`` tells nothing."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found, number = [], 0
    for told in LISTED.finditer(done.stdout):
        number = int(told[1]) if told[1] else number
        found.append((number, told[2]))
    return tuple(found)
