"""How would the profiler that was used have recorded it? What was not looked at, in the words of that profiler.

Questions name what they lack by the options of nsys. A trace of PyTorch's profiler has some of it by other means, and
what it never holds, such as calls into the operating system, nsys alone records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict

from stepbudget.ask import flops, lines, memory, missing
from stepbudget.ask.advice import Advice

NSYS = re.compile(r"\((--[^()]*)\)")
# What nsys is told → what torch.profiler.profile is told, or the program does.
IN_PYTORCH = {
    "--trace cuda": "activities=[…, ProfilerActivity.CUDA]",
    "--trace nvtx, and ranges in the program": "record_function in the program",
    f"{lines.OPTIONS}; they slow the program": "with_stack=True; it slows the program",
    memory.OPTION: "profile_memory=True",
}


def of(profiler: str, texts: Iterable[str]) -> list[str]:
    """The texts with the options of whoever recorded the report."""
    return [*texts] if profiler == "Nsight Systems" else [_in_pytorch(text) for text in texts]


def of_advice(profiler: str, found: Iterable[Advice]) -> list[dict]:
    """The findings as mappings, their evidence with these options."""
    return [asdict(one) | {"evidence": of(profiler, [one.evidence])[0]} for one in found]


def _in_pytorch(text: str) -> str:
    text = text.replace(flops.OPTIONS, "record_shapes=True").replace(missing.OF_NSYS, "")
    return NSYS.sub(lambda found: f"({IN_PYTORCH.get(found[1], f'nsys profile {found[1]}')})", text)
