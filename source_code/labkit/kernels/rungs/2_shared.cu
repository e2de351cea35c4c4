// Rung 2, shared memory: a block brings tiles of A and B once and reads each number 128 times. Still the CUDA cores.
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 128;  // of C, that a block makes
constexpr int INNER = 16;                 // inner numbers of a tile
constexpr int SIDE = 16;                  // the block's threads, as a square: each makes 8 x 8 elements of C
constexpr int THREADS = SIDE * SIDE;
constexpr int DOWN = ROWS / SIDE, ACROSS = COLUMNS / SIDE;

// 16 bytes of a row become a column of the tile, in FP32: threads beside each other write beside each other.
__device__ void transpose(float (*tile)[ROWS], const bf16* row, int line, int k) {
    const uint4 vector = *(const uint4*)(row + k);
    const bf16* number = (const bf16*)&vector;
    for (int i = 0; i < VECTOR; i++) tile[k + i][line] = __bfloat162float(number[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) rung(
    const bf16* a, const bf16* b, bf16* c, int rows, int columns, int inner) {
    __shared__ float left[INNER][ROWS], right[INNER][COLUMNS];
    const int row = blockIdx.y * ROWS, column = blockIdx.x * COLUMNS;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;       // which elements this thread makes
    const int line = threadIdx.x % ROWS, at = threadIdx.x / ROWS * VECTOR;  // and which 16 bytes of the tiles it brings
    float sum[DOWN][ACROSS] = {};

    for (int k = 0; k < inner; k += INNER) {
        transpose(left, a + (size_t)(row + line) * inner + k, line, at);
        transpose(right, b + (size_t)(column + line) * inner + k, line, at);
        __syncthreads();  // both tiles are there
#pragma unroll
        for (int i = 0; i < INNER; i++) {
            float l[DOWN], r[ACROSS];
            for (int m = 0; m < DOWN; m++) l[m] = left[i][y + SIDE * m];
            for (int n = 0; n < ACROSS; n++) r[n] = right[i][x + SIDE * n];
            for (int m = 0; m < DOWN; m++)
                for (int n = 0; n < ACROSS; n++) sum[m][n] += l[m] * r[n];  // 64 multiplications for 16 reads
        }
        __syncthreads();  // nobody reads them any more
    }
    for (int m = 0; m < DOWN; m++)
        for (int n = 0; n < ACROSS; n++)
            c[(size_t)(row + y + SIDE * m) * columns + column + x + SIDE * n] = __float2bfloat16(sum[m][n]);
}
