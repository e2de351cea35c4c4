// Forward through fc1, and all behind it in the same launch: the network's small end, down to the loss, and back up to
// the gradient of fc1's outputs. What head.py does in a launch of its own, with the same random numbers.
//
// A product of 1,024 x 9,216 by 9,216 x 128 has few outputs and long sums: eight blocks, a cluster, share each sum. A
// cluster makes 64 samples, a block an eighth of their sums. Then each block gets all eight parts of eight samples into
// its own shared memory, and ends with these: no sum goes through global memory.
//
//     shared memory of a block, struct Head: 207,520 bytes
//     +-----------------+-----------------+-----------------+---------------------------+------------+
//     | pooled   57,344 | weight  114,688 | parts    32,768 | logits 2,048 gradient 512 | mbarriers  |
//     | seven stages    | seven stages    | of eight blocks | loss 32                   |        128 |
//     +-----------------+-----------------+-----------------+---------------------------+------------+
//
//     warp 4, the producer    global memory → pooled, weight of a stage, by TMA, swizzled
//     warps 0 to 3            pooled × weight by wgmma: 64 samples by 128 units; these → parts of all blocks (DSMEM);
//                             then of eight samples 32 units each warp: bias, ReLU, dropout; fc2, log-softmax, loss;
//                             back through fc2, dropout and ReLU → back; the gradients of both biases, of fc2's weight
//
//     mbarriers               producer      warps 0 to 3
//     full   of a stage       TMA arrives   wait
//     empty  of a stage       wait          one arrives for all: wgmma has ended in all four
//     came   (one)                          the parts of all blocks arrive; wait
//
// In the end thread 4g + t of a warp holds sample g and, of each eight of its units, 2t and 2t + 1. So wgmma leaves the
// sums, and so mma takes 8 x 8 numbers of B; where it needs the other order, movmatrix transposes between threads.
#include "hopper_fc1.cuh"

constexpr int CLUSTER = 8, STAGES = 7, THREADS = WARPGROUP + WARP;
constexpr int STEPS = FEATURES / CLUSTER / SLICE;  // of a block's share of the sums, 64 numbers each
constexpr int OWN = SAMPLES / CLUSTER;             // samples that a block has in the end
constexpr int WARPS = WARPGROUP / WARP;            // that multiply
constexpr int FOURS = UNITS / 4 / 4;               // of a thread's sums for one block: four at a time
constexpr int DIGITS = 10, ROWS = 16;              // ten digits, and six that never are
constexpr u32 OFFSET = 1u << 30;                   // dropout2's random numbers begin there, as in head.py
constexpr float NEVER = -1e30f;
#if DROPOUT
constexpr float SLOPE = 2;  // of what dropout2 keeps: half of all
#else
constexpr float SLOPE = 1;
#endif

struct Head {
    bf16 pooled[STAGES][SAMPLES * SLICE], weight[STAGES][UNITS * SLICE];
    float4 parts[CLUSTER][FOURS][WARP];  // [from which block][four of a thread's sums][thread]
    float logits[WARPS][ROWS][OWN];      // [of which warp's units]
    float gradient[OWN][ROWS];           // of the logits
    float loss[OWN];
    u64 full[STAGES], empty[STAGES], came;
};

#define SUMS_64 SUMS_52 ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
PTX void wgmma_64x128(float (&sum)[64], u64 a, u64 b, int add) {
    asm volatile(WGMMA("128", "%66", SUMS_64, "%64, %65", "0, 0")
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48) : "l"(a), "l"(b), "r"(add));
}

// 8 x 8 BF16 numbers: thread 4g + t gives 2t and 2t + 1 of row g, and gets 2t and 2t + 1 of column g.
PTX u32 transposed(u32 two) {
    u32 out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(two));
    return out;
}
// Two sums added to two numbers in global memory, which other blocks add to as well.
PTX void red_add(float* to, float a, float b) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}
// Over the 16 threads of a sample.
PTX float largest(float value) {
    for (int i = 8; i > 0; i /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, i));
    return value;
}
PTX float total(float value) {
    for (int i = 8; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
    return value;
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1) fc1_head(
    const __grid_constant__ TensorMap pooled, const __grid_constant__ TensorMap weight1, const float* bias1,
    const float* weight2, const float* bias2, const long long* labels, const long long* order, const long long* seeds,
    float* losses, u16* back, float* bias1_gradient, float* weight2_gradient, float* bias2_gradient, int samples,
    int step) {
    extern __shared__ __align__(1024) char shared[];  // the swizzle counts rows from multiples of 1,024 bytes
    Head& all = *(Head*)shared;
    const int rank = cluster_rank(), first = blockIdx.x / CLUSTER * SAMPLES;  // of the cluster's samples
    if (threadIdx.x == 0) {
        mbarrier_init(&all.came, 1);
        mbarrier_expect(&all.came, sizeof all.parts);
    }
    init_ring(all.full, all.empty, STAGES, 1);
    __syncthreads();
    cluster_arrive();  // this block runs, and its barriers exist

    if (threadIdx.x >= WARPGROUP) {  // the producer
        for (int i = 0; threadIdx.x == WARPGROUP && i < STEPS; i++) {
            const int stage = i % STAGES, at = (rank * STEPS + i) * SLICE;
            mbarrier_wait(&all.empty[stage], i / STAGES % 2 ^ 1);  // the first time round, at once
            mbarrier_expect(&all.full[stage], sizeof all.pooled[0] + sizeof all.weight[0]);
            tma_load(all.pooled[stage], &pooled, first, at, &all.full[stage]);  // zeros for samples that are not there
            tma_load(all.weight[stage], &weight1, 0, at, &all.full[stage]);
        }
        __syncwarp();
        cluster_wait();
        return;
    }

    // What the head will need is fetched before the sums are made.
    const int warp = uniform(threadIdx.x / WARP), lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int mine = first + rank * OWN, sample = mine + g;  // the block's first sample, and this thread's
    const bool inside = sample < samples;
    u32 weight[2][4];  // fc2's for 32 units, 16 each: as A of mma; digits g and g + 8, units 2t and 2t + 1, then + 8
    float2 bias[4];    // fc1's
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int digit = g + i % 2 * 8, unit = 32 * warp + 16 * k + i / 2 * 8 + 2 * t;
            float2 two = make_float2(0, 0);
            if (digit < DIGITS) two = *(const float2*)(weight2 + digit * UNITS + unit);
            weight[k][i] = pack(two.x, two.y);
        }
#pragma unroll
    for (int j = 0; j < 4; j++) bias[j] = *(const float2*)(bias1 + 32 * warp + 8 * j + 2 * t);
    u32 keep = ~0u;  // a bit for each of the warp's units
#if DROPOUT
    const uint4 random = philox((u64)seeds[step], sample + OFFSET, 0);
    keep = warp < 2 ? warp ? random.y : random.x : warp == 2 ? random.z : random.w;
#endif
    // Of the logits, 16 threads have a sample.
    const int own = threadIdx.x / ROWS, digit = threadIdx.x % ROWS;
    const bool real = digit < DIGITS, counts = mine + own < samples;
    const float bias_out = real ? bias2[digit] : 0.0f, share = 1.0f / samples;
    const bool is_label = counts && labels[order[mine + own]] == digit;

    float sum[64];
    for (int i = 0; i < STEPS; i++) {
        const int stage = i % STAGES;
        mbarrier_wait(&all.full[stage], i / STAGES % 2);
        const u64 left = descriptor(all.pooled[stage]), right = descriptor(all.weight[stage]);
        wgmma_fence();
#pragma unroll
        for (int piece = 0; piece < SLICE / PIECE; piece++)
            wgmma_64x128(sum, left + piece * NEXT_PIECE, right + piece * NEXT_PIECE, i + piece > 0);
        wgmma_commit();
        wgmma_wait<1>();  // all products but this step's are done
        if (i > 0 && threadIdx.x == 0) mbarrier_arrive(&all.empty[(i - 1) % STAGES]);
    }
    wgmma_wait<0>();

    // Row 16w + g is sample g of block 2w, row 16w + g + 8 sample g of block 2w + 1.
    cluster_wait();  // all of them run
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int to = 2 * warp + h;
        const u32 there = address_in(to, shared_address(&all.parts[rank][0][lane]));
        const u32 came = address_in(to, shared_address(&all.came));
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            store_async(there + i * WARP * (u32)sizeof(float4), sum[8 * i + 2 * h], sum[8 * i + 2 * h + 1],
                sum[8 * i + 4 + 2 * h], sum[8 * i + 4 + 2 * h + 1], came);
    }
    mbarrier_wait(&all.came, 0);
    float linear[4][2] = {};
#pragma unroll
    for (int from = 0; from < CLUSTER; from++)  // always in this order
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 part = all.parts[from][2 * warp + i][lane];
            linear[2 * i][0] += part.x;
            linear[2 * i][1] += part.y;
            linear[2 * i + 1][0] += part.z;
            linear[2 * i + 1][1] += part.w;
        }

    u32 hidden[4];
    bool alive[4][2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float value = linear[j][e] + (e ? bias[j].y : bias[j].x);
            alive[j][e] = inside && value > 0 && keep >> (8 * j + 2 * t + e) & 1;
            linear[j][e] = alive[j][e] ? value * SLOPE : 0.0f;
        }
        hidden[j] = pack(linear[j][0], linear[j][1]);
    }

    // fc2: 16 digits by eight samples, over this warp's units; then over the warps.
    float logits[4] = {};  // digits g and g + 8, samples 2t and 2t + 1
#pragma unroll
    for (int k = 0; k < 2; k++) mma(logits, weight[k], hidden[2 * k], hidden[2 * k + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++) all.logits[warp][g + i / 2 * 8][2 * t + i % 2] = logits[i];
    named_barrier(1, WARPGROUP);
    float logit = bias_out;
#pragma unroll
    for (int i = 0; i < WARPS; i++) logit += all.logits[i][digit][own];
    if (!real) logit = NEVER;
    const float shifted = logit - largest(logit), power = __expf(shifted), powers = total(power);
    // The gradient of log-softmax and loss together is the probabilities, less one for the true digit.
    all.gradient[own][digit] = counts ? (__fdividef(power, powers) - is_label) * share : 0.0f;
    if (is_label || (!counts && digit == 0)) all.loss[own] = counts ? (__logf(powers) - shifted) * share : 0.0f;
    named_barrier(1, WARPGROUP);

    // Back: eight samples by 16 digits are A twice, as they are and transposed; A's other eight rows or columns are 0.
    const float* row = all.gradient[g];
    const u32 low = pack(row[2 * t], row[2 * t + 1]), high = pack(row[2 * t + 8], row[2 * t + 9]);  // digits
    const u32 by_samples[4] = {low, 0, high, 0}, by_digits[4] = {transposed(low), transposed(high), 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {  // eight units
        const int unit = 32 * warp + 8 * j + 2 * t;
        float below[4] = {}, weights[4] = {};  // of these only the upper eight rows are samples; digits g and g + 8
        mma(below, by_samples, transposed(weight[j / 2][j % 2 * 2]), transposed(weight[j / 2][j % 2 * 2 + 1]));
        mma(weights, by_digits, transposed(hidden[j]), 0);
#pragma unroll
        for (int e = 0; e < 2; e++) below[e] = alive[j][e] ? below[e] * SLOPE : 0.0f;
        if (inside) *(u32*)(back + sample * UNITS + unit) = pack(below[0], below[1]);
        red_add(weight2_gradient + g * UNITS + unit, weights[0], weights[1]);
        if (g + 8 < DIGITS) red_add(weight2_gradient + (g + 8) * UNITS + unit, weights[2], weights[3]);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 4; i < WARP; i *= 2) below[e] += __shfl_xor_sync(~0u, below[e], i);  // over samples
        if (g == 0) red_add(bias1_gradient + unit, below[0], below[1]);
    }
    if (threadIdx.x <= DIGITS) {
        float over_samples = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) over_samples += real ? all.gradient[i][digit] : all.loss[i];
        atomicAdd(real ? bias2_gradient + digit : losses + step, over_samples);
    }
}
