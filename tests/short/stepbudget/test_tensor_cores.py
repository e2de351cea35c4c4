"""Which kernels use Tensor Cores, on what evidence, and which operations could: by hand, brute force, plain SQL."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.paths import ROOT
from stepbudget import intervals, kernel_names
from stepbudget.ask import ops, tensor_cores
from stepbudget.export.files import sqlite_file
from stepbudget.report import open_report
from stepbudget.window import Window
from synthetic import AUTOGRAD, MAIN, SyntheticReport

RECORDED = ROOT / "reports" / "recorded" / "h200" / "profiles"
FMHA = "fmha_cutlass{}_aligned_64x64_k64_{}(PyTorchMemEffAttention::AttentionBackwardKernel<T1>::Params)"
FA3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::{}<flash::CollectiveMainloopFwdSm90<(int)2>>>>"

# (verdict, does it multiply matrices?, name). Sources: H200 = the recorded reports; TensorRT, cuBLAS, cuDNN, FA (the
# FlashAttention sources), PT (PyTorch's sources), VLLM = names in public profiles and sources of these.
NAMES = [
    # H200
    ("no", True, "sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize64x32x8_stage3_warpsize2x2x1_ffma_aligna8_alignc8"),
    ("yes", True, "nvjet_sm90_hsh_64x24_64x16_2x4_h_bz_splitK_bias_TNT"),
    ("no", False, "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __half, float, __half, (bool)0>"),
    ("no", False, "void scal_kernel<float, float, (int)1, (bool)1>(cublasTransposeParams<T2>, const T1 *, T1 *)"),
    ("no", False, "void fft2d_r2c_32x32<float, (bool)0, (unsigned int)0, (bool)0>(float2 *, const T1 *, int, int)"),
    # cuBLAS
    ("yes", True, "ampere_h16816gemm_128x64_ldg8_stages_64x3_tn"),
    ("yes", True, "ampere_int8_i16832gemm_int8_256x128_ldg16_relu_mods_stages_64x3_nt"),
    ("yes", True, "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16>(T1::Params)"),
    ("yes", True, "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_tn_align1>(T1::Params)"),
    ("yes", True, "void cutlass::Kernel2<cutlass_70_tensorop_f16_s884gemm_f16_128x64_nn_align8>(T1::Params)"),
    ("yes", True, "sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16_stage3_warpsize2x2x1_tensor8x8x4_execute"),
    ("yes", True, "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_cgasize1x2x1_stage4_gmmastage2"),
    ("yes", True, "nvjet_sm103_qqtst_128x256_128x6_2x2f_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_NTT"),
    ("yes", True, "nvjet_sm120_tst_mma_64x32x64_8_16x32x64_tmaAB_alignCD4_bz_TNNN"),
    ("yes", True, "nvjet_sss_tf32_128x256_32x4_2x1_v_bz_coopA_TNT"),
    ("no", True, "ampere_sgemm_32x32_sliced1x4_tn"),
    ("no", True, "void gemmSN_TN_kernel<float, (int)128, (int)16, (int)2, (int)4, (int)4, (int)4, (bool)1>"),
    ("no", False, "void gemvx::kernel<int, int, __half, __half, __half, float, (bool)0, (bool)1, (bool)1, (int)7>"),
    ("unknown", True, "void gemmSN_NN_kernel<__half, (int)128, (int)16, (int)2, (int)4, (int)4, (int)4, (bool)1>"),
    # cuDNN and TensorRT
    ("yes", True, "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32_stage6_g1_tensor16x8x32_t1"),
    ("yes", True, "sm70_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_stage1_warpsize2x2x1_g1_tensor8x8x4"),
    ("yes", True, "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128_4x1x1_kernel0_0"),
    ("yes", True, "cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_7_128x128x64_4x1x1_cga1x1x1_kernel0_0"),
    ("unknown", True, "cudnn_generated_fort_native_sm120_matMul_pointwise_pointwise_knob_20_32x32x128_0_0"),
    ("unknown", True, "sm80_xmma_fprop_implicit_gemm_of_a_kind_not_yet_seen"),
    ("yes", True, "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x5_nhwc_align4>"),
    ("yes", True, "turing_fp16_s1688cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1"),
    ("yes", True, "turing_int8_i8816cudnn_int8_256x128_ldg16_relu_singleBuffer_medium_nt_v1"),
    ("no", True, "void cudnn::detail::dgrad_engine<float, (int)512, (int)6, (int)5, (int)3, (int)3, (int)3, (bool)0>"),
    ("no", True, "void implicit_convolve_sgemm<float, float, (int)1024, (int)5, (int)5, (int)3, (int)3, (int)3>"),
    ("no", True, "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"),
    ("no", False, "void cudnn::bn_fw_tr_1C11_singleread_specialized<__half, (int)512, (int)1, (int)2, (int)20>"),
    ("no", False, "void cudnn::ops::convertTensor_kernel<float, __half, float, (cudnnKernelDataType_t)2>(float)"),
    ("no", False, "void elemWiseRNNcell<__nv_bfloat16, __nv_bfloat16, float, (cudnnRNNMode_t)2>(int, int)"),
    # FA
    ("yes", True, "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64>>(Flash_fwd_params)"),
    ("no", False, "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)64>>(Flash_fwd_params)"),
    ("no", False, "void flash_bwd_dot_do_o_kernel<(bool)1, Flash_bwd_kernel_traits<(int)128>>(Flash_bwd_params)"),
    ("no", False, "void flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<(int)128>>(Flash_bwd_params, int)"),
    ("yes", True, FA3.format("FlashAttnFwdSm90")),
    ("yes", True, FA3.format("FlashAttnBwdSm90")),
    ("no", False, FA3.format("FlashAttnFwdCombine")),
    ("no", False, FA3.format("FlashAttnBwdPreprocess")),
    # PT
    ("yes", True, FMHA.format("B_f16", "sm80")),
    ("yes", True, FMHA.format("B_bf16", "sm80")),
    ("yes", True, FMHA.format("F_f16", "sm70")),
    ("no", True, FMHA.format("F_f16", "sm50")),
    ("no", True, FMHA.format("B_f32", "sm50")),
    ("unknown", True, FMHA.format("B_f32", "sm80")),
    ("yes", True, "void at::native::tinygemm_m16n8k16_chunk_kernel<ALayout_RM<(at::native::KReductionType)0>>"),
    ("no", True, "void at::native::<unnamed>::conv_depthwise2d_forward_kernel<(int)3, c10::Half, int>"),
    ("no", False, "void at::native::<unnamed>::elementwise_kernel<(int)128, (int)4, at::native::gpu_kernel_impl<T1>>"),
    (
        "yes",
        True,
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::"
        "GemmUniversal<cute::tuple<int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
        "MainloopSm90TmaGmmaWarpSpecializedFP8<(int)5>>>>>",
    ),
    # VLLM and others: names that must not be taken for families of harmless kernels
    ("unknown", True, "void my_extension::fused_gemm_bias_relu_kernel<__half>(T1 *, const T1 *)"),
    ("unknown", True, "void tensorrt_llm::batchedGemmKernel<__nv_bfloat16>(T1 *)"),
    ("unknown", True, "void deep_gemm::sm90_fp8_grouped_impl_gemm<(unsigned int)128>(float *)"),
    ("unknown", False, "void marlin::Marlin<__nv_bfloat16, (long)1125899906843648, (int)256>(const int4 *)"),
    ("no", False, "triton_poi_fused_convolution_relu_0"),
    ("unknown", True, "triton_tem_fused_mm_relu_0"),
    ("unknown", False, "(unnamed kernel)"),
    ("no", False, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"),
    ("no", False, "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<T1>>"),
]


@pytest.mark.parametrize(("verdict", "product", "name"), NAMES, ids=[name[:60] for *_, name in NAMES])
def test_what_names_prove(verdict, product, name):
    rule = kernel_names.rule_of(name)
    assert rule.verdict == kernel_names.by_name(name) == verdict
    assert rule.why, "each answer has a reason in words"
    assert kernel_names.is_product(name) == product


PIECES = [
    "sm80_xmma_",
    "gemm",
    "ffma_",
    "tensor16x8x8",
    "at::native::",
    "void ",
    "cutlass",
    "flash_fwd",
    "<",
    ">",
    "(",
    "_",
]
SIZE_PIECES = ["[", "]", ", ", "8", "1", "-3", "null", "{}", "2.5", '"a"', "[[4, 1, 3, 3], [8, 1, 3, 3]]"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4)).map("".join))
def test_any_name_has_an_answer(name):
    assert kernel_names.by_name(name) in ("yes", "no", "unknown")
    assert kernel_names.is_product(name) in (True, False)
    assert ops.is_eligible(name) in (True, False)


@settings(max_examples=300)
@given(
    st.sampled_from(["conv2d", "convolution_backward", "addmm", "mm", "linear", "scaled_dot_product_attention", "bmm"]),
    st.lists(st.sampled_from(SIZE_PIECES)).map("".join) | st.just("[" * 100_000 + "]" * 100_000),
    st.sampled_from(["volta_hgemm_64x64_nn", "ampere_sgemm_32x32_nn", "unheard_of"]),
)
def test_any_sizes_have_a_reason(name, sizes, kernel):
    gpu = ops._Gpu((9, 0), True, "NVIDIA H200", [])
    reason, evidence = ops._reason(f"aten::{name}", f"[{sizes}]", True, [kernel], 0, gpu)
    assert reason and isinstance(evidence, str)


# The counter


def quiet(tmp_path, capability: tuple[int, int] | None = (9, 0)) -> SyntheticReport:
    """A report of 40 samples of the two counters, 100 µs apart, all 0; ``set_counter`` changes some."""
    report = SyntheticReport(tmp_path / "made.sqlite").gpu("NVIDIA H200", capability=capability)
    return report.range(0, 4000, "training")


def sample(report: SyntheticReport, values: dict[int, float], sms: float = 100, count: int = 40, **more) -> None:
    """Samples at 0, 100, 200, … µs: 0 except where ``values`` says otherwise (number of the sample → per cent)."""
    for number in range(count):
        report.counter(100 * number, values.get(number, 0), **more)
        report.counter(100 * number, sms, name="SMs Active [Throughput %]")


def verdict_of(report: SyntheticReport) -> pd.DataFrame:
    with open_report(report.write()) as opened:
        return tensor_cores.verdicts(opened).set_index("kernel")


def test_each_kind_of_evidence(tmp_path):
    report = quiet(tmp_path)
    report.kernel(0, 900, "nvjet_seen")  # samples 1 to 7
    report.kernel(1000, 1500, "triton_mm")  # samples 11 to 13
    report.kernel(1600, 2100, "triton_add")
    report.kernel(2200, 2700, "nvjet_contradicted")
    report.kernel(2800, 2900, "nvjet_short")
    report.kernel(3000, 3050, "triton_short")
    report.kernel(3100, 3600, "void at::native::contradicted()")
    busy = dict.fromkeys([*range(0, 9), *range(10, 15), *range(31, 36)], 40)
    sample(report, busy | dict.fromkeys(range(22, 27), 1))
    found = verdict_of(report)
    expected = {
        "nvjet_seen": ("yes", "both", 7),
        "triton_mm": ("yes", "counter", 3),
        "triton_add": ("no", "counter", 3),
        "nvjet_contradicted": ("unknown", "disagreement", 3),
        "nvjet_short": ("yes", "name", 0),
        "triton_short": ("unknown", "none", 0),
        "void at::native::contradicted()": ("unknown", "disagreement", 3),
    }
    rows = found[["tensor_core", "evidence", "samples"]].itertuples(index=False, name=None)
    assert dict(zip(found.index, rows, strict=True)) == expected
    assert found.loc["nvjet_contradicted", "sampled_pct"] == 1
    assert "Tensor Active reads 1 %" in found.loc["nvjet_contradicted", "rule"]
    assert found.loc[["nvjet_short", "triton_short"], "sampled_pct"].isna().all(), "unsampled is not 0"
    assert list(found["gpu_ms"]) == sorted(found["gpu_ms"], reverse=True)
    with open_report(report.write()) as opened:
        table = tensor_cores.verdicts(opened)
        assert set(table.loc[table["evidence"] == "disagreement", "kernel"]) == {
            "nvjet_contradicted",
            "void at::native::contradicted()",
        }


def test_one_per_cent_is_the_floor_and_few_sms_prove_nothing(tmp_path):
    floor, idle_sms = quiet(tmp_path), quiet(tmp_path)
    floor.kernel(0, 900, "triton_a")
    sample(floor, dict.fromkeys(range(9), 1))
    assert tuple(verdict_of(floor).loc["triton_a", ["tensor_core", "evidence"]]) == ("no", "counter")
    idle_sms.kernel(0, 900, "triton_a")
    sample(idle_sms, {}, sms=20)
    assert tuple(verdict_of(idle_sms).loc["triton_a", ["tensor_core", "evidence"]]) == ("unknown", "none")


@pytest.mark.parametrize("value", [2, 4, 5.9])
def test_between_the_bounds_the_counter_says_nothing(tmp_path, value):
    report = quiet(tmp_path)
    report.kernel(0, 900, "triton_a").kernel(1000, 1900, "void at::native::add()")
    sample(report, dict.fromkeys(range(20), value))
    found = verdict_of(report)
    assert tuple(found.loc["triton_a", ["tensor_core", "evidence", "samples"]]) == ("unknown", "none", 7)
    assert tuple(found.loc["void at::native::add()", ["tensor_core", "evidence"]]) == ("no", "name")


def test_a_kernel_that_shares_its_gpu_is_unsampled(tmp_path):
    report = quiet(tmp_path)
    report.kernel(0, 1000, "triton_a").kernel(500, 600, "triton_b").kernel(1000, 2000, "triton_c")
    report.kernel(3000, 3500, "triton_d").kernel(3000, 3500, "triton_e")
    sample(report, dict.fromkeys(range(40), 50))
    found = verdict_of(report).sort_index()
    assert list(found["samples"]) == [3 + 2, 0, 8, 0, 0], "what is before and after its company still counts"


def test_turings_counter_proves_no_and_never_yes(tmp_path):
    report = quiet(tmp_path, (7, 5))
    report.kernel(0, 900, "triton_busy").kernel(1000, 1900, "triton_idle")
    sample(report, dict.fromkeys(range(10), 50), name="Tensor Active / FP16 Active [Throughput %]")
    found = verdict_of(report)
    assert dict(found["tensor_core"]) == {"triton_busy": "unknown", "triton_idle": "no"}
    assert found.loc["triton_busy", "sampled_pct"] == 50


def test_fp64_arithmetic_is_no_proof_of_tensor_cores(tmp_path):
    report = quiet(tmp_path)
    report.kernel(0, 900, "triton_of_double").kernel(1000, 1900, "ampere_dgemm_64x64_nn")
    sample(report, dict.fromkeys(range(20), 50))
    found = verdict_of(report)
    assert dict(found["tensor_core"]) == {"triton_of_double": "unknown", "ampere_dgemm_64x64_nn": "no"}


def test_an_answer_is_worked_out_once_and_cannot_be_spoilt(tmp_path):
    report = quiet(tmp_path)
    report.kernel(0, 900, "triton_a").kernel(1000, 1100, "nvjet_b")
    with open_report(report.write()) as opened:
        first = tensor_cores.verdicts(opened)
        first["tensor_core"] = "spoilt"
        assert list(tensor_cores.verdicts(opened)["tensor_core"]) == ["unknown", "yes"]
        half = tensor_cores.verdicts(opened, Window(opened.window().start, opened.window().start + 950_000, "half"))
        assert list(half["kernel"]) == ["triton_a"]


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA H200", (9, 0), True),
        ("Tesla T4", (7, 5), True),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), False),
        ("NVIDIA T1000", (7, 5), False),
        ("Tesla P100-PCIE-16GB", (6, 0), False),
        ("NVIDIA H200", None, None),
    ],
)
def test_which_gpus_have_tensor_cores(tmp_path, name, capability, expected):
    report = SyntheticReport(tmp_path / "gpu.sqlite").gpu(name, capability=capability)
    report.kernel(0, 10, "turing_h1688gemm_256x64_ldg8_tn", call=(0, 1))
    with open_report(report.write()) as opened:
        assert tensor_cores.has_tensor_cores(opened) is expected
        assert tensor_cores.capability(opened) == capability
        found = tensor_cores.verdicts(opened).iloc[0]
    assert (found["tensor_core"], found["evidence"]) == (("no", "GPU") if expected is False else ("yes", "name"))


def test_with_two_gpus_a_kernel_meets_the_samples_of_its_own(tmp_path):
    def two(mapped: bool) -> pd.DataFrame:
        report = quiet(tmp_path)
        report.kernel(0, 900, "triton_a", device=0).kernel(0, 900, "triton_b", device=1)
        for gpu in (0, 1):
            for number in range(40):
                report.counter(100 * number, 50 * gpu, device=gpu)
        for cuda, gpu in ((0, 1), (1, 0)) if mapped else ():  # CUDA's numbers need not be the sampler's
            report._add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=cuda, pid=4711)
        return verdict_of(report)

    found = two(mapped=True)
    assert list(found.loc[["triton_a", "triton_b"], "sampled_pct"]) == [50, 0]
    assert list(two(mapped=False)["samples"]) == [0, 0], "the report does not say which GPU is which"


KERNELS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900), st.sampled_from("abc")), max_size=8)
SAMPLES = st.lists(st.integers(0, 60), min_size=3, max_size=40)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KERNELS, SAMPLES, st.integers(10, 120))
def test_samples_inside_kernels_as_a_slow_search_finds_them(rows, values, interval):
    spans = sorted((start, start + length, name) for start, length, name in rows)
    table = pd.DataFrame(spans, columns=["start", "end", "name"]).assign(gpu=0)
    table[["start", "end"]] = table[["start", "end"]].astype("int64")
    times = np.arange(len(values)) * interval
    counter = pd.DataFrame({"time": times, "value": np.array(values, float), "counter": "Tensor Active", "device": 0})
    report = SimpleNamespace(
        kernels=table, graphs=table[:0], counter=lambda name, window=None: counter[: None if "Tensor" in name else 0],
        sampled_gpu=lambda: None,
    )  # fmt: skip
    found = tensor_cores.sampled(report)
    expected: dict[str, list] = {}
    for moment, value in zip(times, values, strict=True):
        first, last = moment - interval, moment + 2 * interval
        around = [(start, end, name) for start, end, name in spans if end > start and start < last and end > first]
        if len(around) == 1 and around[0][0] <= first and around[0][1] >= last:
            expected.setdefault(around[0][2], []).append(value)
    assert set(found.index) == set(expected)
    for name, inside in expected.items():
        assert found.loc[name, "samples"] == len(inside)
        assert found.loc[name, "sampled_pct"] == pytest.approx(np.mean(inside))
        assert found.loc[name, "highest_pct"] == max(inside)


def test_a_large_report_takes_well_under_a_second():
    kernels, samples = 100_000, 1_500_000
    starts = np.arange(kernels, dtype=np.int64) * 15_000
    names = np.array([f"void at::native::kernel_{number}(float *)" for number in range(200)], dtype=object)
    table = pd.DataFrame({"start": starts, "end": starts + 14_000, "name": names[np.arange(kernels) % 200], "gpu": 0})
    counter = pd.DataFrame(
        {"time": np.arange(samples, dtype=np.int64) * 1000, "value": 1.0, "counter": "Tensor Active", "device": 0}
    )
    busy = counter.assign(value=100.0, counter="SMs Active")
    report = SimpleNamespace(
        answers={}, kernels=table, graphs=table[:0],
        counter=lambda name, window=None: counter if "Tensor" in name else busy,
        sampled_gpu=lambda: None, gpu="NVIDIA H200",
        gpus=pd.DataFrame({"gpu": [0], "major": [9], "minor": [0]}),
    )  # fmt: skip
    begin = time.process_time()
    found = tensor_cores.verdicts(report, Window(0, int(starts[-1]) + 1, "all"))
    seconds = time.process_time() - begin
    assert found["count"].sum() == kernels and (found["evidence"] == "both").all()
    assert seconds < 2, f"{seconds:.2f} s"  # 0.3 s where this was written


# Operations


def operator(op: str, number: int = 1, sizes: str | None = None, seq: int | None = None) -> str:
    """An operator range's name as PyTorch 2.15's emit_nvtx writes it."""
    text = op + (f", seq = {seq}" if seq is not None else "") + f", op_id = {number}"
    return text if sizes is None else f"{text}, sizes = {sizes}, input_op_ids = [(0,-1), (0,-1)]"


CONV1 = "[[1024, 1, 28, 28], [32, 1, 3, 3], [32], [], [], [], []]"
CONV2 = "[[1024, 32, 26, 26], [64, 32, 3, 3], [64], [], [], [], []]"
CONV2_BACKWARD = "[[1024, 64, 24, 24], [1024, 32, 26, 26], [64, 32, 3, 3], [], [], [], [], [], [], [], []]"
ADDMM = "[[10], [1024, 128], [128, 10], [], []]"
FFMA = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x32x8_g1_ffma_aligna4_alignc4_execute"
TF32_CONV = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32_g1_tensor16x8x8_execute"
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1>"
SGEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)"


def nest(report: SyntheticReport, names: list[str], start: float, end: float, thread: int = MAIN) -> None:
    """Ranges inside one another, each a little shorter than the one around it."""
    for depth, name in enumerate(names):
        report.range(start + depth * 0.01, end - depth * 0.01, name, thread=thread)


def training_step(tmp_path, capability=(9, 0)) -> SyntheticReport:
    """A step as PyTorch runs it with TF32 on for convolutions, off for matrix products; times in µs.

    conv1 (one input channel) 10 µs FFMA; conv2 20 µs TF32 with layout copies of 3 + 4; addmm 5 µs sgemm with a split-K
    sum of 1; a ReLU of 2; backward on autograd's thread: conv2 30 µs TF32 and a bias sum of 6; mm 7 µs sgemm, whose
    bias sum of 1 is another op; Adadelta 8.
    """
    report = SyntheticReport(tmp_path / "step.sqlite").gpu("NVIDIA H200", capability=capability)
    report.range(0, 1000, "training").range(0, 100, "forward").range(100, 300, "backward").range(300, 400, "optimizer")
    forms = ["aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"]
    nest(report, [operator(form, 1, CONV1, seq=1) for form in forms], 10, 20)
    report.kernel(50, 60, FFMA, call=(15, 16))
    nest(report, [operator(form, 5, CONV2, seq=2) for form in forms], 20, 30)
    report.kernel(60, 63, TO_NHWC, call=(21, 22)).kernel(63, 83, TF32_CONV, call=(23, 24))
    report.kernel(83, 87, "void cudnn::engines_precompiled::nhwcToNchwKernel<float>", call=(25, 26))
    nest(report, [operator("aten::relu", 9, "[[1024, 64, 24, 24]]", seq=3)], 30, 35)
    report.kernel(90, 92, "void at::native::vectorized_elementwise_kernel<(int)4>", call=(31, 32))
    linear = operator("aten::linear", 10, "[[1024, 128], [10, 128], [10]]", seq=4)
    nest(report, [linear, operator("aten::addmm", 12, ADDMM, seq=4)], 35, 45)
    report.kernel(92, 97, SGEMM, call=(38, 39)).kernel(97, 98, "void cublasLt::splitKreduce_kernel<>", call=(40, 41))
    node = "autograd::engine::evaluate_function: {0}, op_id = {1}"
    nest(report, [node.format("AddmmBackward0", 20), operator("AddmmBackward0", 21, seq=4)], 110, 130, AUTOGRAD)
    nest(report, [operator("aten::mm", 22, "[[1024, 10], [10, 128]]")], 112, 118, AUTOGRAD)
    report.kernel(140, 147, SGEMM, call=(115, 116), thread=AUTOGRAD)
    nest(report, [operator("aten::sum", 23, "[[1024, 10], [], [], []]")], 120, 125, AUTOGRAD)
    report.kernel(150, 151, "void at::native::reduce_kernel<(int)512>", call=(121, 122), thread=AUTOGRAD)
    names = [node.format("ConvolutionBackward0", 30), operator("ConvolutionBackward0", 31, seq=2)]
    names.append(operator("aten::convolution_backward", 32, CONV2_BACKWARD))
    nest(report, names, 140, 170, AUTOGRAD)
    report.kernel(170, 200, TF32_CONV.replace("fprop", "wgrad"), call=(150, 151), thread=AUTOGRAD)
    report.kernel(200, 206, "void at::native::reduce_kernel<(int)128>", call=(155, 156), thread=AUTOGRAD)
    nest(report, ["Optimizer.step#Adadelta.step, op_id = 40", operator("aten::_foreach_mul_", 41)], 310, 350)
    report.kernel(350, 358, "void at::native::multi_tensor_apply_kernel<T1>", call=(320, 321))
    return report


def test_nested_operators_are_one_op_and_autograds_thread_is_followed(tmp_path):
    with open_report(training_step(tmp_path).write()) as report:
        found = ops.instances(report)
        summary = ops.summary(report, found=found)
        table = ops.eligible(report, found=found)
    rows = list(zip(found["op"], found["group"], found["kernels"], (1000 * found["gpu_ms"]).round(), strict=True))
    assert rows == [
        ("aten::conv2d", "not using", 1, 10),
        ("aten::conv2d", "using", 3, 27),
        ("aten::relu", "other", 1, 2),
        ("aten::linear", "not using", 2, 6),
        ("aten::mm", "not using", 1, 7),
        ("aten::sum", "other", 1, 1),
        ("aten::convolution_backward", "using", 2, 36),
        ("aten::_foreach_mul_", "other", 1, 8),
    ]
    assert set(found["by"]) == {summary.by} == {"operator ranges"}
    assert summary.instances == {"using": 2, "not using": 3, "unknown": 0, "other": 3}
    assert summary.gpu_ms == pytest.approx({"using": 0.063, "not using": 0.023, "unknown": 0.0, "other": 0.011})
    assert summary.efficiency == summary.efficiency_at_most == pytest.approx(50 / 86), "DLProf's definition"
    assert summary.at_stake_ms == pytest.approx(0.023)
    assert list(table["op"])[:2] == ["aten::convolution_backward", "aten::conv2d"], "longest first"
    reasons = dict(zip(found["op"] + " " + found["sizes"].fillna(""), found["reason"], strict=True))
    assert reasons[f"aten::conv2d {CONV1}"] == "one input channel"
    assert reasons[f"aten::conv2d {CONV2}"] is None, "it uses Tensor Cores"
    assert reasons["aten::mm [[1024, 10], [10, 128]]"] == "FP32 arithmetic with TF32 off"
    evidence = found.set_index("op")["evidence"]
    assert evidence["aten::linear"].startswith(
        "kernel cutlass_80_simt_sgemm_128x64_8x5_tn_align1; compute capability 9.0"
    )
    assert "weight 32 × 1 × 3 × 3" in found["evidence"].iloc[0]
    assert found.loc[1, "layout_ms"] == pytest.approx(0.007)


def test_without_operator_ranges_kernel_names_decide_and_the_result_says_so(tmp_path):
    report = SyntheticReport(tmp_path / "plain.sqlite").gpu("NVIDIA H200", capability=(9, 0))
    report.range(0, 1000, "training").range(10, 90, "forward")
    report.kernel(20, 30, FFMA, call=(10, 11)).kernel(30, 50, TF32_CONV, call=(12, 13))
    report.kernel(50, 55, TO_NHWC, call=(14, 15)).kernel(60, 61, "void cublasLt::splitKreduce_kernel<>", call=(16, 17))
    report.kernel(62, 65, "triton_tem_fused_mm_0", call=(18, 19)).kernel(70, 72, "triton_poi_fused_add_0")
    with open_report(report.write()) as opened:
        found, summary = ops.instances(opened), ops.summary(opened)
    assert summary.by == "kernel names" and set(found["by"]) == {"kernel names"}
    assert summary.instances == {"using": 1, "not using": 1, "unknown": 1, "other": 3}
    assert (summary.efficiency, summary.efficiency_at_most) == pytest.approx((20 / 33, 23 / 33))
    first = found.iloc[0]
    assert first["reason"] == "not known", "TF32 is on: another convolution uses it"
    assert "TF32 is on" in first["evidence"] and "not looked at" in first["evidence"]


def test_a_product_outside_any_eligible_operator_is_an_op_by_its_name(tmp_path):
    report = training_step(tmp_path)
    nest(report, [operator("my_library::fused_thing", 50)], 360, 380)
    report.kernel(400, 411, "nvjet_sm90_hsh_64x24_64x16_2x4_h_bz_bias_TNT", call=(370, 371))
    report.kernel(420, 433, "nvjet_from_a_graph")  # no launch call in the report
    with open_report(report.write()) as opened:
        found, summary = ops.instances(opened), ops.summary(opened)
    named = found[found["by"] == "kernel names"]
    assert list(named["op"].str[:6]) == ["nvjet_"] * 2 and set(named["group"]) == {"using"}
    assert summary.by == "operator ranges and kernel names"


@pytest.mark.parametrize(
    ("capability", "op", "sizes", "kernel", "reason", "evidence"),
    [
        ((8, 0), "aten::mm", "[[64, 64], [64, 64]]", SGEMM, "FP32 arithmetic with TF32 off", "capability 8.0 has TF32"),
        ((7, 0), "aten::mm", "[[64, 64], [64, 64]]", SGEMM, "FP32 arithmetic", "7.0 has no TF32"),
        (None, "aten::mm", "[[64, 64], [64, 64]]", SGEMM, "FP32 arithmetic", "does not tell"),
        ((6, 1), "aten::mm", "[[64, 64], [64, 64]]", SGEMM, "a GPU without Tensor Cores", "compute capability 6.1"),
        ((9, 0), "aten::conv2d", CONV1, FFMA, "one input channel", "weight 32 × 1 × 3 × 3"),
        (
            (9, 0), "aten::convolution_backward",
            "[[8, 32, 26, 26], [8, 1, 28, 28], [32, 1, 3, 3], [], [], [], [], [], [], [], []]", FFMA,
            "one input channel", "weight 32 × 1 × 3 × 3",
        ),
        (
            (9, 0), "aten::_conv_depthwise2d", "[[8, 32, 26, 26], [32, 1, 3, 3], [], [], [], []]",
            "void at::native::conv_depthwise2d_forward_kernel<c10::Half>", "grouped convolution, one channel a group",
            "32 input channels",
        ),
        ((9, 0), "aten::addmm", ADDMM, "volta_hgemm_64x64_nn", "shape", "N = 10: no multiple of 8"),
        ((9, 0), "aten::bmm", "[[4, 16, 12], [4, 12, 8]]", "volta_hgemm_64x64_nn", "shape", "K = 12"),
        ((9, 0), "aten::linear", "[[3, 64, 128], [10, 128], [10]]", "volta_hgemm_64x64_nn", "shape", "N = 10"),
        ((9, 0), "aten::mm", "[[64, 64], [64, 64]]", "volta_hgemm_64x64_nn", "not known", "kernel volta_hgemm"),
        ((9, 0), "aten::mm", None, "volta_hgemm_64x64_nn", "not known", "shape and channels not looked at"),
        ((9, 0), "aten::mm", "[[64, 64], [64, 64]]", "ampere_dgemm_64x64_nn", "FP64 arithmetic", "ampere_dgemm"),
    ],
)  # fmt: skip
def test_the_likely_reason_and_its_evidence(tmp_path, capability, op, sizes, kernel, reason, evidence):
    report = SyntheticReport(tmp_path / "reason.sqlite").gpu("NVIDIA Something", capability=capability)
    report.range(0, 100, "training").range(5, 20, operator(op, 1, sizes)).kernel(30, 40, kernel, call=(10, 11))
    with open_report(report.write()) as opened:
        found = ops.instances(opened).iloc[0]
    assert (found["group"], found["reason"]) == ("not using", reason)
    assert evidence in found["evidence"]


def test_layout_copies_are_a_reason_where_nothing_else_is_known(tmp_path):
    report = SyntheticReport(tmp_path / "layout.sqlite").gpu("NVIDIA H200", capability=(9, 0))
    report.range(0, 100, "training").range(5, 20, operator("aten::conv2d", 1, CONV2))
    report.kernel(30, 47, TO_NHWC, call=(10, 11)).kernel(
        50, 60, "void wgrad_alg0_engine<__half, (int)128>", call=(12, 13)
    )
    with open_report(report.write()) as opened:
        found = ops.instances(opened).iloc[0]
    assert found["reason"] == "layout copies" and "layout copies: 17 µs" in found["evidence"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::conv2d", True), ("aten::cudnn_convolution_add_relu", True), ("aten::_slow_conv2d_forward", True),
        ("aten::slow_conv_transpose2d", True), ("aten::convolution_backward_overrideable", True),
        ("aten::_conv_depthwise2d", True), ("aten::conv_tbc", True), ("aten::mkldnn_convolution", True),
        ("aten::mm", True), ("aten::addmm_", True), ("aten::_scaled_mm", True), ("aten::matmul", True),
        ("aten::scaled_dot_product_attention", True), ("aten::_efficient_attention_backward", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", True), ("aten::_cudnn_rnn", True),
        ("conv2d", True), ("flash_attn::_flash_attn_forward", True),
        ("aten::convert_element_type", False), ("aten::mul", False), ("aten::mm_like_thing", False),
        ("aten::addcmul", False), ("aten::commit", False), ("ConvolutionBackward0", False), ("aten::linspace", False),
        ("aten::_convert_weight_to_int4pack", False), ("training", False), ("aten::mv", False), ("aten::dot", False),
        ("aten::softmax", False), ("autograd::engine::evaluate_function: MmBackward0", False),
    ],
)  # fmt: skip
def test_eligible_operators(name, expected):
    assert ops.is_eligible(name) is expected


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (operator("aten::addmm", 3, ADDMM, seq=2), [[10], [1024, 128], [128, 10], [], []]),
        ("aten::mm, op_id = 4, sizes = [[2, 3], [3, 4]]", [[2, 3], [3, 4]]),
        ("aten::mm, seq = 1, sizes = [[2, 3], [3, 4]]", [[2, 3], [3, 4]]),  # PyTorch before 1.10
        ("aten::mm, seq = 1, op_id = 4", None),
        ("aten::mm, op_id = 4, sizes = [[2, 3], [3, 4", None),  # cut off
        ("aten::mm, op_id = 4, sizes = [oops]", None),
        ("forward", None),
    ],
)
def test_sizes_in_a_ranges_name(name, sizes):
    assert ops.sizes_of(name) == sizes


@st.composite
def nested_operators(draw, low=0, high=60, depth=3) -> list[tuple[int, int, str]]:
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6, unique=True)))
    found = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        name = draw(st.sampled_from(["aten::mm", "aten::conv2d", "aten::relu", "aten::sum", "forward"]))
        found.append((start, end, name))
        if depth:
            found += draw(nested_operators(start, end, depth - 1))
    return found


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nested_operators(), nested_operators(), st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=12))
def test_ops_as_a_slow_search_finds_them_and_nothing_is_lost(tmp_path, main, autograd, launches):
    report = SyntheticReport(tmp_path / "nested.sqlite").gpu("NVIDIA H200", capability=(9, 0))
    report.range(-100, 1000, "training", registered=True)
    for thread, rows in ((MAIN, main), (AUTOGRAD, autograd)):
        for number, (start, end, name) in enumerate(rows):
            report.range(start, end, operator(name, number) if "::" in name else name, thread=thread)
    expected = []
    for number, (at, elsewhere) in enumerate(launches):
        report.kernel(100 + 10 * number, 105 + 10 * number, "void at::native::x()", call=(at, at + 0.5),
                      thread=AUTOGRAD if elsewhere else MAIN)  # fmt: skip
        around = [row for row in (autograd if elsewhere else main) if row[0] <= at < row[1] and "::" in row[2]]
        products = [row for row in around if row[2] in ("aten::mm", "aten::conv2d")]
        chosen = products[0][2] if products else around[-1][2] if around else "void at::native::x()"
        expected.append((chosen, "not using" if products else "other"))
    with open_report(report.write()) as opened:
        found = ops.instances(opened)
        by_group = ops.summary(opened, found=found).gpu_ms
    assert found["kernels"].sum() == len(launches)
    assert found["gpu_ms"].sum() == pytest.approx(sum(by_group.values())) == pytest.approx(0.005 * len(launches))
    counted: dict[tuple, int] = {}
    for key, count in zip(zip(found["op"], found["group"], strict=True), found["kernels"], strict=True):
        counted[key] = counted.get(key, 0) + count
    assert counted == {key: expected.count(key) for key in expected}


@pytest.mark.parametrize("question", [tensor_cores.verdicts, ops.instances, ops.summary, ops.eligible])
def test_a_report_without_kernels_or_counters_has_an_empty_answer(tmp_path, question):
    report = SyntheticReport(tmp_path / "bare.sqlite").range(0, 10, "training", registered=True)
    with open_report(report.write()) as opened:
        found = question(opened)
    if isinstance(found, ops.Summary):
        assert found.efficiency is None and found.at_stake_ms == 0 and found.by == "kernel names"
    else:
        assert found.empty


# The recorded reports, against plain SQL


@pytest.fixture(scope="module", params=["main_baseline_nvtx", "main_opt3", "main_opt3_bf16", "main_opt3_tf32"])
def recording(request):
    file, scratch = sqlite_file(RECORDED / f"{request.param}.sqlite.xz")
    db = sqlite3.connect(file)
    with open_report(RECORDED / f"{request.param}.sqlite.xz") as report:
        yield request.param, report, db
    db.close()
    if scratch:
        scratch.cleanup()


KERNELS_SQL = """
SELECT name.value, count(*), sum(k."end" - k.start) / 1e6
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN StringIds AS name ON name.id = k.demangledName,
     (SELECT start AS first, "end" AS last FROM NVTX_EVENTS WHERE text = 'training') AS training
WHERE k.start >= first AND k.start < last AND {}
GROUP BY 1
"""
SAMPLES_SQL = """
SELECT name.value, count(*), avg(s.value)
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN StringIds AS name ON name.id = k.demangledName
JOIN GPU_METRICS AS s ON s.timestamp >= k.start + 100000 AND s.timestamp <= k."end" - 200000
JOIN TARGET_INFO_GPU_METRICS AS m ON m.typeId = s.typeId AND m.metricId = s.metricId,
     (SELECT start AS first, "end" AS last FROM NVTX_EVENTS WHERE text = 'training') AS training
WHERE k.start >= first AND k.start < last AND m.metricName LIKE 'Tensor Active%' AND k."end" - k.start >= 300000
GROUP BY 1
"""
# Everything that multiplies on Tensor Cores in these four reports; and whatever it is that nobody can tell.
ON_TENSOR_CORES = [
    "%tensorop%", "%MmaTensorOp%", "%warpgroupsize%", "%tensor16x8x%", "%nvjet%",
]  # fmt: skip
LIKE_ANY = " OR ".join(f"name.value LIKE '{pattern}'" for pattern in ON_TENSOR_CORES)


def test_recorded_kernels_have_the_verdicts_that_sql_gives_them(recording):
    name, report, db = recording
    found = tensor_cores.verdicts(report)
    for verdict, condition in {
        "yes": f"({LIKE_ANY}) AND name.value NOT LIKE '%ReduceSplitK%'",
        "unknown": "name.value LIKE '%implicit_convolve%'",
    }.items():
        rows = db.execute(KERNELS_SQL.format(condition)).fetchall()
        own = found[found["tensor_core"] == verdict].set_index("kernel")
        assert set(own.index) == {row[0] for row in rows}
        for kernel, count, ms in rows:
            assert own.loc[kernel, "count"] == count
            assert own.loc[kernel, "gpu_ms"] == pytest.approx(ms, abs=1e-9)
    assert found["count"].sum() == sum(row[1] for row in db.execute(KERNELS_SQL.format("1")))
    assert not (found["evidence"] == "disagreement").any()
    half = name in ("main_opt3", "main_opt3_bf16")
    assert (found["tensor_core"] == "unknown").sum() == half, "cuDNN's convolution of one input channel"
    assert (found["tensor_core"] == "yes").any() == (name != "main_baseline_nvtx"), "plain FP32: none"


def test_recorded_samples_are_those_that_sql_finds(recording):
    name, report, db = recording
    found = tensor_cores.verdicts(report)
    rows = {kernel: (count, mean) for kernel, count, mean in db.execute(SAMPLES_SQL)}
    own = found[found["samples"] > 0].set_index("kernel")
    assert set(own.index) == set(rows) and rows
    for kernel, (count, mean) in rows.items():
        assert (own.loc[kernel, "samples"], own.loc[kernel, "sampled_pct"]) == (count, pytest.approx(mean))
    assert (own["evidence"] == "both").all(), "wherever both witnesses speak, they agree"
    assert found.loc[found["samples"] == 0, "sampled_pct"].isna().all()
    if name == "main_opt3_tf32":
        assert (own["tensor_core"] == "yes").sum() == 1 and own["sampled_pct"].max() > 20


def test_the_stamp_of_a_sample_is_the_start_of_its_interval(recording):
    """The shift that best explains SMs Active by the kernels that ran: 5 to 30 µs; one interval is margin enough."""
    _, report, _ = recording
    samples, kernels = report.counter("SMs Active"), report.kernels
    times, values = samples["time"].to_numpy(), samples["value"].to_numpy()
    ran = intervals.union(kernels, report.memsets)

    def ran_before(moments):
        number = np.searchsorted(ran[:, 0], moments, side="right")
        over = np.where(number > 0, ran[np.maximum(number - 1, 0), 1] - moments, 0)
        return np.concatenate([[0], np.cumsum(ran[:, 1] - ran[:, 0])])[number] - np.maximum(over, 0)

    near = (times > ran[0, 0] - 10**6) & (times < ran[-1, 1] + 10**6)
    times, values = times[near], values[near]
    shifts = np.arange(-200_000, 200_001, 5_000)
    fits = [np.corrcoef(ran_before(times + s + 100_000) - ran_before(times + s), values)[0, 1] for s in shifts]
    assert max(fits) > 0.9
    assert 0 <= shifts[int(np.argmax(fits))] <= 40_000


def test_recorded_ops_by_kernel_name(recording):
    name, report, db = recording
    found = ops.instances(report)
    summary = ops.summary(report, found=found)
    assert summary.by == "kernel names"
    assert found["kernels"].sum() == sum(row[1] for row in db.execute(KERNELS_SQL.format("1")))
    total_ms = sum(row[2] for row in db.execute(KERNELS_SQL.format("1")))
    assert sum(summary.gpu_ms.values()) == pytest.approx(total_ms, rel=1e-12)
    condition = f"({LIKE_ANY}) AND name.value NOT LIKE '%ReduceSplitK%'"
    used = db.execute(KERNELS_SQL.format(condition)).fetchall()
    assert summary.instances["using"] == sum(row[1] for row in used)
    assert summary.gpu_ms["using"] == pytest.approx(sum(row[2] for row in used), abs=1e-9)
    plain = "name.value LIKE '%_ffma_%' OR name.value LIKE '%sgemm\\_%' ESCAPE '\\' OR name.value LIKE '%wgrad_alg0%'"
    idle = db.execute(KERNELS_SQL.format(f"({plain})")).fetchall()
    assert summary.at_stake_ms == pytest.approx(sum(row[2] for row in idle), abs=1e-9)
    steps = 59
    assert sum(summary.instances[group] for group in ops.GROUPS[:3]) % steps == 0, "the same in each step"
    reasons = set(found["reason"].dropna())
    expected = {"main_baseline_nvtx": {"FP32 arithmetic with TF32 off"}, "main_opt3_tf32": {"not known"}}
    assert reasons == expected.get(name, set())
