// Rung 5, TMA: one thread asks for whole tiles, and an mbarrier in shared memory says when their bytes have come. No
// thread computes an address, and none waits for its own copies.
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 256;  // of C, that a block makes: its two warpgroups 64 x 256 each
constexpr int STAGES = 4;
constexpr int HIGH = 64;
constexpr int THREADS = ROWS / HIGH * WARPGROUP;

struct Shared {
    bf16 a[STAGES][ROWS * SLICE], b[STAGES][COLUMNS * SLICE];
    u64 full[STAGES];  // mbarriers: this stage's tiles are there
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) rung(const __grid_constant__ TensorMap a,
    const __grid_constant__ TensorMap b, bf16* c, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *(Shared*)memory;
    const int row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS;
    const int down = threadIdx.x / WARPGROUP * HIGH;
    const int steps = inner / SLICE;
    auto fetch = [&](int step) {
        u64* full = &shared.full[step % STAGES];
        mbarrier_expect(full, sizeof shared.a[0] + sizeof shared.b[0]);
        tma_load(shared.a[step % STAGES], &a, row, step * SLICE, full);
        tma_load(shared.b[step % STAGES], &b, column, step * SLICE, full);
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) mbarrier_init(&shared.full[stage], 1);
        mbarrier_init_fence();
        for (int step = 0; step < min(STAGES, steps); step++) fetch(step);
    }
    __syncthreads();  // the barriers exist
    float sum[COLUMNS / 2];
    for (int step = 0; step < steps; step++) {
        mbarrier_wait(&shared.full[step % STAGES], step / STAGES % 2);
        multiply_tiles(sum, shared.a[step % STAGES] + down * SLICE, shared.b[step % STAGES], step > 0);
        wgmma_wait<1>();  // all products but this step's are done,
        __syncthreads();  // in both warpgroups: the place of the step before takes the next tiles
        if (threadIdx.x == 0 && step > 0 && step - 1 + STAGES < steps) fetch(step - 1 + STAGES);
    }
    wgmma_wait<0>();
    store_sums(c + (size_t)(row + down) * columns + column, columns, sum);
}
