// What CUDA C++ has no words for: PTX instructions, one function each, under NVIDIA's names ("PTX ISA").
#pragma once
#include <cuda_bf16.h>

#define PTX __device__ __forceinline__
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __nv_bfloat16 bf16;

struct alignas(64) TensorMap { char opaque[128]; };  // CUtensorMap: a matrix in global memory and the box TMA copies

constexpr int WARP = 32, WARPGROUP = 128;  // threads
constexpr int SLICE = 64;                  // inner numbers of a tile: a row of it is 128 bytes, as wide as the swizzle
constexpr int PIECE = 16;                  // inner numbers that one mma or wgmma multiplies
constexpr int VECTOR = 8;                  // BF16 numbers in 16 bytes

// The 128-byte swizzle: where the 16 bytes `chunk` of a tile's row lie, in numbers. Rows below each other take turns at
// the banks, so eight rows' equal chunks lie in all 32 banks. wgmma and TMA know this order by name.
PTX int swizzled(int row, int chunk) { return row * SLICE + (chunk ^ row % 8) * VECTOR; }

PTX u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Two sums rounded to BF16, the first in the lower half.
PTX u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// ---- cp.async: 16 bytes from global to shared memory, past the registers, while the thread goes on ----

PTX void cp_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PTX void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> PTX void cp_async_wait() {  // all groups of this thread but the last PENDING have arrived
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- mma.sync: one warp, fragments in registers ----

// Four 8 x 8 matrices; lanes 8i … 8i + 7 say where the rows of matrix i lie. Lane 4g + t gets 2t and 2t + 1 of row g.
PTX void ldmatrix(u32 (&out)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared_address(row)) : "memory");
}
PTX void stmatrix(bf16* row, u32 a, u32 b, u32 c, u32 d) {  // and back
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(a),
        "r"(b), "r"(c), "r"(d) : "memory");
}
// 16 x 8 sums += 16 x 16 of A by 16 x 8 of B. Lane 4g + t holds columns 2t, 2t + 1 of row g, then of row g + 8.
PTX void mma(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- wgmma: four warps (a warpgroup), A and B in shared memory, read while the threads go on ----

// The matrix descriptor of a swizzled tile: address and stride between groups of eight rows in units of 16 bytes, and
// the swizzle's code. The next 16 inner numbers begin 32 bytes on: + 2.
PTX u64 descriptor(const bf16* tile) {
    constexpr u64 STRIDE_BYTES = 8 * SLICE * sizeof(bf16), SWIZZLE_128B = 1ull << 62, UNUSED = 1ull << 16;
    return (shared_address(tile) & 0x3FFFF) >> 4 | UNUSED | STRIDE_BYTES >> 4 << 32 | SWIZZLE_128B;
}
constexpr int NEXT_PIECE = PIECE * sizeof(bf16) >> 4;

// What threads wrote to shared memory becomes visible to wgmma and TMA (the async proxy).
PTX void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> PTX void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define FOUR(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// 64 x 256 sums (+)= 64 x 16 of A by 256 x 16 of B, onto nothing where `add` is 0. Thread 32w + 4g + t of the warpgroup
// holds in sum[4j], sum[4j + 1] row 16w + g, columns 8j + 2t and 8j + 2t + 1, in the next two row 16w + g + 8.
PTX void wgmma_64x256(float (&sum)[128], u64 a, u64 b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, 0, 0; }"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)
        : "l"(a), "l"(b), "r"(add));
}

// ---- mbarrier: counts arrivals of threads and bytes of copies; its phase, 0 or 1, flips when all have come ----

PTX void mbarrier_init(u64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
PTX void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// This thread arrives, and so many bytes have to arrive besides.
PTX void mbarrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
        : "memory");
}
PTX void mbarrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// This thread arrives at the same barrier of a block of its cluster.
PTX void mbarrier_arrive_at(u64* barrier, int block) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)), "r"(block)
        : "memory");
}
PTX void mbarrier_wait(u64* barrier, int phase) {  // until that phase is over
    u32 over;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(over) : "r"(shared_address(barrier)), "r"(phase) : "memory");
    } while (!over);
}

// ---- TMA: one thread has a whole box copied, swizzled on the way ----

// The box whose first number lies at (row, column) of the matrix; its bytes are counted by `barrier`.
PTX void tma_load(bf16* to, const TensorMap* map, int row, int column, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row),
        "r"(shared_address(barrier)) : "memory");
}
// The same into all blocks of the cluster whose bit is set, at the same place there, counted by the barrier there.
PTX void tma_multicast(bf16* to, const TensorMap* map, int row, int column, u64* barrier, int blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)), "l"(map), "r"(column), "r"(row),
        "r"(shared_address(barrier)), "h"((short)blocks) : "memory");
}
// A box of C out of shared memory; a store is a group of its own, which can be waited for.
PTX void tma_store(const TensorMap* map, int row, int column, const bf16* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3]; "
        "cp.async.bulk.commit_group;" ::"l"(map), "r"(column), "r"(row), "r"(shared_address(from)) : "memory");
}
PTX void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }  // source free
PTX void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }            // written

// ---- warp specialisation and clusters ----

// A thread's registers, in a block of a producer's warpgroup and two of consumers: 168 would be everybody's share.
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;

template <int REGISTERS> PTX void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> PTX void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
PTX void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
PTX int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
PTX void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// ---- What several rungs share ----

// All threads of the block bring rows `row` … and inner numbers `k` … of a row-major matrix into a swizzled tile.
template <int ROWS> PTX void copy_tile(bf16* tile, const bf16* matrix, int row, int k, int inner) {
    constexpr int CHUNKS = SLICE / VECTOR;  // in a row
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += blockDim.x) {
        const int down = i / CHUNKS, chunk = i % CHUNKS;
        cp_async(tile + swizzled(down, chunk), matrix + (size_t)(row + down) * inner + k + chunk * VECTOR);
    }
}

// A warpgroup begins its 64 x 256 products of one pair of tiles, as rung 4 does, and goes on.
PTX void multiply_tiles(float (&sum)[128], const bf16* a, const bf16* b, bool add) {
    const u64 left = descriptor(a), right = descriptor(b);
    wgmma_fence();
#pragma unroll
    for (int piece = 0; piece < SLICE / PIECE; piece++)
        wgmma_64x256(sum, left + piece * NEXT_PIECE, right + piece * NEXT_PIECE, add || piece > 0);
    wgmma_commit();
}

// The mbarriers of a ring of stages: full when its producer and all its bytes have come, empty when so many have left.
PTX void init_ring(u64* full, u64* empty, int stages, int leaving) {
    for (int stage = 0; threadIdx.x == 0 && stage < stages; stage++) {
        mbarrier_init(full + stage, 1);
        mbarrier_init(empty + stage, leaving);
    }
    mbarrier_init_fence();
}

// A warpgroup's 64 x 256 sums go to C as they lie in its registers, four bytes a thread at a time.
PTX void store_sums(bf16* c, int columns, const float (&sum)[128]) {
    const int warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    bf16* to = c + (size_t)(16 * warp + g) * columns + 2 * t;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        *(u32*)(to + 8 * j) = pack(sum[4 * j], sum[4 * j + 1]);
        *(u32*)(to + 8 * j + 8 * columns) = pack(sum[4 * j + 2], sum[4 * j + 3]);
    }
}

// The same sums into shared memory, in four swizzled tiles of 64 x 64, from where TMA may take them.
PTX void stage_sums(bf16 (*tiles)[64 * SLICE], const float (&sum)[128]) {
    const int warp = threadIdx.x % WARPGROUP / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < 32; j += 2) {  // two chunks of eight columns
        const float* s = sum + 4 * j;
        const int chunk = j + lane / 16;
        stmatrix(tiles[j / 8] + swizzled(16 * warp + lane % 16, chunk % 8), pack(s[0], s[1]), pack(s[2], s[3]),
            pack(s[4], s[5]), pack(s[6], s[7]));
    }
    fence_proxy_async();
}

// Which tile of C is the n-th? Down GROUP rows of tiles, then the next column: blocks that work at the same time need
// few rows of A and of B, and find them in the L2 cache.
constexpr int GROUP = 16;
struct Tile {
    int row, column;
};
PTX Tile tile_of(int n, int down, int across) {
    const int first = n / (GROUP * across) * GROUP, height = min(GROUP, down - first), within = n - first * across;
    return {first + within % height, within / height};
}
