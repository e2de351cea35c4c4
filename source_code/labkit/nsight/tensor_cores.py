"""Did the Tensor Cores work? By the names of the kernels, and by the sampled counter *Tensor Active*.

A kernel's name proves much and not everything, so the answer has three values: yes, no, unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from labkit.nsight.report import Report, Window

YES, NO, UNKNOWN = "yes", "no", "unknown"

# First match wins. Names as seen in profiles of cuBLAS, cuDNN, CUTLASS and PyTorch kernels from Volta to Blackwell.
RULES = [
    (
        NO,
        r"_ffma_|simt_|MmaSimt|volta_hgemm|_scudnn|winograd|wgrad_alg0_engine|gemv|splitKreduce|ReduceSplitK"
        r"|nchwToNhwc|nhwcToNchw",
    ),
    (UNKNOWN, r"fmha_cutlassF_f32|conv2d_c1_k1"),
    (YES, r"[his]884.*(gemm|cudnn)|(gemm|cudnn).*[his]884"),  # Volta
    (YES, r"[his]1688|i8816"),  # Turing
    (YES, r"s16816|s1688|d884|tensorop|wmma|_tensor16x8x"),  # Ampere
    (YES, r"\bMmaTensorOp\b"),  # CUTLASS's class for it, in names that spell out the whole template
    (YES, r"warpgroupsize|wgmma|gmma|nvjet_"),  # Hopper
    (YES, r"tcgen05|cutlass3x_sm1\d\d_tensorop"),  # Blackwell
    (YES, r"flash_fwd|flash_bwd|fmha_cutlassF_(bf16|f16)"),  # attention
    (UNKNOWN, r"^triton_|implicit_convolve|xmma|cudnn_generated|cutlass"),
    (  # families that multiply no matrices, or do so without Tensor Cores; any other name may hide anything
        NO,
        r"at::|cub::|thrust::|(?i:nccl|[sdcz]gemm|elementwise|reduc|softmax|pool|transpose|dropout|nll_loss|embedding"
        r"|layer_?norm|batch_?norm|\bbn_|multi_tensor|fft2d|scal_kernel|epilogue|copy|fill|scan|sort|index|gather"
        r"|scatter|relu|bias|cast|convert|memcpy|memset|random|philox)",
    ),
]


def by_name(kernel: str) -> str:
    """``"yes"``, ``"no"`` or ``"unknown"``: do kernels of this (demangled) name run on Tensor Cores?

    A kernel known to be no matrix product at all (pooling, an optimizer's update) is a plain ``"no"``.
    """
    for verdict, pattern in RULES:
        if re.search(pattern, kernel):
            return verdict
    return UNKNOWN


@dataclass(frozen=True)
class TensorActive:
    """The counter *Tensor Active* over a window: per cent of cycles in which the tensor pipes worked."""

    mean_pct: float
    max_pct: float
    samples: int


def tensor_active(report: Report, window: Window | None = None) -> TensorActive | None:
    """Mean and maximum of Tensor Active within the window (default: training).

    None where it was not sampled, or where several GPUs were and the report does not say which one the program used.
    """
    window = window or report.window()
    samples = report.counter("Tensor Active")
    samples = samples[(samples["time"] >= window.start) & (samples["time"] < window.end)]
    if samples["device"].nunique() > 1:
        samples = samples[samples["device"] == report.sampled_gpu()]
    if samples.empty:
        return None
    return TensorActive(float(samples["value"].mean()), float(samples["value"].max()), len(samples))


def kernels(report: Report, window: Window | None = None) -> pd.DataFrame:
    """One row a kernel name within the window, longest total first.

    Columns: ``kernel``, ``count``, ``gpu_ms``, ``mean_us``, ``share`` of all kernel time, ``tensor_cores``.
    """
    window = window or report.window()
    table = report.kernels
    table = table[(table["start"] >= window.start) & (table["start"] < window.end)]
    ns = table["end"] - table["start"]
    result = ns.groupby(table["name"]).agg(["size", "sum"]).reset_index()
    result.columns = ["kernel", "count", "ns"]
    result["gpu_ms"] = result["ns"] / 1e6
    result["mean_us"] = result["ns"] / result["count"] / 1e3
    result["share"] = result["ns"] / max(1, result["ns"].sum())
    result["tensor_cores"] = [by_name(str(name)) for name in result["kernel"]]
    return result.drop(columns="ns").sort_values(["gpu_ms", "kernel"], ascending=[False, True], ignore_index=True)


def kernel_time_by_verdict(report: Report, window: Window | None = None) -> dict[str, float]:
    """Milliseconds of kernel time within the window for each of the three answers."""
    table = kernels(report, window)
    return {
        verdict: float(table.loc[table["tensor_cores"] == verdict, "gpu_ms"].sum()) for verdict in (YES, NO, UNKNOWN)
    }
