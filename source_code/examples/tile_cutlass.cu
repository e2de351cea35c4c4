// Example: lab 10's matrix product once more, in CUTLASS 3 or newer: you name the tile, the library builds the pipeline.
//
// A warp of the block fetches tiles with the Tensor Memory Accelerator, two groups of four warps multiply, and pieces of
// both are under way at once: all of it follows from the lines below. Hopper only.
//
//     nvcc -std=c++17 -DNDEBUG -arch=sm_90a --expt-relaxed-constexpr -I CUTLASS/include -I CUTLASS/tools/util/include \
//         source_code/examples/tile_cutlass.cu -o tile_cutlass && ./tile_cutlass
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

using cute::_1, cute::_128, cute::_64, cute::Shape;
using Number = cutlass::bfloat16_t;
using RowMajor = cutlass::layout::RowMajor;
using OneTile = Shape<_128, _128, _64>;  // rows, columns, inner numbers at a time
using Cluster = Shape<_1, _1, _1>;    // blocks that share what they fetch
constexpr int ALIGNED = 8;            // numbers: 16 bytes

using Arch = cutlass::arch::Sm90;
using TensorCores = cutlass::arch::OpClassTensorOp;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    Arch, TensorCores, OneTile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    void, RowMajor, ALIGNED, Number, RowMajor, ALIGNED, cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    Arch, TensorCores, Number, RowMajor, ALIGNED, Number, RowMajor, ALIGNED, float, OneTile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

static void need(bool fine, char const *what)
{
    if (!fine) {
        std::fprintf(stderr, "error: %s\n", what);
        std::exit(1);
    }
}

int main()
{
    int const n = 4096;
    std::vector<Number> a(size_t(n) * n), b(a.size()), c(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
        a[i] = Number(float(std::rand()) / RAND_MAX - 0.5f);
        b[i] = Number(float(std::rand()) / RAND_MAX - 0.5f);
    }
    Number *on_gpu[3];
    for (auto &one : on_gpu)
        need(cudaMalloc(&one, a.size() * sizeof(Number)) == cudaSuccess, "no GPU, or too little memory");
    cudaMemcpy(on_gpu[0], a.data(), a.size() * sizeof(Number), cudaMemcpyHostToDevice);
    cudaMemcpy(on_gpu[1], b.data(), b.size() * sizeof(Number), cudaMemcpyHostToDevice);

    auto strides = [&](auto stride) { return cutlass::make_cute_packed_stride(stride, cute::make_shape(n, n, 1)); };
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {n, n, n, 1},
        {on_gpu[0], strides(typename Kernel::StrideA{}), on_gpu[1], strides(typename Kernel::StrideB{})},
        {{1.0f, 0.0f}, nullptr, strides(typename Kernel::StrideC{}), on_gpu[2], strides(typename Kernel::StrideD{})}};
    Gemm gemm;
    need(Gemm::can_implement(arguments) == cutlass::Status::kSuccess, "CUTLASS cannot multiply these sizes");
    void *workspace = nullptr;
    cudaMalloc(&workspace, Gemm::get_workspace_size(arguments) + 1);
    need(gemm.initialize(arguments, workspace) == cutlass::Status::kSuccess, "not to be initialised: is this a Hopper?");

    cudaEvent_t begins, ends;
    cudaEventCreate(&begins), cudaEventCreate(&ends);
    float best_ms = 1e9f;
    for (int repeat = 0; repeat < 20; ++repeat) {
        cudaEventRecord(begins);
        need(gemm.run() == cutlass::Status::kSuccess, "the kernel did not start");
        cudaEventRecord(ends);
        need(cudaEventSynchronize(ends) == cudaSuccess, "the kernel failed");
        float ms;
        cudaEventElapsedTime(&ms, begins, ends);
        best_ms = ms < best_ms ? ms : best_ms;
    }
    cudaMemcpy(c.data(), on_gpu[2], c.size() * sizeof(Number), cudaMemcpyDeviceToHost);
    double worst = 0;  // of some elements, against FP64, relative to the sum of magnitudes
    for (int place = 0; place < 256; ++place) {
        int const row = place * 16 + 3, column = (place * 2311) % n;
        double exact = 0, magnitudes = 0;
        for (int k = 0; k < n; ++k) {
            double const product = double(a[size_t(row) * n + k]) * double(b[size_t(k) * n + column]);
            exact += product, magnitudes += std::fabs(product);
        }
        worst = std::fmax(worst, std::fabs(double(c[size_t(row) * n + column]) - exact) / magnitudes);
    }
    std::printf("CUTLASS: %.0f TFLOP/s at best, largest error %.1e of the sum of magnitudes\n",
                2e-9 * n * n * n / best_ms, worst);
    need(worst < 0.005, "the result is wrong");
}
