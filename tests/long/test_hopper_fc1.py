"""The first linear layer for Hopper: compiled here without a GPU, and on such a GPU held against FP64."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from support.fp64 import assert_rate, error

from labkit.errors import LabError
from labkit.kernels import hopper, hopper_fc1, nvrtc
from labkit.kernels.head import head, head_reference
from labkit.kernels.hopper_fc1 import fc1_backward, fc1_head
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
SMALL = ("fc1.bias", "fc2.weight", "fc2.bias")


# Compiled, without a GPU


@needs_nvrtc
@pytest.mark.parametrize(("name", "dropout"), [("fc1_head", False), ("fc1_head", True), ("fc1_backward", False)])
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
        ("fc1_head", ("Head", hopper_fc1.HEAD_BYTES, hopper_fc1.HEAD_THREADS, hopper_fc1.HEAD_CLUSTER)),
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
        tile = "SAMPLES == {HEAD_SAMPLES}" if name == "fc1_head" else "COLUMNS == {BACKWARD_COLUMNS}"
        same += " && " + tile.format(**vars(hopper_fc1))
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
        hopper.kernel("fc1_head", hopper_fc1.HEAD_BYTES, False, hopper_fc1.FILES)


# What they compute


class Case:
    """What comes out of the convolutions, labels, weights, and a gradient that comes back to fc1's outputs."""

    def __init__(self, count: int, device: torch.device = DEVICE) -> None:
        torch.manual_seed(6)
        self.weights = Weights(Net().to(device))
        narrow = self.weights.flat_copies.dtype
        self.pooled = torch.randn(count, 12, 12, 64).relu().to(device, narrow)
        self.labels = torch.randint(10, (2000,)).to(device)
        self.order = torch.randperm(2000)[:count].to(device)
        self.back = (1e-3 * torch.randn(count, 128)).to(device, narrow)
        self.seeds = torch.randint(2**62, (3,)).to(device)
        self.losses = torch.zeros(3, device=device)

    def head(self, seeds: torch.Tensor | None = None, step: int = 0) -> torch.Tensor:
        self.weights.flat_gradients.zero_()
        self.losses.zero_()
        return fc1_head(self.pooled, self.labels, self.order, self.weights, self.losses, seeds, step)

    def linear(self) -> torch.Tensor:
        """What fc1 makes of ``pooled``, float64, before the bias."""
        return self.pooled.double().flatten(1) @ self.weights.copies["fc1.weight"].double().t()

    def reference(self, keep: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Loss, ``back``, and the gradients of ``SMALL``, float64."""
        others = [self.weights.values[name].detach().double() for name in SMALL]
        return head_reference(self.linear(), *others, self.labels[self.order], keep)


def test_on_the_cpu_they_are_the_products_and_the_head():
    case = Case(7, torch.device("cpu"))
    weight = case.weights.copies["fc1.weight"]
    for seeds in (None, case.seeds):
        found, losses = case.head(seeds, 1), case.losses.clone()
        gradients = {name: case.weights.gradients[name].clone() for name in SMALL}
        case.weights.flat_gradients.zero_()
        case.losses.zero_()
        linear = case.pooled.flatten(1) @ weight.t()
        expected = head(linear, case.labels, case.order, case.weights, case.losses, seeds, 1)
        assert torch.equal(found, expected) and torch.equal(losses, case.losses)
        assert all(torch.equal(gradients[name], case.weights.gradients[name]) for name in SMALL)
    upstream = fc1_backward(case.pooled, case.back, case.weights)
    assert torch.equal(upstream, (case.back @ weight).view(7, 12, 12, 64))
    assert torch.equal(case.weights.gradients["fc1.weight"], case.back.t() @ case.pooled.flatten(1))


@pytest.fixture(params=[1, 7, 64, 65, 96, 1000, 1024])
def case(request) -> Case:
    """Less than a cluster's samples, exactly these, one more, and batches."""
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


@hopper_only
@pytest.mark.parametrize("dropout", [False, True])
def test_the_head_agrees_with_fp64(case, dropout):
    """Dropout's choice is read off the gradient; loss and gradients are then those of plain PyTorch with it."""
    back = case.head(case.seeds if dropout else None, 2)
    loss, *expected = case.reference(back != 0 if dropout else None)
    assert case.losses.tolist() == pytest.approx([0, 0, float(loss)], rel=1e-2)
    found = [back, *(case.weights.gradients[name] for name in SMALL)]
    errors = [error(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(errors) < 2e-2, errors
    assert torch.equal(back, case.head(case.seeds if dropout else None, 2)), "sums in the same order"


@hopper_only
def test_dropout_is_the_one_of_the_head_in_triton():
    case = Case(1024)
    bias = case.weights.values["fc1.bias"]
    linear = case.linear().to(case.pooled.dtype)
    alive = case.linear() + bias > 0
    near = (case.linear() + bias).abs() < 1e-2  # of these, ReLU may differ
    for step in range(3):
        kept = case.head(case.seeds, step) != 0
        other = head(linear, case.labels, case.order, case.weights, case.losses, case.seeds, step) != 0
        assert torch.equal(kept & ~near, other & ~near)
        assert_rate((alive & ~kept).sum(), alive.sum(), 0.5)
