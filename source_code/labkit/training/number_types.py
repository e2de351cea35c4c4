"""Which number types does this machine's GPU have in hardware?"""

from __future__ import annotations

import torch

from labkit.training import machine

# The first compute capability with each type: Ampere, and Ada. PyTorch imitates BF16 on older GPUs, slowly and not in
# every operator.
SINCE = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}


def missing(device: torch.device) -> set[str]:
    """Those of ``"tf32"``, ``"bf16"`` and ``"fp8"`` that the GPU lacks. None on a CPU, where all are imitated."""
    if device.type == "cpu":
        return set()
    return {name for name, since in SINCE.items() if machine.capability() < since}
