"""What the rooms of stepbudget.ask read out of a report, on small reports whose answers are worked out by hand."""

import hashlib
import lzma
import math
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepbudget import intervals, kernel_names, nesting
from stepbudget.ask import copies, idle, phases, tensor_cores
from stepbudget.errors import ReportError
from stepbudget.export.slim import slim
from stepbudget.report import Report, open_report
from stepbudget.window import Window
from synthetic import changed

T0 = 7_000_000_000_000_123  # the report's clock need not start near 0
MAIN, AUTOGRAD, OTHER = 101, 102, 201  # threads; OTHER is of the second process
PROCESS, SECOND = 100, 200


def pid(process: int) -> int:
    """Nsight Systems' globalPid: the process above 24 bits for the thread."""
    return process << 24


def tid(process: int, thread: int) -> int:
    return process << 24 | thread


TABLES = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, bytes, copyKind, srcKind, "
    "dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start, end, deviceId, streamId, correlationId, globalPid, bytes",
    "NVTX_EVENTS": "start, end, eventType, globalTid, text, textId",
    "OSRT_API": "start, end, globalTid, nameId",
    "GPU_METRICS": "timestamp, typeId, metricId, value",
    "TARGET_INFO_GPU_METRICS": "typeId, metricId, metricName",
    "TARGET_INFO_GPU": "id, name",
    "META_DATA_EXPORT": "name, value",
}


class Builder:
    """Writes rows into the tables of an export; a table exists only once it has a row, as in a real export."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.db = sqlite3.connect(file)
        self.names: dict[str, int] = {}
        self.db.execute("CREATE TABLE StringIds (id, value)")

    def add(self, table: str, *values: object) -> None:
        self.db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({TABLES[table]})")
        self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.add("StringIds", self.names[text], text)
        return self.names[text]

    def range(self, start: int, end: int | None, name: str, process: int = PROCESS, thread: int = MAIN) -> None:
        last = None if end is None else T0 + end
        self.add("NVTX_EVENTS", T0 + start, last, 59, tid(process, thread), name, None)

    def call(self, start, end, correlation, process=PROCESS, thread=MAIN, name="cudaLaunchKernel_v7000") -> None:
        at = (T0 + start, T0 + end)
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", *at, tid(process, thread), correlation, self.name(name))

    def kernel(self, start, end, correlation, process=PROCESS, device=0, stream=7, name="void add(float *)") -> None:
        names = (self.name(name), self.name(name.split("(")[0]))
        at = (T0 + start, T0 + end)
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", *at, device, stream, correlation, pid(process), *names)

    def copy(self, start, end, correlation, size, kind=1, source=0, target=2, device=0) -> None:
        at = (T0 + start, T0 + end)
        row = (device, 7, correlation, pid(PROCESS), size, kind, source, target)
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", *at, *row)

    def report(self) -> Report:
        self.db.commit()
        self.db.close()
        return open_report(self.file)


@pytest.fixture
def build(tmp_path) -> Builder:
    return Builder(tmp_path / "made.sqlite")


@pytest.mark.parametrize("number", [-5, -1, 99, None, "one"])
def test_a_range_whose_name_is_registered_nowhere_has_none(build, number):
    """Also where its number could be taken for another range's name."""
    for place in range(8):
        build.range(10 * place, 10 * place + 5, f"range {place}")
    build.name("registered")
    build.add("NVTX_EVENTS", T0 + 100, T0 + 110, 59, tid(PROCESS, MAIN), None, number)
    names = build.report().ranges["name"].tolist()
    assert names == [*(f"range {place}" for place in range(8)), "(unnamed range)"]


def step(build: Builder) -> Builder:
    """One training step in nanoseconds after T0, and another process that uses the same correlation ids.

    training 0–1000 { forward 100–200, backward 300–500 }; kernels: 1 launched at 110 in forward, runs 150–250;
    2 launched at 320 by autograd's thread, runs 340–600; 3 launched at 700 outside, runs 710–720; 4 was launched before
    the capture, runs 20–30. The second process launches its number 1 at 400 and runs it 400–450.
    """
    build.range(0, 1000, "training")
    build.range(100, 200, "forward")
    build.range(300, 500, "backward")
    build.call(110, 120, 1)
    build.call(320, 330, 2, thread=AUTOGRAD)
    build.call(700, 705, 3)
    build.kernel(150, 250, 1, name="void conv(float *)")
    build.kernel(340, 600, 2, name="void conv_backward(float *)")
    build.kernel(710, 720, 3)
    build.kernel(20, 30, 4)
    return build


# Reading


def test_a_kernel_meets_the_launch_of_its_own_process(build):
    step(build)
    build.call(400, 402, 1, process=SECOND, thread=OTHER)
    build.kernel(400, 450, 1, process=SECOND)
    kernels = build.report().kernels
    assert len(kernels) == 5, "no kernel may appear twice because its correlation id does"
    by_start = kernels.set_index(kernels["start"] - T0)
    assert by_start.loc[150, "api_start"] == T0 + 110
    assert by_start.loc[400, "api_start"] == T0 + 400
    assert by_start.loc[400, "process"] == SECOND
    assert by_start.loc[340, "api_thread"] == tid(PROCESS, AUTOGRAD)
    assert pd.isna(by_start.loc[20, "api_start"]), "its launch lies before the capture"
    assert by_start.loc[150, "name"] == "void conv(float *)"


def test_api_names_lose_their_version_and_nothing_else(build):
    for number, name in enumerate(["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cuLaunchKernelEx", "my_vector"]):
        build.call(number, number + 1, number, name=name)
    assert list(build.report().api["name"]) == ["cudaLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernelEx", "my_vector"]


def test_a_ranges_text_stands_in_the_row_or_in_the_strings(build):
    build.range(0, 10, "in the row")
    build.add("NVTX_EVENTS", T0 + 20, T0 + 30, 60, tid(PROCESS, MAIN), None, build.name("in the strings"))
    build.add("NVTX_EVENTS", T0 + 40, T0 + 50, 75, tid(PROCESS, MAIN), "a domain, no range", None)
    ranges = build.report().ranges
    assert list(ranges["name"]) == ["in the row", "in the strings"]
    assert list(ranges["thread"]) == [tid(PROCESS, MAIN)] * 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("aten::conv2d, op_id = 1234", "aten::conv2d"),
        ("aten::conv2d, seq = 12, op_id = 1234", "aten::conv2d"),
        ("Conv, seq = 3", "Conv"),
        ("step, seq", "step, seq"),
    ],
)
def test_what_emit_nvtx_adds_to_a_name_is_stripped(build, text, name):
    build.range(0, 10, text)
    assert list(build.report().ranges["name"]) == [name]


def test_a_range_without_end_lasts_until_the_last_event(build):
    build.range(0, None, "training")
    build.range(100, 200, "forward")
    build.call(110, 120, 1)
    build.kernel(150, 400, 1)
    report = build.report()
    assert list(report.ranges["end"] - T0) == [400, 200]
    assert report.window() == Window(T0, T0 + 400, "training")


def test_the_window_is_the_training_range_a_named_one_or_the_whole_capture(build):
    report = step(build).report()
    assert report.window() == Window(T0, T0 + 1000, "training")
    assert report.window("backward") == Window(T0 + 300, T0 + 500, "backward")
    assert report.window("backward").duration_ms == 200e-6
    assert report.extent == Window(T0, T0 + 1000, "whole capture")
    with pytest.raises(ReportError, match=r"no NVTX range called 'warm-up'.*backward, forward, training"):
        report.window("warm-up")


def test_without_ranges_the_window_is_the_whole_capture(build):
    build.call(5, 8, 1)
    build.kernel(20, 30, 1)
    report = build.report()
    assert report.window() == Window(T0 + 5, T0 + 30, "whole capture")
    assert report.ranges.empty


def test_counters_belong_to_the_gpu_in_the_lowest_byte_of_their_type(build):
    for gpu in (0, 1):
        type_id = 0x5A00 | gpu
        build.add("TARGET_INFO_GPU_METRICS", type_id, 1, "Tensor Active [Throughput %]")
        build.add("TARGET_INFO_GPU_METRICS", type_id, 2, "SMs Active [Throughput %]")
        for number in range(3):
            build.add("GPU_METRICS", T0 + 100 * number, type_id, 1, 10 * gpu + number)
            build.add("GPU_METRICS", T0 + 100 * number, type_id, 2, 99)
    samples = build.report().counter("Tensor Active")
    assert sorted(zip(samples["device"], samples["value"], strict=True)) == [
        (0, 0), (0, 1), (0, 2), (1, 10), (1, 11), (1, 12),
    ]  # fmt: skip
    assert set(samples["counter"]) == {"Tensor Active [Throughput %]"}


def test_a_column_in_other_letters_is_the_same_column(build):
    build.add("TARGET_INFO_GPU_METRICS", 0x5A00, 1, "SMs Active [Throughput %]")
    build.add("GPU_METRICS", T0, 0x5A00, 1, 7)
    build.db.execute("ALTER TABLE TARGET_INFO_GPU_METRICS RENAME COLUMN metricName TO METRICNAME")
    report = build.report()
    assert report.sampled == ["SMs Active [Throughput %]"]
    assert list(report.counter("SMs Active")["value"]) == [7]


def test_gpu_and_version_are_read_and_may_be_absent(build, tmp_path):
    other = Builder(tmp_path / "other.sqlite")
    build.add("TARGET_INFO_GPU", 1, "NVIDIA second")
    build.add("TARGET_INFO_GPU", 0, "NVIDIA first")
    build.add("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2025.3.2.0")
    report, bare = build.report(), other.report()
    assert (report.gpu, report.nsys_version) == ("NVIDIA first", "2025.3.2.0")
    assert (bare.gpu, bare.nsys_version) == (None, None)


# Phases


def test_kernels_belong_to_the_phase_of_their_launch_in_any_thread(build):
    table = phases.phases(step(build).report()).set_index("phase")
    assert list(table.index) == ["forward", "backward", phases.OUTSIDE]
    assert list(table["kernels"]) == [1, 1, 1], "the backward kernel ends after its range and is launched elsewhere"
    assert list(table["gpu_ms"]) == pytest.approx([100e-6, 260e-6, 10e-6])
    assert list(table["cpu_ms"][:2]) == pytest.approx([100e-6, 200e-6])
    assert list(table["count"]) == [1, 1, 0]


def test_by_thread_the_backward_pass_is_missed(build):
    table = phases.phases(step(build).report(), by="thread").set_index("phase")
    assert list(table["kernels"]) == [1, 0, 2]


def test_a_second_process_gives_no_kernels_to_the_phases_of_the_first(build):
    step(build)
    build.call(400, 402, 1, process=SECOND, thread=OTHER)
    build.kernel(400, 450, 1, process=SECOND)
    table = phases.phases(build.report()).set_index("phase")
    assert table.loc["backward", "kernels"] == 1
    assert table.loc["backward", "gpu_ms"] == pytest.approx(260e-6)


def test_a_launch_inside_two_ranges_belongs_to_the_inner_one(build):
    build.range(0, 1000, "training")
    build.range(100, 500, "outer")
    build.range(100, 300, "inner")
    for number, start in enumerate((100, 299, 300, 499, 500), start=1):
        build.call(start, start + 1, number)
        build.kernel(start + 10, start + 20, number)
    table = phases.phases(build.report()).set_index("phase")
    assert table["kernels"].to_dict() == {"outer": 2, "inner": 2, phases.OUTSIDE: 1}


def test_phases_within_another_window_leave_out_what_lies_outside(build):
    table = phases.phases(step(build).report(), Window(T0 + 100, T0 + 400, "cut")).set_index("phase")
    assert table["kernels"].to_dict() == {"forward": 1, "backward": 1}
    assert table.loc["backward", "cpu_ms"] == pytest.approx(100e-6), "cut at the end of the window"


# Idle time


def test_idle_time_is_what_no_kernel_copy_or_fill_covers(build):
    build.range(0, 1000, "training")
    build.kernel(100, 200, 1, stream=7)
    build.kernel(150, 300, 2, stream=8)  # overlaps on another stream
    build.copy(250, 320, 3, 10)
    build.add("CUPTI_ACTIVITY_KIND_MEMSET", T0 + 500, T0 + 510, 0, 7, 4, pid(PROCESS), 4)
    build.kernel(950, 1200, 5)  # ends after the window
    found = idle.idle(build.report())
    assert found.busy_ms == pytest.approx((220 + 10 + 50) / 1e6)
    assert found.idle_ms == pytest.approx(720 / 1e6)
    assert found.gaps == 3
    assert found.idle_share == pytest.approx(0.72)


def test_the_work_of_another_gpu_does_not_make_this_one_busy(build):
    build.range(0, 100, "training")
    build.kernel(0, 10, 1, device=1)
    build.kernel(50, 100, 2, device=2)
    report = build.report()
    assert idle.idle(report).busy_ms == pytest.approx(10e-6)


def test_how_busy_a_gpu_was_is_not_known_without_a_row_of_it(build):
    build.range(0, 1000, "training")
    report = build.report()
    assert math.isnan(idle.idle(report).idle_share)


# Copies


def test_copies_by_direction_and_kind_of_host_memory(build):
    build.range(0, 100_000, "training")
    rows = [(1, 0, 2, 3_000_000, 300), (1, 0, 2, 1_000_000, 100), (1, 1, 2, 4_000_000, 80), (2, 2, 1, 8, 2)]
    for number, (kind, source, target, size, ns) in enumerate(rows, start=1):
        start = 1000 * number
        build.call(start, start + 500, number, name="cudaMemcpyAsync_v3020")
        build.copy(start + 50, start + 50 + ns, number, size, kind, source, target)
    table = copies.copies(build.report()).set_index(["direction", "host_memory"])
    assert set(table.index) == {
        ("host to device", "pageable"), ("host to device", "pinned"), ("device to host", "pinned"),
    }  # fmt: skip
    pageable = table.loc[("host to device", "pageable")]
    assert (pageable["count"], pageable["mb"]) == (2, 4.0)
    assert pageable["gpu_ms"] == pytest.approx(400e-6)
    assert pageable["api_ms"] == pytest.approx(1000e-6)
    assert pageable["longest_gpu_us"] == pytest.approx(0.3)
    assert pageable["gb_per_s"] == pytest.approx(4.0 / 400e-6)


# Tensor Cores

XMMA = "sm80_xmma_fprop_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x64x32_stage5_warpsize2x2x1_g1_{}_execute_kernel"
SM90 = "sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_warpgroupsize1x1x1_g1"
FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
CUTLASS = "void cutlass::Kernel2<{}>(T1::Params)"
CONV = "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::conv::kernel::ImplicitGemmConvolution<{}>>(T1::Params)"
FMHA = "fmha_cutlassF_{}_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<{}>::Params)"
DROPOUT = "void at::native::<unnamed>::fused_dropout_kernel_vec<float, float, unsigned int, (int)1, (int)4, bool>"
KERNEL_NAMES = [  # more in test_tensor_cores.py
    ("yes", "turing_int8_i8816cudnn_int8_256x128_ldg16_relu_singleBuffer_medium_nt_v1"),
    ("yes", "nvjet_sm90_hsh_64x24_64x16_2x4_h_bz_bias_TNT"),
    ("yes", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"),
    ("yes", FMHA.format("bf16", "cutlass::bfloat16_t, cutlass::arch::Sm80")),
    ("no", "ampere_sgemm_128x64_tn"),
    ("no", "volta_sgemm_32x128_nn"),
    ("no", "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, float, float, float, (bool)0>"),
    ("unknown", "triton_tem_fused_addmm_relu_0"),
    ("unknown", FMHA.format("f32", "float, cutlass::arch::Sm80")),
    ("yes", "volta_h884gemm_128x128_ldg8_nn"),
    ("yes", "volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_tn"),
    ("yes", "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1"),
    ("yes", "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn"),
    ("yes", "turing_h1688gemm_256x64_ldg8_tn"),
    ("yes", "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn"),
    ("yes", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt"),
    ("yes", CUTLASS.format("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4")),
    ("yes", CUTLASS.format("cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2")),
    ("yes", CUTLASS.format("cutlass_75_wmma_tensorop_s161616gemm_f16_32x32_128x1_nt_align1")),
    ("yes", XMMA.format("tf32f32_tf32f32_f32", "tensor16x8x8")),
    ("yes", XMMA.format("f16f16_f16f32_f32", "tensor16x8x16")),
    ("yes", f"{SM90}_execute_segment_k_off_kernel__5x_cudnn"),
    ("yes", "void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64>"),
    ("yes", "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"),
    ("yes", "nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNN"),
    ("yes", "void cutlass::device_kernel<cutlass3x_sm100_tensorop_s128x128x16gemm_f16_f16_f32_void_f16_128x128x64>"),
    ("yes", "kernel_cutlass_gemm_tcgen05_mma_f16"),
    ("yes", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128>>(Flash_fwd_params)"),
    ("yes", "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<(int)64>>(Flash_bwd_params)"),
    ("yes", FMHA.format("f16", "cutlass::half_t, cutlass::arch::Sm80")),
    ("yes", CONV.format("cutlass__5x_cudnn::gemm::warp::MmaTensorOp<cutlass__5x_cudnn::gemm::GemmShape<(int)32>>")),
    ("no", CONV.format("cutlass__5x_cudnn::gemm::warp::MmaSimt<cutlass__5x_cudnn::gemm::GemmShape<(int)32>>")),
    ("no", f"{FFMA}_execute_kernel__5x_cublas"),
    ("no", XMMA.format("f32f32_f32f32_f32", "ffma_aligna4_alignc4")),
    ("no", CUTLASS.format("cutlass_80_simt_sgemm_128x64_8x5_tn_align1")),
    ("no", "void sgemm_largek_lds64<(bool)1, (bool)0, (int)5, (int)5, (int)4, (int)4, (int)4, (int)34>(float *)"),
    ("no", "volta_hgemm_64x64_nn"),
    ("no", "volta_scudnn_128x64_relu_interior_nn_v1"),
    ("no", "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::WinogradDataParams<float>)"),
    ("no", "void wgrad_alg0_engine<float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (bool)0, (int)512>"),
    ("no", "void gemv2T_kernel_val<int, int, float, float, float, float, (int)128, (int)16, (int)4, (int)4, (bool)0>"),
    ("no", "void gemvNSP_kernel<float, float, float, float, (int)1, (int)32, (int)4, (int)1024>"),
    ("no", "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, (bool)0, (bool)1>"),
    ("no", "void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float, (bool)1, (bool)0>"),
    ("no", DROPOUT),
    ("no", "void at::native::<unnamed>::max_pool_backward_nchw<c10::Half, float, int>(const T1 *, const long *)"),
    ("no", "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>>"),
    (
        "no",
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
    ),
    ("no", "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::reduction::kernel::ReduceSplitK<(int)4>>(T1::Params)"),
    ("unknown", "void conv2d_c1_k1_nhwc_kernel<__half, (int)3, (int)3>(const T1 *, T1 *)"),
    (
        "unknown",
        "void implicit_convolve_sgemm<__half, __half, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (int)1>",
    ),
]


@pytest.mark.parametrize(("verdict", "name"), KERNEL_NAMES, ids=[name[:48] for _, name in KERNEL_NAMES])
def test_what_a_kernels_name_says_of_tensor_cores(verdict, name):
    assert kernel_names.by_name(name) == verdict


def test_kernels_by_name_with_their_verdicts(build):
    build.range(0, 1000, "training")
    for number, (name, start, ns) in enumerate(
        [
            ("nvjet_a", 0, 100),
            ("nvjet_a", 100, 300),
            ("at::add", 500, 50),
            ("triton_b", 600, 50),
            ("at::add", 2000, 900),
        ]
    ):
        build.kernel(start, start + ns, number, name=name)
    report = build.report()
    table = tensor_cores.kernels(report)
    assert list(table["kernel"]) == ["nvjet_a", "at::add", "triton_b"], "the last one starts after the window"
    assert list(table["count"]) == [2, 1, 1]
    assert list(table["mean_us"]) == pytest.approx([0.2, 0.05, 0.05])
    assert list(table["share"]) == pytest.approx([0.8, 0.1, 0.1])
    assert list(table["gpu_ms"]) == pytest.approx([4e-4, 5e-5, 5e-5])
    assert list(table["tensor_cores"]) == ["yes", "no", "unknown"]


def test_a_kernel_of_an_unheard_of_name_is_unknown():
    assert kernel_names.by_name("void deep_gemm::fp8_gemm_kernel<128>(float*)") == "unknown"
    assert kernel_names.by_name("void my_own_thing(float*)") == "unknown"


def test_with_several_gpus_sampled_only_the_one_that_worked_counts_or_none(build):
    build.range(0, 1000, "training")
    build.kernel(0, 100, 1, name="nvjet_a")
    for gpu, value in ((256, 80), (257, 20)):
        build.add("TARGET_INFO_GPU_METRICS", gpu, 1, "Tensor Active [Throughput %]")
        build.add("GPU_METRICS", T0 + 50, gpu, 1, value)
    assert tensor_cores.tensor_active(build.report()) is None, "the report does not say which GPU it was"


def test_a_blocking_copy_holds_the_thread_in_the_synchronisation_behind_it(build):
    build.range(0, 1000, "training")
    build.copy(100, 200, 1, 4)
    build.call(90, 95, 1, name="cudaMemcpyAsync_v3020")
    build.call(95, 205, 2, name="cudaStreamSynchronize_v3020")
    build.copy(300, 400, 3, 4)
    build.call(290, 295, 3, name="cudaMemcpyAsync_v3020")
    build.call(295, 299, 4, name="cudaLaunchKernel_v7000")
    build.call(299, 410, 5, name="cudaStreamSynchronize_v3020")
    assert list(copies.labelled(build.report())["api_ns"]) == [115, 5], "only what follows at once belongs to the copy"


def test_tensor_active_is_averaged_within_the_window_and_none_where_it_was_not_sampled(build, tmp_path):
    other = Builder(tmp_path / "other.sqlite")
    other.range(0, 10, "training")
    build.range(100, 300, "training")
    build.add("TARGET_INFO_GPU_METRICS", 256, 1, "Tensor Active [Throughput %]")
    for time, value in ((50, 90), (100, 10), (200, 30), (300, 90)):
        build.add("GPU_METRICS", T0 + time, 256, 1, value)
    assert tensor_cores.tensor_active(build.report()) == tensor_cores.TensorActive(20.0, 30.0, 2)
    assert tensor_cores.tensor_active(other.report()) is None


# Reports that lack something


def everything(report: Report) -> list[object]:
    """Each question that the labs ask of a report."""
    return [
        phases.phases(report), phases.phases(report, by="thread"), idle.idle(report),
        copies.copies(report), tensor_cores.kernels(report),
        tensor_cores.tensor_active(report), report.api, report.memsets, report.gpu,
    ]  # fmt: skip


def whole(build: Builder) -> Builder:
    step(build)
    build.copy(40, 50, 9, 100)
    build.add("CUPTI_ACTIVITY_KIND_MEMSET", T0 + 60, T0 + 61, 0, 7, 10, pid(PROCESS), 4)
    build.add("OSRT_API", T0 + 1, T0 + 2, tid(PROCESS, MAIN), build.name("poll"))
    build.add("TARGET_INFO_GPU_METRICS", 256, 1, "Tensor Active [Throughput %]")
    build.add("GPU_METRICS", T0 + 5, 256, 1, 50)
    build.add("TARGET_INFO_GPU", 0, "NVIDIA GPU")
    return build


@pytest.mark.parametrize("table", ["none", *(name for name in TABLES if name not in ("StringIds", "META_DATA_EXPORT"))])
def test_a_report_without_one_of_its_tables_still_answers(build, table):
    whole(build)
    build.db.execute(f"DROP TABLE IF EXISTS {table}")
    everything(build.report())


def test_a_report_whose_launches_all_lie_outside_the_capture_still_answers(build):
    whole(build)
    build.db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    report = build.report()
    everything(report)
    assert idle.idle(report).busy_ms > 0


def test_without_api_calls_kernels_and_copies_are_there_and_no_phase_claims_them(build):
    whole(build)
    build.db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    report = build.report()
    assert len(report.kernels) == 4 and report.kernels["api_start"].isna().all()
    assert list(phases.phases(report)["kernels"]) == [0, 0]
    assert list(copies.copies(report)["count"]) == [1]


def test_a_report_with_the_cpus_side_only_answers(build):
    build.range(0, 1000, "training")
    build.range(100, 200, "forward")
    report = build.report()
    everything(report)
    table = phases.phases(report)
    assert table[["phase", "kernels"]].to_numpy().tolist() == [["forward", 0]]


def test_an_empty_report_says_so_in_one_sentence(build):
    report = build.report()
    assert report.kernels.empty and report.api.empty
    for question in (phases.phases, idle.idle, copies.copies, tensor_cores.kernels):
        with pytest.raises(ReportError, match="holds no events"):
            question(report)


def test_a_report_whose_columns_have_other_names_is_an_error_in_one_sentence(tmp_path):
    tables = ("StringIds (id, value)", "CUPTI_ACTIVITY_KIND_KERNEL (begin, finish)")
    file = changed(tmp_path / "other.sqlite", *(f"CREATE TABLE {table}" for table in tables))
    with pytest.raises(ReportError, match=r"other\.sqlite does not answer"):
        _ = open_report(file).kernels


# Files that are no report


def damaged(folder: Path, kind: str) -> Path:
    """A file of the given kind of damage."""
    good = Builder(folder / "good.sqlite")
    for number in range(2000):
        good.kernel(number, number + 1, number, name=f"kernel number {number}")
    good.report().close()
    content = good.file.read_bytes()
    packed = lzma.compress(content)
    made = {
        "text.sqlite": b"this is no report, but a text of some length",
        "empty.sqlite": b"",
        "short.sqlite": content[:60],
        "half.sqlite": content[: len(content) // 2],
        "zeroed.sqlite": content[:100] + bytes(len(content) - 100),
        "empty.sqlite.xz": b"",
        "cut.sqlite.xz": packed[: len(packed) // 2],
        "magic.sqlite.xz": packed[:6],
        "flipped.sqlite.xz": packed[:200] + bytes([packed[200] ^ 255]) + packed[201:],
        "text.sqlite.xz": lzma.compress(b"well packed, but no report"),
    }
    file = folder / kind
    if kind == "foreign.sqlite":
        return changed(file, "CREATE TABLE people (name)")
    file.write_bytes(made[kind])
    return file


@pytest.mark.parametrize(
    "kind",
    [
        "text.sqlite", "empty.sqlite", "short.sqlite", "half.sqlite", "zeroed.sqlite", "foreign.sqlite",
        "empty.sqlite.xz", "cut.sqlite.xz", "magic.sqlite.xz", "flipped.sqlite.xz", "text.sqlite.xz",
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_one_sentence_that_names_it(tmp_path, kind):
    file = damaged(tmp_path, kind)
    before = file.read_bytes()
    with pytest.raises(ReportError, match=kind.replace(".", r"\.")) as said:
        everything(open_report(file))
    assert "\n" not in str(said.value)
    assert file.read_bytes() == before


def test_reading_changes_nothing_and_cannot(build):
    report = whole(build).report()
    before = hashlib.sha256(build.file.read_bytes()).hexdigest()
    everything(report)
    with pytest.raises(ReportError):
        report.sql("DELETE FROM StringIds RETURNING id")
    with pytest.raises(ReportError):
        report.sql("CREATE TABLE more AS SELECT 1 RETURNING *")
    report.close()
    assert hashlib.sha256(build.file.read_bytes()).hexdigest() == before
    assert [path.name for path in build.file.parent.iterdir()] == ["made.sqlite"], "no journal beside it"


def test_a_name_that_sqlite_would_take_for_parameters_is_opened(tmp_path):
    build = Builder(tmp_path / "50% of #1?mode=rw.sqlite")
    build.range(0, 10, "training")
    assert build.report().window().name == "training"


def test_a_packed_report_answers_as_the_plain_one_and_cleans_up(build, tmp_path):
    plain = whole(build).report()
    packed = tmp_path / "made.sqlite.xz"
    packed.write_bytes(lzma.compress(build.file.read_bytes()))
    with open_report(packed) as report:
        pd.testing.assert_frame_equal(phases.phases(report), phases.phases(plain))
        assert not report.sqlite_path.exists(), "open, without a name: who is killed leaves nothing behind"
        report.copy_to(tmp_path / "copy.sqlite")
    with open_report(tmp_path / "copy.sqlite") as copy:
        pd.testing.assert_frame_equal(phases.phases(copy), phases.phases(plain))


def test_a_slim_copy_answers_as_the_whole_report_and_forgets_the_rest(build, tmp_path):
    whole(build)
    build.name("never used by a kept row")
    build.db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)")
    build.db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('SECRET', 'hunter2')")
    build.add("TARGET_INFO_GPU_METRICS", 256, 2, "PCIe Throughput [Throughput %]")
    build.add("GPU_METRICS", T0 + 5, 256, 2, 50)
    full = build.report()
    slim(build.file, tmp_path / "slim.sqlite.xz")
    thin = open_report(tmp_path / "slim.sqlite.xz")
    for one, other in zip(everything(full), everything(thin), strict=True):
        if isinstance(one, pd.DataFrame):
            pd.testing.assert_frame_equal(one, other)
        else:
            assert one == other
    assert not thin.has("TARGET_INFO_SYSTEM_ENV")
    assert "never used by a kept row" not in set(thin.sql("SELECT value FROM StringIds")["value"])
    assert thin.counter("PCIe").empty
    assert b"hunter2" not in lzma.decompress((tmp_path / "slim.sqlite.xz").read_bytes())


# Arithmetic on intervals, against a list of single nanoseconds

SPAN = 40
PAIRS = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted), max_size=12)
BOUNDS = st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(sorted)


def frame(pairs) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=["start", "end"], dtype="int64")


def moments(spans) -> set[int]:
    """Each nanosecond that the spans hold."""
    return {moment for start, end in spans for moment in range(start, end)}


def is_sound(spans: np.ndarray) -> bool:
    """Sorted, not empty, not overlapping."""
    return bool((spans[:, 1] > spans[:, 0]).all() and (spans[1:, 0] >= spans[:-1, 1]).all())


@given(st.lists(st.integers(-5, 5)))
def test_distinct_times_are_in_order_each_once(times):
    assert intervals.distinct(np.array(times, dtype=np.int64)).tolist() == sorted(set(times))


@given(PAIRS, PAIRS)
def test_union_holds_each_moment_of_either_once(a, b):
    found = intervals.union(frame(a), frame(b))
    assert is_sound(found)
    assert (found[1:, 0] > found[:-1, 1]).all(), "what touches is one interval"
    assert moments(found) == moments(a) | moments(b)
    assert intervals.total(found) == len(moments(a) | moments(b))


@given(PAIRS, BOUNDS)
def test_complement_holds_the_other_moments(a, bounds):
    found = intervals.complement(intervals.union(frame(a)), *bounds)
    assert is_sound(found)
    assert moments(found) == set(range(*bounds)) - moments(a)


@given(PAIRS, BOUNDS)
def test_clip_holds_the_moments_within(a, bounds):
    found = intervals.clip(intervals.union(frame(a)), *bounds)
    assert is_sound(found)
    assert moments(found) == set(range(*bounds)) & moments(a)


@given(PAIRS, PAIRS)
def test_intersect_holds_the_moments_of_both(a, b):
    found = intervals.intersect(intervals.union(frame(a)), intervals.union(frame(b)))
    assert is_sound(found)
    assert moments(found) == moments(a) & moments(b)
    assert intervals.total(found) == len(moments(a) & moments(b))


@st.composite
def nested(draw, low=0, high=SPAN, depth=3) -> list[tuple[int, int, str]]:
    """Ranges of one thread, as push and pop make them: each lies inside another or beside it; outer ones first."""
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6, unique=True)))
    found = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        found.append((start, end, f"{draw(st.sampled_from('abc'))}{depth}"))
        if depth:
            found += draw(nested(start, end, depth - 1))
    return found


def innermost_at(rows, moment: int) -> str:
    """The shortest range around a moment; of equally long ones, the one that comes last."""
    around = [(start - end, index, name) for index, (start, end, name) in enumerate(rows) if start <= moment < end]
    return max(around)[2] if around else phases.OUTSIDE


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=25))
def test_ranges_that_overlap_as_they_like_are_looked_up_as_one_walk_over_time_finds_them(edges):
    """All at once, as the full answer does, and one by one, as the plain sums do."""
    rows = sorted(((min(pair), max(pair)) for pair in edges), key=lambda row: (row[0], -row[1]))
    starts, ends = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    times = np.arange(-1, SPAN + 2)
    numbered = [(*row, number) for number, row in enumerate(rows) if row[1] > row[0]]
    walked = [-1 if found is None else found[2] for found in nesting.innermost(numbered, times.tolist())]
    assert intervals.place_at(starts, ends, times).tolist() == walked
    later = np.maximum(starts, ends - 1)
    for until in (starts, later):
        held = [max((j for j in range(i) if ends[j] > until[i]), default=-1) for i in range(len(rows))]
        assert intervals.parents(starts, ends, until).tolist() == held
    both = intervals.nested_at(starts, ends, times)
    assert [one.tolist() for one in both] == [walked, intervals.parents(starts, ends, starts).tolist()]


@settings(max_examples=200)
@given(nested())
def test_a_moments_phase_is_the_innermost_range_around_it(rows):
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    ranges = pd.DataFrame(ordered, columns=["start", "end", "name"])
    found = phases.phase_at(ranges, np.arange(-1, SPAN + 2))
    assert list(found) == [innermost_at(ordered, moment) for moment in range(-1, SPAN + 2)]
