"""Which number types does a GPU's hardware have?"""

from __future__ import annotations

import torch

# The first compute capability with each type (CUDA C++ Programming Guide, "Arithmetic Instructions" and the tuning
# guides of Ampere and Ada). PyTorch imitates BF16 on older GPUs, slowly and not in every operator.
SINCE = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}


def missing(device: torch.device) -> set[str]:
    """Those of ``"tf32"``, ``"bf16"`` and ``"fp8"`` that this GPU lacks. None on a CPU, where all are imitated."""
    if device.type == "cpu":
        return set()
    capability = torch.cuda.get_device_capability(device)
    return {name for name, since in SINCE.items() if capability < since}
