// Rung 4, wgmma: a warpgroup's product is one asynchronous instruction that reads A and B from shared memory, past the
// registers. The copies are those of rung 3.
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 256;  // of C, that a block makes: its two warpgroups 64 x 256 each
constexpr int STAGES = 4;
constexpr int HIGH = 64;
constexpr int THREADS = ROWS / HIGH * WARPGROUP;

struct Shared {
    bf16 a[STAGES][ROWS * SLICE], b[STAGES][COLUMNS * SLICE];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) rung(
    const bf16* a, const bf16* b, bf16* c, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) char memory[];  // the swizzle counts rows from multiples of 1,024 bytes
    Shared& shared = *(Shared*)memory;
    const int row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS;
    const int down = threadIdx.x / WARPGROUP * HIGH;
    const int steps = inner / SLICE;
    auto fetch = [&](int step) {
        if (step < steps) {
            copy_tile<ROWS>(shared.a[step % STAGES], a, row, step * SLICE, inner);
            copy_tile<COLUMNS>(shared.b[step % STAGES], b, column, step * SLICE, inner);
        }
        cp_async_commit();
    };
    float sum[COLUMNS / 2];
    for (int step = 0; step < STAGES - 2; step++) fetch(step);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 3>();  // this thread's copies of this step have arrived,
        fence_proxy_async();          // wgmma may see them,
        __syncthreads();              // and everybody's
        const u64 left = descriptor(shared.a[step % STAGES] + down * SLICE);
        const u64 right = descriptor(shared.b[step % STAGES]);
        wgmma_fence();
#pragma unroll
        for (int piece = 0; piece < SLICE / PIECE; piece++)
            wgmma_64x256(sum, left + piece * NEXT_PIECE, right + piece * NEXT_PIECE, step + piece > 0);
        wgmma_commit();
        fetch(step + STAGES - 2);  // into the place of two steps ago, which both warpgroups have left
        wgmma_wait<1>();           // all products but this step's are done
    }
    wgmma_wait<0>();
    store_sums(c + (size_t)(row + down) * columns + column, columns, sum);
}
