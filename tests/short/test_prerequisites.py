"""What a machine needs for Tensor Cores: what follows from each GPU, driver and build of PyTorch."""

from __future__ import annotations

import pytest

from labkit.source.facts import Machine, torch_version
from labkit.subjects import prerequisites


def follows(cuda="13.2", problem=None, **told) -> dict[str, str]:
    """What follows, by what is looked at, for an H200 with what is told changed."""
    usual = {
        "gpu": "NVIDIA H200", "capability": (9, 0), "cores": 16, "driver": "590.44.01", "nsys": "2026.1", "ncu": True,
        "counters": True,
    }  # fmt: skip
    found = prerequisites.rows(Machine(**usual | told), cuda, "9.26.0.51", problem)
    return {what: so for what, _, so in found}


@pytest.mark.parametrize(
    ("gpu", "capability", "so"),
    [
        ("NVIDIA H200", (9, 0), "Tensor Cores for FP16, BF16, TF32, FP8"),
        ("NVIDIA A10", (8, 6), "Tensor Cores for FP16, BF16, TF32"),
        ("NVIDIA L40S", (8, 9), "Tensor Cores for FP16, BF16, TF32, FP8"),
        ("NVIDIA RTX 5090", (12, 0), "Tensor Cores for FP16, BF16, TF32, FP8, FP4"),
        ("Tesla T4", (7, 5), "Tensor Cores for FP16; TF32 and BF16 gain nothing"),
        ("NVIDIA GeForce GTX 1650", (7, 5), "no Tensor Cores: short numbers save bytes only"),
        ("Tesla P100", (6, 0), "no Tensor Cores: short numbers save bytes only"),
    ],
)
def test_the_generation_says_which_numbers_tensor_cores_multiply(gpu, capability, so):
    assert follows(gpu=gpu, capability=capability)["GPU"] == so


def test_a_driver_runs_the_cuda_of_its_own_age_and_older():
    assert follows(driver="580.65.06")["driver"] == "new enough for CUDA 13 (580)"
    assert follows(driver="470.256.02")["driver"] == "too old for CUDA 13: it takes 580"
    assert follows(driver="570.124.06")["driver"].startswith("too old for CUDA 13: it takes 580; rm .venv/.installed")
    assert follows(driver="570.124.06", cuda="12.8")["driver"] == "new enough for CUDA 12 (525)"


def test_cuda_13_has_left_volta():
    assert follows(gpu="Tesla V100", capability=(7, 0))["CUDA of PyTorch"].startswith("does not know this GPU")
    assert follows(gpu="Tesla V100", capability=(7, 0), cuda="12.8")["CUDA of PyTorch"] == "knows this GPU"


def test_a_pytorch_for_cpus_is_named_where_there_is_a_gpu():
    assert follows(cuda=None)["CUDA of PyTorch"].startswith("a PyTorch for CPUs")
    none = follows(cuda=None, gpu=None, capability=None, driver=None, counters=False)
    assert none["CUDA of PyTorch"] == "" and none["GPU"] == "the labs show what was recorded"
    assert "GPU counters" not in none


def test_what_cuda_says_of_a_gpu_that_it_cannot_use_is_told():
    found = Machine(None, None, 2, "470.82.01", None, False, False, 0)
    rows = {what: (told, so) for what, told, so in prerequisites.rows(found, "13.2", None, "the driver is too old")}
    assert "the driver is too old" in rows["GPU"][0]
    assert rows["driver"][1].startswith("too old") and rows["CPU cores"][1]
    assert rows["Nsight Systems"] == ("not found", "no profiles of your own")


def test_counters_that_may_not_be_read_leave_the_names():
    assert "names alone" in follows(counters=False)["GPU counters"]


def test_the_versions_of_the_installed_pytorch_are_found_without_importing_it():
    import torch

    assert torch_version("cuda") == torch.version.cuda
