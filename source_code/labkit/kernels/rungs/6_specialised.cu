// Rung 6, warp-specialised and persistent: one thread only asks for tiles, two warpgroups only multiply, and each block
// makes one tile of C after another. The loops need no __syncthreads: the next tile's numbers come while results go.
#include "ptx.cuh"

constexpr int ROWS = 128, COLUMNS = 256;  // of C, that a block makes at a time: each consumer 64 x 256
constexpr int STAGES = 4;
constexpr int HIGH = 64, CONSUMERS = ROWS / HIGH, THREADS = (CONSUMERS + 1) * WARPGROUP;

struct Shared {
    bf16 a[STAGES][ROWS * SLICE], b[STAGES][COLUMNS * SLICE];
    u64 full[STAGES], empty[STAGES];  // mbarriers: this stage's tiles are there; both consumers have left them
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) rung(const __grid_constant__ TensorMap a,
    const __grid_constant__ TensorMap b, bf16* c, int rows, int columns, int inner) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *(Shared*)memory;
    const int role = threadIdx.x / WARPGROUP, down = rows / ROWS, across = columns / COLUMNS;
    init_ring(shared.full, shared.empty, STAGES, CONSUMERS);
    __syncthreads();
    int stage = 0, phase = 0;  // go on counting from tile to tile
    auto next = [&] { if (++stage == STAGES) stage = 0, phase ^= 1; };
    if (role == CONSUMERS) {  // the producer
        give_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x % WARPGROUP) return;
        for (int n = blockIdx.x; n < down * across; n += gridDim.x) {
            const Tile tile = tile_of(n, down, across);
            for (int k = 0; k < inner; k += SLICE, next()) {
                mbarrier_wait(&shared.empty[stage], phase ^ 1);  // the first time round, at once
                mbarrier_expect(&shared.full[stage], sizeof shared.a[0] + sizeof shared.b[0]);
                tma_load(shared.a[stage], &a, tile.row * ROWS, k, &shared.full[stage]);
                tma_load(shared.b[stage], &b, tile.column * COLUMNS, k, &shared.full[stage]);
            }
        }
    } else {
        take_registers<CONSUMER_REGISTERS>();
        for (int n = blockIdx.x; n < down * across; n += gridDim.x) {
            const Tile tile = tile_of(n, down, across);
            float sum[COLUMNS / 2];
            u64* left = nullptr;  // the barrier of the step before
            for (int k = 0; k < inner; k += SLICE, next()) {
                mbarrier_wait(&shared.full[stage], phase);
                multiply_tiles(sum, shared.a[stage] + role * HIGH * SLICE, shared.b[stage], k > 0);
                wgmma_wait<1>();  // all products but this step's are done
                if (left && threadIdx.x % WARPGROUP == 0) mbarrier_arrive(left);
                left = &shared.empty[stage];
            }
            wgmma_wait<0>();
            if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(left);
            store_sums(c + (size_t)(tile.row * ROWS + role * HIGH) * columns + tile.column * COLUMNS, columns, sum);
        }
    }
}
