"""The convolutions for Hopper: compiled here without a GPU, and on such a GPU held against FP64."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.fp64 import assert_rate, error

from labkit.errors import LabError
from labkit.kernels import hopper, nvrtc
from labkit.kernels.conv1 import conv1_relu_reference
from labkit.kernels.conv2 import (
    OUT,
    conv1_gradient_reference,
    conv2_pool_reference,
    conv2_weight_gradient_reference,
    spread_reference,
)
from labkit.kernels.hopper import conv_backward, conv_forward
from labkit.kernels.weights import Weights
from labkit.training import data
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
ORDER = ("conv2.weight", "conv2.bias", "conv1.weight", "conv1.bias")


# Compiled, without a GPU


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "dropout"), [("conv_forward", False), ("conv_forward", True), ("conv_backward", False)]
)
def test_the_kernels_are_compiled_for_hopper(name, dropout):
    made = nvrtc.code(nvrtc.source(hopper.FILES[name]), hopper.HOPPER, hopper.flags(dropout))
    assert made.cubin[1:4] == b"ELF" and ".target sm_90a" in made.ptx and f".entry {name}(" in made.ptx
    files = dict(re.findall(r'\.file\s+(\d+) "(.+)"', made.ptx))
    at = {files[number] for number in re.findall(r"\.loc\s+(\d+)", made.ptx)}
    assert {str(hopper.FILES[name]), str(hopper.FOLDER / "hopper.cuh")} <= at, "a profiler finds the source by its name"


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "struct", "size", "threads"),
    [
        ("conv_forward", "Forward", hopper.FORWARD_BYTES, hopper.FORWARD_THREADS),
        ("conv_backward", "Backward", hopper.BACKWARD_BYTES, hopper.BACKWARD_THREADS),
    ],
)
def test_a_launch_asks_for_what_the_kernels_use(name, struct, size, threads):
    def asserted(size: int, threads: int) -> nvrtc.Code:
        same = f"sizeof({struct}) == {size} && THREADS == {threads}"
        text = f'{nvrtc.source(hopper.FILES[name])}\nstatic_assert({same}, "another size");'
        return nvrtc.code(text, hopper.HOPPER, hopper.flags(False))

    assert asserted(size, threads).cubin
    for wrong in ((size + 16, threads), (size, threads + 128)):
        with pytest.raises(nvrtc.CompileError, match="another size"):
            asserted(*wrong)
    assert size <= MOST_SHARED


@pytest.fixture
def three_gpus(monkeypatch):
    """Devices 0 and 1 are Hoppers, 2 is none; a list whose one element is the current device's number."""
    here = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here[0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: [(9, 0), (9, 0), (8, 0)][here[0]])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA A100")
    return here


@needs_nvrtc
def test_two_gpus_in_one_process_have_kernels_of_their_own(monkeypatch, three_gpus):
    loaded, kernels = [], []
    monkeypatch.setattr(nvrtc, "_loaded", cache(lambda *words: loaded.append(words[-1]) or object()))
    for device in (0, 1, 0):
        three_gpus[0] = device
        kernels.append(hopper._kernel("conv_forward", hopper.FORWARD_BYTES))
    assert kernels[0] is kernels[2] is not kernels[1] and loaded == [0, 1]


def test_a_gpu_that_is_no_hopper_is_refused(three_gpus):
    three_gpus[0] = 2
    with pytest.raises(LabError) as refusal:
        hopper._kernel("conv_forward", hopper.FORWARD_BYTES)
    assert str(refusal.value) == "these kernels are for Hopper (H100, H200, GH200), not for NVIDIA A100."
    assert not hopper.is_hopper(torch.device("cuda")) and not hopper.is_hopper(torch.device("cpu"))
    three_gpus[0] = 1
    assert hopper.is_hopper(torch.device("cuda"))


# What they compute


def _digits() -> data.Digits:
    """Those of ``LAB_DATA_DIR``, else the bundled ones."""
    named = os.environ.get("LAB_DATA_DIR")
    return data.read_mnist(Path(named)) if named else data.read_bundled()


class Case:
    """Real digits in some order, weights, and a gradient that comes back to them."""

    def __init__(self, count: int, device: torch.device = DEVICE) -> None:
        torch.manual_seed(5)
        self.images = _digits().train.data.to(device)
        self.order = torch.randperm(len(self.images))[:count].to(device)
        self.weights = Weights(Net().to(device))
        narrow = self.weights.flat_copies.dtype
        self.upstream = torch.randn(count, 12, 12, 64).to(device, narrow)
        self.seeds = torch.randint(2**62, (2,)).to(device)

    def layers(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """conv1's weight and bias, conv2's weight as it is multiplied, and its bias."""
        value, copy = self.weights.values, self.weights.copies
        found = value["conv1.weight"], value["conv1.bias"], copy["conv2.weight"], value["conv2.bias"]
        return tuple(tensor.to(dtype) for tensor in found)

    def reference(self, winner: torch.Tensor, dtype: torch.dtype, kept: float) -> list[torch.Tensor]:
        """The four gradients by plain PyTorch, in ``ORDER``."""
        weight1, bias1, weight2, _ = self.layers(dtype)
        hidden, upstream = conv1_relu_reference(self.images, self.order, weight1, bias1), self.upstream.to(dtype)
        second = conv2_weight_gradient_reference(hidden, upstream, winner, kept)
        return [
            *second,
            *conv1_gradient_reference(self.images, self.order, hidden, upstream, winner, weight2, kept),
        ]


def test_on_the_cpu_they_are_the_references():
    case = Case(7, torch.device("cpu"))
    weight1, bias1, weight2, bias2 = case.layers(torch.float32)
    hidden = conv1_relu_reference(case.images, case.order, weight1, bias1)
    drawn = torch.Generator().manual_seed(int(case.seeds[1]))
    keep = torch.rand(7, 12, 12, 64, generator=drawn) < 0.75
    for seeds, kept, choice in ((None, 1.0, None), (case.seeds, 0.75, keep)):
        found = conv_forward(case.images, case.order, case.weights, seeds, 1)
        expected = conv2_pool_reference(hidden, weight2, bias2, choice)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        case.weights.flat_gradients.zero_()
        conv_backward(case.images, case.order, case.weights, case.upstream, found[1], kept)
        for name, gradient in zip(ORDER, case.reference(found[1], torch.float32, kept), strict=True):
            assert torch.equal(case.weights.gradients[name], gradient), name


def hidden_as_rounded(case: Case) -> torch.Tensor:
    """conv1's pixels, float64 ``(N, 26, 26, 32)``, rounded where the kernels round.

    Bytes are exact in BF16, the taps with the pixels' scale are not; the bias, with what the shift of all pixels adds
    to it, is a sum of two numbers in BF16.
    """
    weight, bias = case.weights.values["conv1.weight"].float(), case.weights.values["conv1.bias"].float()
    scale = 1 / (255 * torch.tensor(data.STD))
    shift = -torch.tensor(data.MEAN) / torch.tensor(data.STD)
    bias = bias + shift.to(bias) * weight.sum((1, 2, 3))
    upper = bias.bfloat16().float()
    both = upper.double() + (bias - upper).bfloat16().double()
    pixels = case.images[case.order].unsqueeze(1).double()
    found = F.conv2d(pixels, (weight * scale.to(weight)).bfloat16().double()) + both.view(1, -1, 1, 1)
    return F.relu(found).bfloat16().double().permute(0, 2, 3, 1).contiguous()


def gradients_as_rounded(case: Case, hidden: torch.Tensor, winner: torch.Tensor, kept: float) -> list[torch.Tensor]:
    """The four gradients, float64, in ``ORDER``: the hidden layer's own gradient is rounded to BF16 on its way."""
    weight2, upstream = case.weights.copies["conv2.weight"].bfloat16().double(), case.upstream.double()
    second = conv2_weight_gradient_reference(hidden, upstream, winner, kept)
    output = spread_reference(upstream, winner, 1.0).permute(0, 3, 1, 2)
    below = F.conv_transpose2d(output, weight2.permute(0, 3, 1, 2)) * (hidden.permute(0, 3, 1, 2) > 0)
    below = below.bfloat16().double() / kept
    pixels = data.normalise(case.images[case.order].double())
    taps = [(below * pixels[..., y : y + 26, x : x + 26]).sum((0, 2, 3)) for y in range(3) for x in range(3)]
    return [*second, torch.stack(taps, dim=1).view(32, 1, 3, 3), below.sum((0, 2, 3))]


def test_what_is_rounded_as_the_kernels_round_is_near_fp64():
    case = Case(50, torch.device("cpu"))
    weight1, bias1, _, _ = case.layers(torch.float64)
    exact = conv1_relu_reference(case.images, case.order, weight1, bias1)
    hidden = hidden_as_rounded(case)
    assert 1e-4 < error(hidden, exact) < 4e-3
    winner = conv_forward(case.images, case.order, case.weights)[1]
    expected = case.reference(winner, torch.float64, 1.0)
    found = dict(zip(ORDER, gradients_as_rounded(case, hidden, winner, 1.0), strict=True))
    bounds = dict(zip(ORDER, (5e-3, 1e-5, 8e-2, 8e-2), strict=True))
    assert all(error(found[name], one) < bounds[name] for name, one in zip(ORDER, expected, strict=True))


@pytest.fixture(params=[1, 5, 200, 1024])
def case(request) -> Case:
    """Fewer samples than multiprocessors, more of them, and a batch."""
    return Case(request.param)


@hopper_only
def test_values_and_winners_agree_with_fp64(case):
    weight1, bias1, weight2, bias2 = case.layers(torch.float64)
    hidden = conv1_relu_reference(case.images, case.order, weight1, bias1)
    expected, expected_winner = conv2_pool_reference(hidden, weight2, bias2)
    pooled, winner = conv_forward(case.images, case.order, case.weights)
    assert error(pooled, expected) < 4e-3
    assert (winner == expected_winner).double().mean() > 0.99, "but for ties within rounding"


@hopper_only
@pytest.mark.parametrize("dropout", [False, True])
def test_gradients_agree_with_fp64(case, dropout):
    kept = 0.75 if dropout else 1.0
    _, winner = conv_forward(case.images, case.order, case.weights, case.seeds if dropout else None)
    case.weights.flat_gradients.fill_(1)
    conv_backward(case.images, case.order, case.weights, case.upstream, winner, kept)
    bounds = dict(zip(ORDER, (5e-3, 1e-5, 8e-2, 8e-2), strict=True))  # of a hidden pixel near zero, ReLU may differ
    expected = dict(zip(ORDER, case.reference(winner, torch.float64, kept), strict=True))
    errors = {name: error(case.weights.gradients[name] - 1, expected[name]) for name in ORDER}
    assert all(errors[name] < bounds[name] for name in ORDER), errors


@hopper_only
def test_values_and_gradients_are_those_of_the_same_arithmetic(case):
    """What is left are sums in another order, and their rounding: a thousandth too much does not pass."""
    hidden = hidden_as_rounded(case)
    _, _, weight2, bias2 = case.layers(torch.float64)
    whole = conv2_pool_reference(hidden, weight2.bfloat16().double(), bias2)[0]
    for seeds, kept in ((None, 1.0), (case.seeds, 0.75)):
        pooled, winner = conv_forward(case.images, case.order, case.weights, seeds)
        expected = (whole / kept * (winner < OUT)).bfloat16().double()
        case.weights.flat_gradients.zero_()
        conv_backward(case.images, case.order, case.weights, case.upstream, winner, kept)
        gradients = gradients_as_rounded(case, hidden, winner, kept)
        errors = {"pooled": error(pooled, expected)}
        for name, gradient in zip(ORDER, gradients, strict=True):
            errors[name] = error(case.weights.gradients[name], gradient)
        assert max(errors.values()) < 1e-4, errors


@hopper_only
def test_dropout_has_its_rate_in_every_channel_and_follows_the_seed():
    case = Case(1024)
    whole, winner = conv_forward(case.images, case.order, case.weights)
    alive, masks = winner < OUT, []
    for step in (0, 1, 0):
        pooled, dropped = conv_forward(case.images, case.order, case.weights, case.seeds, step)
        kept = dropped < OUT
        assert torch.equal(dropped[kept], winner[kept]) and not pooled[~kept].any()
        assert error(pooled[kept], whole[kept].double() / 0.75) < 4e-3
        assert_rate((alive & ~kept).sum(), alive.sum(), 0.25)
        for channel in range(64):
            own = alive[..., channel]
            if own.any():
                assert_rate((own & ~kept[..., channel]).sum(), own.sum(), 0.25)
        masks.append(kept)
    assert torch.equal(masks[0], masks[2]), "the same seed, the same choice"
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 2 * 0.25 * 0.75)
    other = conv_forward(case.images, case.order, case.weights, case.seeds + 1, 0)[1] < OUT
    assert_rate((masks[0] ^ other).sum(), alive.sum(), 2 * 0.25 * 0.75)
