// Two kernels that do nothing but read, 16 bytes a thread at a time: READS of them in a round out of shared memory, or
// UNDER_WAY at a time past the L1 cache. A block has THREADS.
constexpr int WARP = 32;                              // threads: their 512 bytes lie in a row
constexpr int HELD = THREADS + (READS - 1) * WARP;    // vectors of 16 bytes in shared memory
constexpr unsigned NEXT_READ = WARP * sizeof(uint4);  // bytes: a warp further on

__device__ __forceinline__ uint4 read_shared(unsigned at) {
    uint4 x;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
    return x;
}
__device__ __forceinline__ uint4 read_l2(const uint4* at) {  // .cg: cached in L2 alone
    uint4 x;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) shared_reads(unsigned* sums, long long* clocks, int rounds) {
    __shared__ uint4 held[HELD];
    for (unsigned i = threadIdx.x; i < HELD; i += blockDim.x) held[i] = make_uint4(i, 2 * i, 3 * i, 4 * i);
    const unsigned own = (unsigned)__cvta_generic_to_shared(held + threadIdx.x);
    unsigned sum = 0;
    __syncthreads();
    long long start = clock64();
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            const uint4 x = read_shared(own + NEXT_READ * i);
            sum += x.x + x.y + x.z + x.w;
        }
    __syncthreads();
    long long end = clock64();
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) clocks[blockIdx.x] = end - start;
}

extern "C" __global__ void __launch_bounds__(THREADS) again(
    const uint4* from, unsigned* sums, int passes, int rounds) {
    const int all = gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (int round = 0; round < rounds; ++round) {
        const uint4* own = from + (blockIdx.x + round) % gridDim.x * blockDim.x + threadIdx.x;
#pragma unroll UNDER_WAY
        for (int pass = 0; pass < passes; ++pass) {
            const uint4 x = read_l2(own + (size_t)pass * all);
            sum += x.x + x.y + x.z + x.w;
        }
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
