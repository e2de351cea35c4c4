"""How does Triton write the last rungs? With tensor descriptors, which become TMA, and one loop over tiles: persistent.

``tl.range(…, warp_specialize=True)`` would ask for a producer and consumers, too; Triton documents it for Blackwell
alone. On Hopper, Triton 3.9 makes the same 256 threads of it, or with four warps an error of the compiler.
"""

import torch

from labkit.kernels.triton_or_not import tl, triton

TILE = (128, 256, 64)  # rows, columns, inner numbers at a time: as the rungs
WARPS, STAGES = 8, 3
GROUP = 16  # rows of tiles that are gone down together


@triton.jit
def _persistent(
    a, b, c, rows, columns, inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    down, across = rows // ROWS, columns // COLUMNS
    for n in tl.range(tl.program_id(0), down * across, PROGRAMS, flatten=True):
        first = n // (GROUP * across) * GROUP
        height = tl.minimum(down - first, GROUP)
        row = (first + (n - first * across) % height) * ROWS
        column = (n - first * across) // height * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, inner, INNER):
            total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
        c.store([row, column], total.to(tl.bfloat16))


def triton_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b.T`` as ``rung_matmul`` has it: ``(M, K)`` by ``(N, K)`` transposed, BF16, contiguous; ``(M, N)`` in BF16.

    On the CPU: PyTorch's. ValueError for sizes that are no multiples of TILE. TMA is Hopper's and later GPUs'.
    """
    sizes = (*a.shape[:1], *b.shape)
    if any(size < 1 or size % part for size, part in zip(sizes, TILE, strict=True)):
        raise ValueError(f"sizes have to be multiples of {TILE}, not {sizes}")
    if not a.is_cuda:
        return a @ b.T
    from triton.tools.tensor_descriptor import TensorDescriptor

    c = torch.empty(sizes[:2], dtype=a.dtype, device=a.device)
    rows, columns, inner = TILE
    boxes = ([rows, inner], [columns, inner], [rows, columns])
    described = [TensorDescriptor.from_tensor(one, box) for one, box in zip((a, b, c), boxes, strict=True)]
    tiles = sizes[0] // rows * (sizes[1] // columns)
    programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
    _persistent[(programs,)](*described, *sizes, *TILE, GROUP, programs, num_warps=WARPS, num_stages=STAGES)
    return c
