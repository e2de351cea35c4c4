"""The benchmark that asks in which precision FP32 is computed."""

from __future__ import annotations

import pytest
from support.scripts import script


def test_a_probe_is_a_process_of_its_own_and_says_what_was_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    bench = script("bench_tf32.py")
    statements = "import os; assert 'NVIDIA_TF32_OVERRIDE' not in os.environ; torch.no_such_switch"
    found = bench.ask("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1", statements)
    assert (found["matmul"], found["conv"]) == ("FP32", "FP32"), "a CPU has no TF32"
    assert 0 < found["matmul_error"] < 1e-5
    assert list(found["refused"]) == ["set"] and "no_such_switch" in found["refused"]["set"]
    with pytest.raises(RuntimeError, match="failed"):
        bench.ask("", "raise SystemExit(3)")
    assert [bench.precision(error) for error in (3e-7, 3e-4, 3e-3)] == ["FP32", "TF32", "BF16"]
    refused = {}
    with bench.noted(refused, "set"):
        raise RuntimeError("mixed\nsecond line")
    assert refused == {"set": "mixed"}
