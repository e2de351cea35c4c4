// Rung 1, naive: one thread makes one element of C = A Bᵀ. A is (rows, inner), B (columns, inner), both row-major.
#include "ptx.cuh"

constexpr int ROWS = 16, COLUMNS = 16;  // of C, that a block makes
constexpr int THREADS = ROWS * COLUMNS;

extern "C" __global__ void __launch_bounds__(THREADS) rung(
    const bf16* a, const bf16* b, bf16* c, int rows, int columns, int inner) {
    const int row = blockIdx.y * ROWS + threadIdx.x / COLUMNS;
    const int column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    float sum = 0;
    // Every element of A is read from memory `columns` times, every one of B `rows` times, or found in a cache.
    for (int k = 0; k < inner; k++)
        sum += __bfloat162float(a[(size_t)row * inner + k]) * __bfloat162float(b[(size_t)column * inner + k]);
    c[(size_t)row * columns + column] = __float2bfloat16(sum);
}
