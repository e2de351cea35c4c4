"""How many threads does a multiprocessor need? Multiply-adds in chains that do not wait for one another.

Each step of a chain needs the result of the step before: a few clocks pass until it is there. Meanwhile the
multiprocessor can take a step of another warp (occupancy), or of another chain of the same warp (instruction-level
parallelism, ILP). The kernel has CHAINS of them a thread, and is started with as many warps as one likes.
(Volkov 2010, "Better Performance at Lower Occupancy".)
"""

from pathlib import Path

import torch

from labkit.kernels import nvrtc

CHAINS = (1, 2, 4, 8)
STEPS = 64  # of all chains together, in a round of the loop
MOST_THREADS = 1024  # of a block: with more warps, a multiprocessor gets more blocks

FILE = Path(__file__).parent / "chains.cu"
SOURCE = nvrtc.source(FILE)


def flags(chains: int) -> tuple[str, ...]:
    """The compiler's."""
    return f"-DCHAINS={chains}", f"-DSTEPS={STEPS}"


def launch(out: torch.Tensor, clocks: torch.Tensor, chains: int, warps: int, rounds: int) -> nvrtc.Kernel:
    """Start so many warps of 32 threads on each multiprocessor; the compiled kernel.

    ``out``: FP32, a number a thread. ``clocks``: int64, of each block, how many passed. Each thread makes ``STEPS *
    rounds`` multiply-adds in all. Blocks go round the multiprocessors, so that each gets as many.
    """
    blocks_each = -(-32 * warps // MOST_THREADS)
    blocks = blocks_each * torch.cuda.get_device_properties(out.device).multi_processor_count
    threads = 32 * warps // blocks_each
    with torch.cuda.device(out.device):
        kernel = nvrtc.compiled(SOURCE, "chains", flags(chains))
        kernel((blocks, 1), (threads, 1), out, clocks, 1.0, 1.0, rounds)
    return kernel


def chains_reference(threads: int, chains: int, rounds: int) -> torch.Tensor:
    """What the threads of a block write: FP32 ``(threads,)``. Each step adds one, so the result tells their number.

    Exact as long as it stays below 2^24.
    """
    steps = rounds * STEPS // chains
    return chains * (torch.arange(threads, dtype=torch.float32) + steps) + chains * (chains - 1) // 2
