"""How fast are shared memory and the L2 cache? Two kernels that do nothing but read, 16 bytes a thread at a time.

``shared_reads``: a block a multiprocessor reads what it holds in shared memory again and again. A warp's 512 bytes lie
in a row, so that no bank is asked twice where another is idle. ``again``: all blocks read the same numbers again and
again, each time those that another block read before, past the L1 cache: out of L2 where they fit, else out of memory.

Both add up what they read, since the compiler leaves out what nobody needs; so the sums tell that all of it was read.
"""

import torch

from labkit.kernels import nvrtc

THREADS = 1024  # of a block
READS = 32  # of a thread in a round, 16 bytes each
UNDER_WAY = 5  # reads of a thread of ``again`` at a time: it makes a multiple of them
BYTES = 16 * READS * THREADS  # of a block in a round of ``shared_reads``

SOURCE = r"""
#define READ(space, at, x) \
    asm volatile("ld." space ".v4.u32 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : at)

extern "C" __global__ void __launch_bounds__(1024) shared_reads(unsigned *sums, long long *clocks, int rounds)
{
    __shared__ uint4 held[1024 + 31 * 32];
    for (unsigned i = threadIdx.x; i < 1024 + 31 * 32; i += blockDim.x)
        held[i] = make_uint4(i, 2 * i, 3 * i, 4 * i);
    const unsigned own = (unsigned)__cvta_generic_to_shared(held + threadIdx.x);
    unsigned sum = 0;
    __syncthreads();
    long long start = clock64();
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            uint4 x;
            READ("volatile.shared", "r"(own + 512 * i), x);         // a warp further on
            sum += x.x + x.y + x.z + x.w;
        }
    __syncthreads();
    long long end = clock64();
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0)
        clocks[blockIdx.x] = end - start;
}

extern "C" __global__ void __launch_bounds__(1024) again(const uint4 *from, unsigned *sums, int passes, int rounds)
{
    const int all = gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (int round = 0; round < rounds; ++round) {
        const uint4 *own = from + (blockIdx.x + round) % gridDim.x * blockDim.x + threadIdx.x;
#pragma unroll 5
        for (int pass = 0; pass < passes; ++pass) {
            uint4 x;
            READ("global.cg", "l"(own + (size_t)pass * all), x);
            sum += x.x + x.y + x.z + x.w;
        }
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


def shared_reads(sums: torch.Tensor, clocks: torch.Tensor, rounds: int) -> None:
    """Read ``BYTES`` of shared memory so often in each block, of which there is one for each number of ``clocks``.

    ``sums``: int32, one a thread, is what a thread read; ``clocks``: int64, how many passed meanwhile.
    """
    nvrtc.compiled(SOURCE, "shared_reads")((len(clocks), 1), (THREADS, 1), sums, clocks, rounds)


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
    nvrtc.compiled(SOURCE, "again")((blocks, 1), (THREADS, 1), numbers, sums, UNDER_WAY * groups, rounds)


def again_reference(numbers: torch.Tensor, rounds: int) -> torch.Tensor:
    """What all threads together add up: int32, a single number."""
    return _as_int32(rounds * numbers.sum(dtype=torch.int64))


def _as_int32(number: torch.Tensor) -> torch.Tensor:
    """The last 32 bits, which is what sums of 32-bit numbers keep."""
    return ((number + 2**31) % 2**32 - 2**31).to(torch.int32)
