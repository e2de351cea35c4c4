// What the two kernels around the first linear layer share: its sizes, and blocks that work together in a cluster.
#pragma once
#include "hopper.cuh"

constexpr int FEATURES = WINDOWS * CHANNELS2;  // 9,216 numbers of a sample into fc1
constexpr int UNITS = 128;                     // and out of it
constexpr int SAMPLES = 64;                    // rows of one wgmma

// ---- clusters: blocks on neighbouring multiprocessors, which reach each other's shared memory (DSMEM) ----

// What lies at `address` of this block, as it lies in another block of the cluster.
PTX u32 address_in(int block, u32 address) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
// Four numbers to there; when they have come, an mbarrier there counts their 16 bytes.
PTX void store_async(u32 at, float a, float b, float c, float d, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
        "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}
// Both halves of a `cluster_sync`: this thread is here, and goes on; wait until all of the cluster are. What it wrote
// to global memory, others needn't see: so no .release, which would wait for it.
PTX void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
PTX void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
