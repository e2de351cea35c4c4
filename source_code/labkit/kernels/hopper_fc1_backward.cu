// Backward through fc1: both products with the gradient `back` of its outputs, in one launch, as both read that.
//
//     upstream (N x 9,216, BF16)   = back  (N x 128) × weight (128 x 9,216)     which conv_backward goes on with
//     gradient (128 x 9,216, FP32) = backᵀ (128 x N) × pooled (N x 9,216)       of the weight
//
// Of 1,024 samples, either moves 19 MB and multiplies little: memory has to be busy all the time, reading and writing.
// A cluster of two blocks makes 144 columns of both: 64 clusters, 128 blocks. One block takes the even chunks of 64
// samples, the other one the odd chunks; in the end the sums over both blocks' samples are added, in a fixed order.
//
//     shared memory of a block, struct Backward: 216,392 bytes
//     +---------------------------------+-----------------+-----+-----------------+--------------------+------+
//     | stage[0]                 35,904 | stage[1] 35,904 | ... | stage[4] 35,904 | weight      36,864 | sent |
//     | back 16,896   | pooled   19,008 | as stage[0]     |     |                 | all units          |    8 |
//     +---------------------------------+-----------------+-----+-----------------+--------------------+------+
//
//     all eight warps     global memory → stage, by cp.async, three chunks ahead
//     each warpgroup      back × weight by wgmma: 64 samples by half of the columns → global memory
//       meanwhile         backᵀ × pooled by wgmma: 64 units by all columns, which stay in registers
//       in the end        one warpgroup's sums → the other block's shared memory (DSMEM; mbarrier `sent`), where they
//                         are added to those of the same units → global memory
//
// A chunk of `back` is the left side of both products, once as it lies there and once transposed: wgmma takes BF16
// either way. As in hopper.cuh, eight columns, 16 bytes, are a plane of their own, and eight rows of it a core matrix.
//
// Of eight columns of a product, thread t of four holds two. Which columns of the matrix these are is free: those of
// `weight` lie in shared memory in such an order that a thread holds eight neighbours, and stores 16 bytes at once.
#include "hopper_fc1.cuh"

constexpr int CLUSTER = 2, COLUMNS = 144, THREADS = 2 * WARPGROUP;
constexpr int STAGES = 5, AHEAD = STAGES - 2;  // chunks on their way; of the two before, products may be under way
constexpr int PLANE = SAMPLES + 2;             // pieces of 16 bytes from plane to plane: a warp's copies meet all banks
constexpr int PLANES = COLUMNS / 8, SHARE = PLANES / 2;  // of a block; of a warpgroup, for `upstream`
constexpr int SET = 32, SETS = 4;  // columns that four planes share, eight a thread; of a block: and 16 more columns
constexpr int TURNS = UNITS / (THREADS / 4);         // for the block to bring all units' rows of a set
constexpr int FOURS = 64 * COLUMNS / WARPGROUP / 4;  // of a thread's sums: four at a time to the other block

struct Stage {
    char back[UNITS / 8 * PLANE * CHUNK];  // [8 units][sample][16 bytes]
    char pooled[PLANES * PLANE * CHUNK];   // [8 columns][sample][16 bytes]
};

struct Backward {
    Stage stage[STAGES];
    char weight[PLANES * UNITS * CHUNK];  // [8 columns, in another order][unit][16 bytes]
    u64 sent;                             // mbarrier: the other block's sums have come
};

#define SUMS_36                                                                                         \
    SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "        \
            "%32, %33, %34, %35"
#define SUMS_72                                                                                         \
    SUMS_52 ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "        \
            "%68, %69, %70, %71"

PTX void wgmma_64x72_trans_b(float (&sum)[36], u64 a, u64 b, int add) {
    asm volatile(WGMMA("72", "%38", SUMS_36, "%36, %37", "0, 1")
        : SIXTEEN(0), SIXTEEN(16), FOUR(32) : "l"(a), "l"(b), "r"(add));
}
PTX void wgmma_64x144_trans_both(float (&sum)[72], u64 a, u64 b) {
    asm volatile(WGMMA("144", "%74", SUMS_72, "%72, %73", "1, 1")
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), FOUR(64), FOUR(68) : "l"(a), "l"(b), "r"(1));
}

// 16 bytes, of which none are read and all become zero where they are not `inside`.
PTX void cp_async_or_zero(void* to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
        "r"(inside ? CHUNK : 0) : "memory");
}

// The block brings 64 rows of a matrix into so many planes of eight columns; zeros for rows that are not there.
template <int COUNT> PTX void bring_rows(char* to, const u16* from, int columns, int rows) {
    const int row = threadIdx.x / 4, first = threadIdx.x % 4;
#pragma unroll
    for (int plane = first, k = 0; k < (COUNT + 3) / 4; plane += 4, k++)
        if (plane < COUNT)
            cp_async_or_zero(to + (plane * PLANE + row) * CHUNK, from + (size_t)row * columns + 8 * plane, row < rows);
}

// The block's columns of the weight, on their way through registers.
struct Columns {
    uint4 set[SETS][TURNS], rest;
};
PTX void fetch_columns(Columns& mine, const u16* weight) {
    const int t = threadIdx.x % 4, unit = threadIdx.x / 4;
#pragma unroll
    for (int i = 0; i < SETS; i++)
#pragma unroll
        for (int k = 0; k < TURNS; k++)
            mine.set[i][k] = *(const uint4*)(weight + (unit + THREADS / 4 * k) * FEATURES + SET * i + 8 * t);
    mine.rest = *(const uint4*)(weight + threadIdx.x / 2 * FEATURES + SET * SETS + 8 * (threadIdx.x % 2));
}
// Columns 8t + 2j and 8t + 2j + 1 of a set go to its plane j, there to columns 2t and 2t + 1. A warpgroup's planes are
// two sets', and one more of eight columns as they are.
PTX void put_columns(char* to, const Columns& mine) {
    const int t = threadIdx.x % 4, unit = threadIdx.x / 4;
#pragma unroll
    for (int i = 0; i < SETS; i++)
#pragma unroll
        for (int k = 0; k < TURNS; k++) {
            const u32 words[4] = {mine.set[i][k].x, mine.set[i][k].y, mine.set[i][k].z, mine.set[i][k].w};
            const int plane = i / 2 * SHARE + i % 2 * 4;
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(u32*)(to + ((plane + j) * UNITS + unit + THREADS / 4 * k) * CHUNK + 4 * t) = words[j];
        }
    *(uint4*)(to + ((threadIdx.x % 2 * SHARE + SHARE - 1) * UNITS + threadIdx.x / 2) * CHUNK) = mine.rest;
}

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1) fc1_backward(
    const u16* back, const u16* pooled, const u16* weight, u16* upstream, float* gradient, int samples) {
    extern __shared__ __align__(128) char shared[];
    Backward& all = *(Backward*)shared;
    const int role = uniform(threadIdx.x / WARPGROUP), thread = threadIdx.x % WARPGROUP;
    const int warp = thread / WARP, g = thread % WARP / 4, t = thread % 4;
    const int rank = cluster_rank(), begin = blockIdx.x / CLUSTER * COLUMNS;
    auto first_of = [&](int step) { return (rank + CLUSTER * step) * SAMPLES; };
    auto bring = [&](int step) {
        const int first = first_of(step);
        if (first < samples) {
            Stage& to = all.stage[step % STAGES];
            bring_rows<UNITS / 8>(to.back, back + (size_t)first * UNITS, UNITS, samples - first);
            bring_rows<PLANES>(to.pooled, pooled + (size_t)first * FEATURES + begin, FEATURES, samples - first);
        }
        cp_async_commit();
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&all.sent, 1);
        mbarrier_init_fence();
        mbarrier_expect(&all.sent, FOURS * WARPGROUP * sizeof(float4));
    }
    Columns mine;
    bring(0);
    fetch_columns(mine, weight + begin);
    for (int step = 1; step < AHEAD; step++) bring(step);
    put_columns(all.weight, mine);

    float sum[72];  // of the weight's gradient: 64 units of this warpgroup by all columns
#pragma unroll
    for (int i = 0; i < 72; i++) sum[i] = 0;
    const u64 columns =
        descriptor(shared_address(all.weight) + role * SHARE * UNITS * CHUNK, CORE_MATRIX, UNITS * CHUNK);
    for (int step = 0; first_of(step) < samples; step++) {
        Stage& my = all.stage[step % STAGES];
        const u32 left = shared_address(my.back);
        const u64 by_samples = descriptor(left, PLANE * CHUNK, CORE_MATRIX);
        const u64 by_units = descriptor(left + role * (64 / 8) * PLANE * CHUNK, CORE_MATRIX, PLANE * CHUNK);
        const u64 seen = descriptor(shared_address(my.pooled), CORE_MATRIX, PLANE * CHUNK);
        float made[36];              // of upstream: 64 samples by half of the columns
        cp_async_wait<AHEAD - 1>();  // this thread's copies of this step have arrived,
        fence_proxy_async();         // wgmma may see them,
        __syncthreads();             // and everybody's
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < UNITS / PIECE; k++)
            wgmma_64x72_trans_b(made, by_samples + k * 2 * PLANE, columns + k * PIECE, k > 0);
        wgmma_commit();
#pragma unroll
        for (int k = 0; k < SAMPLES / PIECE; k++) wgmma_64x144_trans_both(sum, by_units + k * PIECE, seen + k * PIECE);
        wgmma_commit();
        bring(step + AHEAD);  // into the place of two steps ago, which both warpgroups have left
        wgmma_wait<1>();      // upstream's product, and all of the step before
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int sample = first_of(step) + 16 * warp + g + 8 * h;
            if (sample >= samples) continue;
            u16* const row = upstream + (size_t)sample * FEATURES + begin;
            uint4* const to = (uint4*)(row + role * 2 * SET) + t;
            auto two = [&](int plane) { return pack(made[4 * plane + 2 * h], made[4 * plane + 2 * h + 1]); };
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[i * SET / 8] = make_uint4(two(4 * i), two(4 * i + 1), two(4 * i + 2), two(4 * i + 3));
            *(u32*)(row + SETS * SET + 8 * role + 2 * t) = two(SHARE - 1);
        }
    }
    wgmma_wait<0>();

    // Block 0 has the sums of units 0 to 63 in the end, block 1 the others': each gets what the other one summed.
    cluster_arrive();
    cluster_wait();  // nobody in the cluster reads stages any more
    float4* const came = (float4*)all.stage;
    if (role != rank) {
        const u32 there = address_in(1 - rank, shared_address(came + thread));
        const u32 sent = address_in(1 - rank, shared_address(&all.sent));
#pragma unroll
        for (int i = 0; i < FOURS; i++)
            store_async(there + i * WARPGROUP * (u32)sizeof(float4), sum[4 * i], sum[4 * i + 1], sum[4 * i + 2],
                sum[4 * i + 3], sent);
        return;
    }
    mbarrier_wait(&all.sent, 0);
    float* const to = gradient + (size_t)(64 * role + 16 * warp + g) * FEATURES + begin + 2 * t;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {  // eight columns; rows g and g + 8
        const float4 other = came[i * WARPGROUP + thread];
        *(float2*)(to + 8 * i) = make_float2(sum[4 * i] + other.x, sum[4 * i + 1] + other.y);
        *(float2*)(to + 8 * i + 8 * FEATURES) = make_float2(sum[4 * i + 2] + other.z, sum[4 * i + 3] + other.w);
    }
}
