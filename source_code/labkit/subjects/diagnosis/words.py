"""Which cause do a tool's words name? Written down before any tool was asked, and in the tool's favour.

A finding is read with all that it says: label, explanation, and what it suggests. It names each cause of which it
speaks, whatever else it speaks of; how many it names stands beside its answer, since a list of all that can go wrong
is right about everything.
"""

from __future__ import annotations

import re

# Cause (of stepbudget.ask.budget.CAUSES and labkit.cases.OTHER_CAUSES) → what speaks of it.
NAMES = {
    "loader": r"data ?load|num_workers|prefetch_factor|input pipeline|data pipeline",
    "pageable_copy": r"pageable|pin_memory|pinned|page-locked|H2D|host.to.device|PCIe|memory transfer|memcpy",
    "synchronisation": r"synchroni[sz]|\bsync\b|\.item\(\)|host.sync",
    "launch_overhead": r"CUDA graph|launch overhead|launch.bound|(small|tiny|short)[ -]kernel|increas\w+ (the )?batch",
    "python": r"cpu-bound|host-bound|\bpython\b|\bGIL\b|garbage|CPU overhead|eager overhead|cpu time",
    "optimizer": r"optimi[sz]er|foreach",
    "other_kernels": r"tensor cores?|mixed precision|half precision|\b(bf16|fp16|tf32|fp32)\b",
    "os_wait": r"blocked (in|by) the (OS|operating system)|OS runtime|futex|compil(e|ing|ation) (worker|process)",
    "profiler": r"profiler overhead|emit_nvtx|instrumentation overhead",
    "sizes": r"multiples? of \d|alignment|misaligned|padding|odd[ -]size|tile quanti[sz]ation",
    "communication": r"\bNCCL\b|all-?reduce|collective|communication",
    "tensor_core_kernels": r"compute[ -]imbalance|more (work|compute) (on|than)",
}
NAMES = {cause: re.compile(pattern, re.IGNORECASE) for cause, pattern in NAMES.items()}

# The rules of nsys analyze, under their old and new names. Gaps and low utilisation say that the GPU waits, and not for
# what: they name no cause.
RULES = {
    ("cuda_memcpy_async", "cuda-async-memcpy"): ("pageable_copy",),
    ("cuda_memcpy_sync", "cuda-sync-memcpy"): ("pageable_copy", "synchronisation"),
    ("cuda_memset_sync", "cuda-sync-memset"): ("synchronisation",),
    ("cuda_api_sync", "cuda-sync-api"): ("synchronisation",),
    ("gpu_gaps", "gpu-starv"): (),
    ("gpu_time_util", "gpu-low-util"): (),
}
RULES = {name: causes for names, causes in RULES.items() for name in names}

LATE = re.compile(r"\b(?:rank|GPU|device) ?(\d+)\b[^.]*\b(?:straggl|slow|late|last|behind)", re.IGNORECASE)


def named(text: str) -> tuple[str, ...]:
    """The causes of which a text speaks, in order of NAMES."""
    return tuple(cause for cause, pattern in NAMES.items() if pattern.search(text))


def late_rank(text: str) -> int | None:
    """The rank that a text says is late; None where it says so of none."""
    found = LATE.search(text)
    return int(found.group(1)) if found else None
