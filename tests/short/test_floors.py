"""Three floors of a training step by hand, the roofs beneath them, and the kernels that measure these."""

from __future__ import annotations

import importlib.util
import math

import pandas as pd
import pytest
import torch

from labkit.errors import LabError
from labkit.kernels import bandwidth, nvrtc
from labkit.subjects import floors
from labkit.subjects.floors import Roofs

needs_nvrtc = pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="cuda-bindings are not installed")

# An H200 as design and findings know it; shared memory: 128 bytes a clock of 132 multiprocessors at 1,755 MHz.
H200 = Roofs("NVIDIA H200", 782.0, 4.3, 128 * 132 * 1755 / 1e6, 1755.0)


def test_everything_at_once_is_the_arithmetic():
    """71.57 MFLOP a sample, 1,024 samples, 782 TFLOP/s."""
    assert floors.floors(H200)["all at once"] == pytest.approx(1024 * 71.57 / 782, rel=1e-3)


def test_kernels_one_after_another_by_hand():
    """Forward 28 µs, fc1 three times 4.4, backward 56, Adadelta 9: 106; conv1 made a second time is the rest."""
    own = floors.kernels(H200).set_index("kernel")
    conv1, conv2 = 1024 * 0.389376 / 782, 1024 * 21.233664 / 782
    pooled_us, optimizer_us = 1024 * 9216 * 2 / 4.3e6, 8 * 4 * 1_199_882 / 4.3e6
    assert own.loc["conv1 and conv2, to dropout", "arithmetic"] == pytest.approx(conv1 + conv2)
    assert own.loc["conv1 and conv2, backward", "arithmetic"] == pytest.approx(2 * (conv1 + conv2))
    assert own.loc[["fc1, weight gradient", "fc1, data gradient"], "memory"].tolist() == pytest.approx([pooled_us] * 2)
    assert own.loc["optimizer", ["arithmetic", "memory"]].tolist() == pytest.approx([0, optimizer_us])
    found = floors.floors(H200)["one after another"]
    assert found == pytest.approx(3 * (conv1 + conv2) + 3 * pooled_us + optimizer_us)
    assert found - conv1 == pytest.approx(28.3 + 3 * 4.4 + 56.1 + 8.9, abs=0.2)


def test_a_tensor_core_reads_what_shared_memory_gives():
    """wgmma.m64n64k16: 131,072 operations, 4,096 bytes; with 128 columns three quarters as many for each operation."""
    assert floors.wgmma_bytes(131_072, 64) == 4096
    assert floors.wgmma_bytes(262_144, 128) == (64 + 128) * 16 * 2
    clocks = 1024 * 21_233_664 / 131_072 * 32 / 132  # of conv2, on each multiprocessor, at both peaks
    own = floors.kernels(H200).set_index("kernel").loc["conv1 and conv2, to dropout"]
    hidden_mb, conv1_mb = 1024 * 26 * 26 * 32 * 2 / 1e6, 1024 * 389_376 * 96 * 32 / 65_536 / 1e6
    conv2_us = (own["shared_mb"] - hidden_mb - conv1_mb) / H200.shared_tb_per_s
    assert conv2_us == pytest.approx(clocks / 1755)


def test_shared_memory_binds_where_the_clock_is_low():
    """At 1,755 MHz it has time to spare; at 1,450 it takes longer than what cuBLAS reached."""
    slow = Roofs("a GPU", 782.0, 4.3, 128 * 132 * 1450 / 1e6)
    fast, low = floors.floors(H200), floors.floors(slow)
    assert fast["all at once"] < fast["one after another"] == fast["through shared memory"]
    own = floors.kernels(slow).set_index("kernel")["shared"]
    behind = ["fc1 and all behind it", "fc1, weight gradient", "fc1, data gradient", "optimizer"]
    forward_and_back = own.drop(behind).sum()
    rest = floors.kernels(slow).set_index("kernel").loc[behind, ["arithmetic", "memory"]].max(axis=1).sum()
    assert low["through shared memory"] == pytest.approx(forward_and_back + rest)
    assert low["through shared memory"] > low["one after another"]


def test_the_kernels_are_those_of_the_ideally_fused_step():
    assert [*floors.WORK] == floors.kernel_traffic("ideally fused")["kernel"].tolist()
    own = floors.kernels(H200)
    recomputed = 1024 * 389_376 / 1e9
    assert own["gflop"].sum() - recomputed == pytest.approx(1024 * floors.sizes.training_flops_per_sample() / 1e9)
    assert own["mb"].sum() == pytest.approx(floors.step_traffic("ideally fused") / 1e6)
    assert floors.kernels(H200, 512)["gflop"].sum() == pytest.approx(own["gflop"].sum() / 2)


def record(scale: float = 1.0, mhz: float | None = 1500.0) -> dict:
    rows = [
        {"what": "product", "zeros": zeros, "factor": factor, "tflops": tflops * scale, "mhz": mhz}
        | {"brief_tflops": 1.2 * tflops * scale}
        for zeros, factor, tflops in ((0.0, "left", 700.0), (0.75, "left", 800.0), (0.75, "both", 900.0))
    ]
    rows += [{"what": "copy", "tb_per_s": 4.2}, {"what": "read", "tb_per_s": 4.1}, {"what": "l2", "tb_per_s": 6.0}]
    rows += [{"what": "again", "tb_per_s": 9.9}]
    rows += [{"what": "shared", "tb_per_s": 33.0, "per_clock": 127.0, "multiprocessors": 132}]
    return {"gpu": "a GPU", "rows": rows}


def test_the_roofs_of_a_record():
    found = floors.roofs([record(), record(1.1), record(0.5)])
    assert found == Roofs("a GPU", 700.0, 4.2, pytest.approx(127 * 132 * 1500 / 1e6), 1500.0)
    assert floors.roofs([record()], 0.75).tflops == 800.0, "zeros in one factor"
    brief = floors.roofs([record()], brief=True)
    assert (brief.tflops, brief.mhz) == pytest.approx((840.0, 1800.0)), "at a clock that is higher as the rate is"
    unknown = floors.roofs([record(mhz=None)])
    assert unknown.shared_tb_per_s == 33.0 and math.isnan(unknown.mhz)
    with pytest.raises(LabError, match=r"no products with 42% zeros"):
        floors.roofs([record()], 0.42)


def test_the_sums_of_what_was_read():
    """Thread 0 of a block reads places 0, 32, … 992 of (i, 2 i, 3 i, 4 i)."""
    found = bandwidth.shared_reference(3)
    assert found[0] == 3 * 10 * 32 * sum(range(32)) and found[1] - found[0] == 3 * 10 * 32
    assert bandwidth.shared_reference(2001).dtype == torch.int32, "sums of 32 bits go round"
    numbers = torch.tensor([2**31 - 1, 1, -5], dtype=torch.int32)
    assert bandwidth.again_reference(numbers, 1) == 2**31 - 5 and bandwidth.again_reference(numbers, 2) == -10


def test_what_the_threads_cannot_share_evenly_is_refused():
    sums = torch.zeros(1024, dtype=torch.int32)
    with pytest.raises(ValueError, match="4,096 numbers are not 20 at a time for 1,024 threads"):
        bandwidth.again(torch.zeros(4096, dtype=torch.int32), sums, 1)


@needs_nvrtc
def test_nothing_that_is_read_is_left_out():
    ptx = nvrtc.code(bandwidth.SOURCE, (9, 0), bandwidth.FLAGS).ptx
    assert ptx.count("ld.volatile.shared.v4.u32") == bandwidth.READS
    assert ptx.count("ld.global.cg.v4.u32") >= bandwidth.UNDER_WAY


def test_a_table_of_the_kernels_has_no_holes():
    assert isinstance(floors.kernels(H200), pd.DataFrame) and not floors.kernels(H200).isna().any().any()
