"""Which number stands for what in an export? Kinds of copies, of memory and of NVTX events."""

from __future__ import annotations

# The name in the export's own tables of kinds, the number in exports without such tables, our words for it.
# (CUpti_ActivityMemcpyKind; Nsight Systems' own kinds of memory.)
DIRECTIONS = {
    "CUDA_MEMCPY_KIND_HTOD": (1, "host to device"),
    "CUDA_MEMCPY_KIND_DTOH": (2, "device to host"),
    "CUDA_MEMCPY_KIND_HTOA": (3, "host to device"),
    "CUDA_MEMCPY_KIND_ATOH": (4, "device to host"),
    "CUDA_MEMCPY_KIND_ATOA": (5, "device to device"),
    "CUDA_MEMCPY_KIND_ATOD": (6, "device to device"),
    "CUDA_MEMCPY_KIND_DTOA": (7, "device to device"),
    "CUDA_MEMCPY_KIND_DTOD": (8, "device to device"),
    "CUDA_MEMCPY_KIND_HTOH": (9, "host to host"),
    "CUDA_MEMCPY_KIND_PTOP": (10, "GPU to GPU"),
    "CUDA_MEMCPY_KIND_UVM_HTOD": (11, "unified memory to device"),
    "CUDA_MEMCPY_KIND_UVM_DTOH": (12, "unified memory to host"),
    "CUDA_MEMCPY_KIND_UVM_DTOD": (13, "unified memory, GPU to GPU"),
}
MEMORY = {
    "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE": (0, "pageable"),
    "CUDA_MEMOPR_MEMORY_KIND_PINNED": (1, "pinned"),
    "CUDA_MEMOPR_MEMORY_KIND_DEVICE": (2, "device"),
    "CUDA_MEMOPR_MEMORY_KIND_ARRAY": (3, "device"),
    "CUDA_MEMOPR_MEMORY_KIND_MANAGED": (4, "managed"),
    "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC": (5, "device"),
    "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC": (6, "managed"),
}

# Ranges among the NVTX events: pushed and popped, started and ended.
PUSHED, DOMAIN_CREATED = 59, 75
RANGE_TYPES = {"NvtxPushPopRange": PUSHED, "NvtxStartEndRange": 60}

EXACT = 2**53  # ns, 104 days: beyond it a float no longer holds every nanosecond, and no capture is as long
MOST_BYTES = 2**48  # of one copy: all that a CPU of today can address
