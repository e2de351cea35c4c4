"""How fast are shared memory and the L2 cache? Two kernels that do nothing but read, 16 bytes a thread at a time.

``shared_reads``: a block a multiprocessor reads what it holds in shared memory again and again. A warp's 512 bytes lie
in a row, so that no bank is asked twice where another is idle. ``again``: all blocks read the same numbers again and
again, each time those that another block read before, past the L1 cache: out of L2 where they fit, else out of memory.

Both add up what they read, since the compiler leaves out what nobody needs; so the sums tell that all of it was read.
"""

from pathlib import Path

import torch

from labkit.kernels import nvrtc

THREADS = 1024  # of a block
READS = 32  # of a thread in a round, 16 bytes each
UNDER_WAY = 5  # reads of a thread of ``again`` at a time: it makes a multiple of them
BYTES = 16 * READS * THREADS  # of a block in a round of ``shared_reads``

FILE = Path(__file__).parent / "bandwidth.cu"
SOURCE = nvrtc.source(FILE)
FLAGS = f"-DTHREADS={THREADS}", f"-DREADS={READS}", f"-DUNDER_WAY={UNDER_WAY}"


def shared_reads(sums: torch.Tensor, clocks: torch.Tensor, rounds: int) -> None:
    """Read ``BYTES`` of shared memory so often in each block, of which there is one for each number of ``clocks``.

    ``sums``: int32, one a thread, is what a thread read; ``clocks``: int64, how many passed meanwhile.
    """
    with torch.cuda.device(sums.device):
        nvrtc.compiled(SOURCE, "shared_reads", FLAGS)((len(clocks), 1), (THREADS, 1), sums, clocks, rounds)


def shared_reference(rounds: int) -> torch.Tensor:
    """What the threads of a block add up: int32 ``(THREADS,)``."""
    places = torch.arange(THREADS)[:, None] + 32 * torch.arange(READS)
    return _as_int32(10 * rounds * places.sum(1))


def again(numbers: torch.Tensor, sums: torch.Tensor, rounds: int) -> None:
    """Read ``numbers`` (int32) so often with a thread for each of ``sums`` (int32), 1,024 of them a block.

    ValueError unless each thread reads as many.
    """
    groups, rest = divmod(numbers.numel(), 4 * UNDER_WAY * len(sums))
    if rest or len(sums) % THREADS:
        raise ValueError(f"{numbers.numel():,} numbers are not {4 * UNDER_WAY} at a time for {len(sums):,} threads")
    blocks = len(sums) // THREADS
    with torch.cuda.device(sums.device):
        kernel = nvrtc.compiled(SOURCE, "again", FLAGS)
        kernel((blocks, 1), (THREADS, 1), numbers, sums, UNDER_WAY * groups, rounds)


def again_reference(numbers: torch.Tensor, rounds: int) -> torch.Tensor:
    """What all threads together add up: int32, a single number."""
    return _as_int32(rounds * numbers.sum(dtype=torch.int64))


def _as_int32(number: torch.Tensor) -> torch.Tensor:
    """The last 32 bits, which is what sums of 32-bit numbers keep."""
    return ((number + 2**31) % 2**32 - 2**31).to(torch.int32)
