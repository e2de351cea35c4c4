// Rung 3, mma.sync: each warp multiplies on a Tensor Core, out of registers that ldmatrix fills, while cp.async brings
// the next tiles.
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 256;  // of C, that a block makes
constexpr int STAGES = 4;                 // tiles of A and of B in shared memory: one is multiplied, the others come
constexpr int DOWN = 2, ACROSS = 4;       // warps
constexpr int THREADS = DOWN * ACROSS * WARP;
constexpr int HIGH = ROWS / DOWN, WIDE = COLUMNS / ACROSS;  // a warp's part: 64 x 64
constexpr int M = HIGH / 16, N = WIDE / 8;                  // in products of 16 x 8

struct Shared {
    bf16 a[STAGES][ROWS * SLICE], b[STAGES][COLUMNS * SLICE];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) rung(
    const bf16* a, const bf16* b, bf16* c, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *(Shared*)memory;
    const int row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int down = warp / ACROSS * HIGH, across = warp % ACROSS * WIDE;
    const int steps = inner / SLICE;
    auto fetch = [&](int step) {
        if (step < steps) {
            copy_tile<ROWS>(shared.a[step % STAGES], a, row, step * SLICE, inner);
            copy_tile<COLUMNS>(shared.b[step % STAGES], b, column, step * SLICE, inner);
        }
        cp_async_commit();
    };
    float sum[M][N][4] = {};
    for (int step = 0; step < STAGES - 1; step++) fetch(step);
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();  // this thread's copies of this step have arrived,
        __syncthreads();              // and everybody's; and everybody has left the step before, so
        fetch(step + STAGES - 1);     // its place takes the next copies
        const bf16 *left = shared.a[step % STAGES], *right = shared.b[step % STAGES];
#pragma unroll
        for (int chunk = 0; chunk < SLICE / VECTOR; chunk += 2) {  // 16 inner numbers: two chunks
            u32 x[M][4], y[N / 2][4];
            for (int m = 0; m < M; m++) ldmatrix(x[m], left + swizzled(down + 16 * m + lane % 16, chunk + lane / 16));
            for (int n = 0; n < N / 2; n++)
                ldmatrix(y[n], right + swizzled(across + 16 * n + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
            for (int m = 0; m < M; m++)
                for (int n = 0; n < N; n++) mma(sum[m][n], x[m], y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            bf16* to = c + (size_t)(row + down + 16 * m + g) * columns + column + across + 8 * n + 2 * t;
            *(u32*)to = pack(sum[m][n][0], sum[m][n][1]);
            *(u32*)(to + 8 * columns) = pack(sum[m][n][2], sum[m][n][3]);
        }
}
