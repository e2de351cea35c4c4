"""The first linear layer for Hopper: compiled here without a GPU, and on such a GPU held against FP64."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from support.fp64 import error

from labkit.errors import LabError
from labkit.kernels import hopper, hopper_fc1, nvrtc
from labkit.kernels.hopper_fc1 import fc1_backward
from labkit.kernels.weights import Weights
from labkit.training.model import Net

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == hopper.HOPPER
DEVICE = torch.device("cuda" if HOPPER else "cpu")
hopper_only = pytest.mark.skipif(not HOPPER, reason="no Hopper: its kernels are only compiled here")
needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cuda.bindings") is None if importlib.util.find_spec("cuda") else True,
    reason="NVRTC comes with PyTorch's CUDA builds only",
)
MOST_SHARED = 232_448  # bytes of a block, by compute capability 9.0: CUDA C++ Programming Guide


# Compiled, without a GPU


@needs_nvrtc
@pytest.mark.parametrize(("name", "dropout"), [("fc1_backward", False)])
def test_the_kernels_are_compiled_for_hopper(name, dropout):
    made = nvrtc.code(nvrtc.source(hopper_fc1.FILES[name]), hopper.HOPPER, hopper.flags(dropout))
    assert made.cubin[1:4] == b"ELF" and ".target sm_90a" in made.ptx and f".entry {name}(" in made.ptx
    files = dict(re.findall(r'\.file\s+(\d+) "(.+)"', made.ptx))
    at = {files[number] for number in re.findall(r"\.loc\s+(\d+)", made.ptx)}
    headers = {str(hopper.FOLDER / one) for one in ("hopper_fc1.cuh", "hopper.cuh", "rungs/ptx.cuh")}
    assert {str(hopper_fc1.FILES[name])} | headers <= at, "a profiler finds the source by its name"


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "fc1_backward",
            ("Backward", hopper_fc1.BACKWARD_BYTES, hopper_fc1.BACKWARD_THREADS, hopper_fc1.BACKWARD_CLUSTER),
        ),
    ],
)
def test_a_launch_asks_for_what_the_kernels_use(name, facts):
    def asserted(struct: str, size: int, threads: int, cluster: int) -> nvrtc.Code:
        same = f"sizeof({struct}) == {size} && THREADS == {threads} && CLUSTER == {cluster}"
        same += f" && UNITS == {hopper_fc1.UNITS} && FEATURES == {hopper_fc1.FEATURES}"
        same += f" && COLUMNS == {hopper_fc1.BACKWARD_COLUMNS}"
        text = f'{nvrtc.source(hopper_fc1.FILES[name])}\nstatic_assert({same}, "another size");'
        return nvrtc.code(text, hopper.HOPPER, hopper.flags(False))

    struct, size, threads, cluster = facts
    assert asserted(*facts).cubin
    for wrong in ((size + 16, threads, cluster), (size, threads + 128, cluster), (size, threads, 2 * cluster)):
        with pytest.raises(nvrtc.CompileError, match="another size"):
            asserted(struct, *wrong)
    assert size <= MOST_SHARED


def test_a_gpu_that_is_no_hopper_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA A100")
    with pytest.raises(LabError, match=r"for Hopper \(H100, H200, GH200\), not for NVIDIA A100"):
        hopper.kernel("fc1_backward", hopper_fc1.BACKWARD_BYTES, False, hopper_fc1.FILES)


# What they compute


class Case:
    """What comes out of the convolutions, weights, and a gradient that comes back to fc1's outputs."""

    def __init__(self, count: int, device: torch.device = DEVICE) -> None:
        torch.manual_seed(6)
        self.weights = Weights(Net().to(device))
        narrow = self.weights.flat_copies.dtype
        self.pooled = torch.randn(count, 12, 12, 64).relu().to(device, narrow)
        self.back = (1e-3 * torch.randn(count, 128)).to(device, narrow)


def test_on_the_cpu_they_are_the_products():
    case = Case(7, torch.device("cpu"))
    weight = case.weights.copies["fc1.weight"]
    upstream = fc1_backward(case.pooled, case.back, case.weights)
    assert torch.equal(upstream, (case.back @ weight).view(7, 12, 12, 64))
    assert torch.equal(case.weights.gradients["fc1.weight"], case.back.t() @ case.pooled.flatten(1))


@pytest.fixture(params=[1, 7, 64, 65, 96, 1000, 1024])
def case(request) -> Case:
    """Less than a block's samples, exactly these, one more, and batches."""
    return Case(request.param)


@hopper_only
def test_both_products_agree_with_fp64_and_are_always_the_same(case):
    gradient, kept = case.weights.gradients["fc1.weight"], []
    for _ in range(3):
        gradient.fill_(float("nan"))
        case.weights.gradients["fc2.bias"].fill_(5)
        upstream = fc1_backward(case.pooled, case.back, case.weights)
        kept.append((upstream.clone(), gradient.clone()))
    back, pooled = case.back.double(), case.pooled.double().flatten(1)
    expected = (back @ case.weights.copies["fc1.weight"].double()).view_as(upstream)
    assert error(upstream, expected) < 3e-3 and error(upstream, expected.bfloat16()) < 1e-3
    assert error(gradient, back.t() @ pooled) < 1e-5
    assert all(torch.equal(one, other) for pair in kept[1:] for one, other in zip(kept[0], pair, strict=True))
    assert (case.weights.gradients["fc2.bias"] == 5).all(), "nothing beyond"
