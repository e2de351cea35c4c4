// Rung 7, clusters and TMA stores: two blocks below each other bring half of B's tile each, into both, so that, by
// tiles, L2 reads a third less; and results go out through shared memory in whole lines, while the next products run.
//
// An arrival in the other block says that wgmma has read a tile, which wgmma_wait has seen to. With cluster scope
// (.release.cluster, .acquire.cluster), for what threads write themselves, this rung fell from 98 to 62 % of cuBLAS
// (bench_rungs.py at commit 95c94e0, one H100, five rounds: 468 to 496 TFLOP/s of 747 to 795).
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 256;  // of C, that a block makes at a time: each consumer 64 x 256
constexpr int STAGES = 3, CLUSTER = 2, ALL_BLOCKS = (1 << CLUSTER) - 1;
constexpr int HIGH = 64, CONSUMERS = ROWS / HIGH, THREADS = (CONSUMERS + 1) * WARPGROUP;

struct Shared {
    bf16 a[STAGES][ROWS * SLICE], b[STAGES][COLUMNS * SLICE], c[CONSUMERS][COLUMNS / SLICE][HIGH * SLICE];
    u64 full[STAGES], empty[STAGES];  // mbarriers: this stage's tiles are there; the cluster's consumers have left them
};

extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
rung(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c,
    int rows, int columns, int inner) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *(Shared*)memory;
    const int role = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, rank = cluster_rank();
    const int pairs = rows / (ROWS * CLUSTER), across = columns / COLUMNS;
    auto row_of = [&](Tile tile) { return (tile.row * CLUSTER + rank) * ROWS; };
    init_ring(shared.full, shared.empty, STAGES, CONSUMERS * CLUSTER);
    cluster_sync();
    const int part = rank * (COLUMNS / CLUSTER);  // of B's tile: where this block's half begins
    int stage = 0, phase = 0;  // go on counting from tile to tile
    auto next = [&] { if (++stage == STAGES) stage = 0, phase ^= 1; };
    if (role == CONSUMERS) {  // the producer
        give_registers<PRODUCER_REGISTERS>();
        for (int n = blockIdx.x / CLUSTER; thread == 0 && n < pairs * across; n += gridDim.x / CLUSTER) {
            const Tile tile = tile_of(n, pairs, across);
            for (int k = 0; k < inner; k += SLICE, next()) {
                u64* full = &shared.full[stage];
                mbarrier_wait(&shared.empty[stage], phase ^ 1);
                mbarrier_expect(full, sizeof shared.a[0] + sizeof shared.b[0]);
                tma_load(shared.a[stage], &a, row_of(tile), k, full);
                tma_multicast(shared.b[stage] + part * SLICE, &b, tile.column * COLUMNS + part, k, full, ALL_BLOCKS);
            }
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        for (int n = blockIdx.x / CLUSTER; n < pairs * across; n += gridDim.x / CLUSTER) {
            const Tile tile = tile_of(n, pairs, across);
            float sum[COLUMNS / 2];
            u64* left = nullptr;  // the barrier of the step before
            for (int k = 0; k < inner; k += SLICE, next()) {
                mbarrier_wait(&shared.full[stage], phase);
                multiply_tiles(sum, shared.a[stage] + role * HIGH * SLICE, shared.b[stage], k > 0);
                wgmma_wait<1>();
                if (left && thread < CLUSTER) mbarrier_arrive_at(left, thread);  // in every block of the cluster
                left = &shared.empty[stage];
            }
            wgmma_wait<0>();
            if (thread < CLUSTER) mbarrier_arrive_at(left, thread);
            if (thread == 0) tma_store_wait_read();  // the last tile has left shared memory
            named_barrier(1 + role, WARPGROUP);
            stage_sums(shared.c[role], sum);
            named_barrier(1 + role, WARPGROUP);
            for (int i = 0; thread == 0 && i < COLUMNS / SLICE; i++)
                tma_store(&c, row_of(tile) + role * HIGH, tile.column * COLUMNS + i * SLICE, shared.c[role][i]);
        }
        if (thread == 0) tma_store_wait();
    }
    cluster_sync();  // no block leaves while the other still arrives at its barriers
}
