// The product of two matrices with WMMA, CUDA C++'s own words for Tensor Cores, twice; wmma.py hands over with -D
// NUMBER, the type, and of `tiled` ROWS, COLUMNS, INNER, DOWN, ACROSS, STAGES and PAD.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda::wmma;

// ---- One tile a warp ----

// One warp makes one 16 x 16 tile of C. All sizes are multiples of 16.
extern "C" __global__ void one_tile(
    const NUMBER* a, const NUMBER* b, NUMBER* c, int rows, int columns, int inner) {
    const int row = 16 * blockIdx.y, column = 16 * blockIdx.x;

    // Fragments belong to the warp. Which thread holds which element is unspecified.
    fragment<matrix_a, 16, 16, 16, NUMBER, row_major> left;
    fragment<matrix_b, 16, 16, 16, NUMBER, row_major> right;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
    for (int k = 0; k < inner; k += 16) {
        load_matrix_sync(left, a + row * inner + k, inner);  // the last number: how long a row is
        load_matrix_sync(right, b + k * columns + column, columns);
        mma_sync(sum, left, right, sum);  // sum = left * right + sum
    }

    // Out through shared memory, where each element has a place again; then rounded to 16 bits.
    __shared__ __align__(32) float out[16 * 16];
    store_matrix_sync(out, sum, 16, mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 16 * 16; i += 32)
        c[(row + i / 16) * columns + column + i % 16] = NUMBER(out[i]);
}

// ---- Tiles in shared memory ----

// All threads bring a tile of a matrix into shared memory, 16 bytes at a time where its rows allow
// it. Such a copy goes on by itself. What lies beyond the matrix's edges becomes zero.
template <int TALL, int WIDE>
__device__ void bring(NUMBER (*tile)[WIDE + PAD], const NUMBER* matrix,
                      int row, int column, int rows, int columns) {
    for (int i = 8 * threadIdx.x; i < TALL * WIDE; i += 8 * blockDim.x) {
        const int r = row + i / WIDE, c = column + i % WIDE;
        const NUMBER* from = matrix + (size_t)r * columns + c;
        NUMBER* to = &tile[i / WIDE][i % WIDE];
        if (columns % 8 == 0 && r < rows && c < columns)
            __pipeline_memcpy_async(to, from, 16);
        else
            for (int j = 0; j < 8; ++j)
                to[j] = r < rows && c + j < columns ? from[j] : NUMBER(0.0f);
    }
}

// A block of DOWN x ACROSS warps makes ROWS x COLUMNS of C, each warp its part of that.
extern "C" __global__ void __launch_bounds__(32 * DOWN * ACROSS) tiled(
    const NUMBER* a, const NUMBER* b, NUMBER* c, int rows, int columns, int inner) {
    constexpr int TALL = ROWS / DOWN, WIDE = COLUMNS / ACROSS;  // a warp's part
    extern __shared__ __align__(32) float4 memory[];
    auto left = reinterpret_cast<NUMBER (*)[ROWS][INNER + PAD]>(memory);  // STAGES tiles of A
    auto right = reinterpret_cast<NUMBER (*)[INNER][COLUMNS + PAD]>(left + STAGES);  // and of B
    const int row = ROWS * blockIdx.y, column = COLUMNS * blockIdx.x;
    const int warp = threadIdx.x / 32, down = warp / ACROSS * TALL, across = warp % ACROSS * WIDE;

    fragment<accumulator, 16, 16, 16, float> sum[TALL / 16][WIDE / 16];  // in registers to the end
    for (auto& line : sum)
        for (auto& one : line) fill_fragment(one, 0.0f);

    const int steps = (inner + INNER - 1) / INNER;
    auto fetch = [&](int step) {
        if (step < steps) {
            bring<ROWS, INNER>(left[step % STAGES], a, row, step * INNER, rows, inner);
            bring<INNER, COLUMNS>(right[step % STAGES], b, step * INNER, column, inner, columns);
        }
        __pipeline_commit();
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        fetch(step + STAGES - 1);
        __pipeline_wait_prior(STAGES - 1);  // my copies of this step have arrived,
        __syncthreads();                    // and everybody's
        for (int k = 0; k < INNER; k += 16) {
            fragment<matrix_a, 16, 16, 16, NUMBER, row_major> x[TALL / 16];
            fragment<matrix_b, 16, 16, 16, NUMBER, row_major> y[WIDE / 16];
            for (int i = 0; i < TALL / 16; ++i)
                load_matrix_sync(x[i], &left[step % STAGES][down + 16 * i][k], INNER + PAD);
            for (int j = 0; j < WIDE / 16; ++j)
                load_matrix_sync(y[j], &right[step % STAGES][k][across + 16 * j], COLUMNS + PAD);
            for (int i = 0; i < TALL / 16; ++i)
                for (int j = 0; j < WIDE / 16; ++j) mma_sync(sum[i][j], x[i], y[j], sum[i][j]);
        }
        __syncthreads();  // nobody reads these tiles any more: the next may come
    }

    // Out through shared memory, which is free by now: a place for each warp; guarded at the edges.
    float* out = reinterpret_cast<float (*)[16 * 16]>(memory)[warp];
    for (int i = 0; i < TALL / 16; ++i)
        for (int j = 0; j < WIDE / 16; ++j) {
            store_matrix_sync(out, sum[i][j], 16, mem_row_major);
            __syncwarp();
            for (int at = threadIdx.x % 32; at < 16 * 16; at += 32) {
                const int r = row + down + 16 * i + at / 16, l = column + across + 16 * j + at % 16;
                if (r < rows && l < columns) c[(size_t)r * columns + l] = NUMBER(out[at]);
            }
            __syncwarp();
        }
}
