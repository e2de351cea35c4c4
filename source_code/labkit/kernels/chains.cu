// Multiply-adds in CHAINS chains a thread that do not wait for one another; STEPS of all together in a round.
extern "C" __global__ void chains(
    float* out, long long* clocks, float factor, float more, int rounds) {
    float sum[CHAINS];
    for (int i = 0; i < CHAINS; ++i) sum[i] = threadIdx.x + i;
    __syncthreads();
    long long start = clock64();
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int step = 0; step < STEPS / CHAINS; ++step)
#pragma unroll
            for (int i = 0; i < CHAINS; ++i)
                sum[i] = fmaf(sum[i], factor, more);  // waits for its own chain alone
    __syncthreads();
    long long end = clock64();
    float all = 0;
    for (int i = 0; i < CHAINS; ++i) all += sum[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;  // else the compiler leaves all of it out
    if (threadIdx.x == 0) clocks[blockIdx.x] = end - start;
}
