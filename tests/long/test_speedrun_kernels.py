"""The speedrun's own kernels against FP64: on a GPU, or in Triton's interpreter; and Muon's and AdamW's arithmetic."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import interpreted
from support.fp64 import error

from labkit.kernels import adam, muon, pooled, triton_or_not
from labkit.kernels.adam import Adam, adam_reference
from labkit.kernels.muon import Muon, muon_reference
from labkit.kernels.shifted import shifted, shifted_reference
from labkit.kernels.smooth_head import smooth_head, smooth_head_reference
from labkit.kernels.weights import Weights
from labkit.training.data import normalise
from labkit.training.model import Net

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

GPU = torch.cuda.is_available()


@pytest.fixture
def device() -> torch.device:
    """Where Triton runs kernels: on a GPU, or in its interpreter."""
    if not GPU and not triton_or_not.INTERPRETED:
        pytest.skip("needs a GPU; without one, test_the_kernels_in_tritons_interpreter runs this")
    torch.manual_seed(11)
    return torch.device("cuda" if GPU else "cpu")


class Three(torch.nn.Module):
    """Matrices of 32 x 9, fewer columns than rows, 64 x 288, as conv2's weight, and 24 x 130; a bias between them."""

    SHAPES = {"first": (32, 3, 3), "bias": (32,), "second": (64, 32, 3, 3), "third": (24, 130)}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        for name, shape in self.SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))


def fill(weights: Weights) -> None:
    """Gradients nearly of low rank, as gradients are."""
    for gradient in weights.gradients.values():
        rows, columns = len(gradient), gradient.numel() // len(gradient)
        low = torch.randn(rows, 3, device=gradient.device) @ torch.randn(3, columns, device=gradient.device)
        gradient.copy_(1e-3 * (low + 0.05 * torch.randn_like(low)).view_as(gradient))


@pytest.mark.parametrize("most", [32, 64])
def test_kernel_muon(device, most):
    weights, names = Weights(Three().to(device)), ("first", "second", "third")
    muon = Muon(weights, names, most)
    assert len(muon.matrices) == {32: 4, 64: 3}[most], "64 rows are two blocks of 32"
    bias = weights.values["bias"].clone()
    for number in range(3):
        fill(weights)
        before = [[one.double().clone() for one in matrix] for matrix in muon.matrices]
        muon.step(number, 0.05, 0.6)
        for (value, copy, gradient, momentum), (old, _, slope, moving) in zip(muon.matrices, before, strict=True):
            expected, moved = muon_reference(old, slope, moving, 0.05, 0.6)
            assert error(value - old, expected - old) < 1e-3
            assert error(momentum, moved) < 1e-6
            assert error(copy, value) < 1e-2 and not gradient.any()
    assert torch.equal(weights.values["bias"], bias) and weights.gradients["bias"].all(), "no matrix of Muon's"


def test_kernel_muon_leaves_a_matrix_alone_that_has_no_gradient(device):
    weights = Weights(Three().to(device))
    before = weights.flat_values.clone()
    Muon(weights, ("first", "third")).step(0, 0.05, 0.6)
    assert torch.equal(weights.flat_values, before), "and no division by zero"


def test_kernel_muon_begins_anew(device):
    weights = Weights(Three().to(device))
    muon, net = Muon(weights, ("third",)), Three()
    found = []
    for steps in (1, 2):  # the second training begins after an odd number of steps
        weights.load(net)
        muon.begin()
        torch.manual_seed(1)
        for number in range(steps):
            fill(weights)
            muon.step(number, 0.05, 0.6)
            found.append(weights.values["third"].clone())
    assert error(found[1], found[0]) < 1e-6


@pytest.mark.parametrize("left", [("bias", "second"), ("bias", "third")])
def test_kernel_adam(device, left):
    """Parameters are left out among the others, and at the end of the flat arrays."""
    weights = Weights(Three().to(device))
    optimizer = Adam(weights, but=left)
    for number in range(3):
        weights.flat_gradients.normal_(0, 1e-2)
        state = weights.flat_values, weights.flat_gradients, weights.square_average, weights.delta_average
        before = {name: weights.values[name].clone() for name in left}
        expected = adam_reference(*(one.double() for one in state), number, 0.01, (0.7, 0.9), 0.1)
        taken = optimizer.everywhere
        optimizer.step(number, 0.01, (0.7, 0.9), 0.1)
        found = weights.flat_values, weights.square_average, weights.delta_average
        assert all(error(one[taken], other[taken]) < 1e-5 for one, other in zip(found, expected, strict=True))
        assert error(weights.flat_copies[taken], weights.flat_values[taken]) < 1e-2
        assert not weights.flat_gradients[taken].any() and weights.flat_gradients[~taken].any()
        assert all(torch.equal(weights.values[name], before[name]) for name in left)


@pytest.mark.parametrize("units", [64, 128])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_kernel_smooth_head(device, units, smoothing):
    narrow = triton_or_not.NARROW
    linear = torch.randn(21, units, device=device).to(narrow)
    parameters = [torch.randn(*shape, device=device) for shape in ((units,), (10, units), (10,))]
    gradients = [torch.ones_like(parameter) for parameter in parameters]
    labels, order = torch.randint(0, 10, (40,), device=device), torch.randperm(40, device=device)[:21]
    loss_sum = torch.ones((), device=device)
    back = smooth_head(linear, parameters, gradients, labels, order, loss_sum, smoothing)
    doubles = [one.double() for one in (linear, *parameters)]
    loss, expected, *more = smooth_head_reference(*doubles, labels[order], smoothing)
    bound = 1e-5 if narrow == torch.float32 else 2e-2
    assert float(loss_sum) == pytest.approx(1 + float(loss), rel=bound)
    assert error(back, expected) < bound
    assert all(error(one - 1, other) < bound for one, other in zip(gradients, more, strict=True)), "added to what was"


def test_kernel_shifted(device):
    images = torch.randint(0, 256, (9, 28, 28), dtype=torch.uint8, device=device)
    order, by = torch.randint(0, 9, (13,), device=device), torch.randint(-2, 3, (13, 2), device=device)
    out = torch.full((13, 28, 28), 7, dtype=torch.uint8, device=device)
    shifted(images, order, by, out)
    assert torch.equal(out, shifted_reference(images, order, by))


class Layers:
    """Random inputs of both pooled layers: ``count`` samples, 16 and 32 channels."""

    def __init__(self, device: torch.device, count: int) -> None:
        narrow = triton_or_not.NARROW
        self.images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, device=device)
        self.images[:, :6] = 0  # windows of equals, as in every digit
        self.first = torch.randn(16, 5, 5, 1, device=device).to(narrow)
        self.second = torch.randn(32, 3, 3, 16, device=device).to(narrow)
        self.bias1, self.bias2 = torch.randn(16, device=device), torch.randn(32, device=device)
        self.x = torch.randn(count, 12, 12, 16, device=device).relu().to(narrow)
        self.upstream = torch.randn(count, 5, 5, 32, device=device).to(narrow)
        self.winner1 = torch.randint(0, 5, self.x.shape, dtype=torch.uint8, device=device)
        self.winner2 = torch.randint(0, 5, self.upstream.shape, dtype=torch.uint8, device=device)
        self.bound = 1e-5 if narrow == torch.float32 else 1e-2


@pytest.fixture
def layers(device) -> Layers:
    return Layers(device, 3)


def test_kernel_first_pooled(layers):
    found, winner = pooled.first_pooled(layers.images, layers.first, layers.bias1)
    pixels = normalise(layers.images).permute(0, 2, 3, 1).double()
    expected, place = pooled.pooled_reference(pixels, layers.first.double(), layers.bias1.double())
    assert error(found, expected) < layers.bound
    black = torch.zeros_like(place, dtype=torch.bool)
    black[:, :1] = True  # all four outputs are equal there: the kernel takes the first, and so may anyone
    assert ((winner != place) & ~black).float().mean() < 1e-3, "but for ties within rounding"
    assert set(winner[:, 0].unique().tolist()) <= {0, 4}


def test_kernel_second_pooled(layers):
    found, winner = pooled.second_pooled(layers.x, layers.second, layers.bias2)
    doubles = (one.double() for one in (layers.x, layers.second, layers.bias2))
    expected, place = pooled.pooled_reference(*doubles)
    assert error(found, expected) < layers.bound
    assert (winner != place).float().mean() < 1e-3, "but for ties within rounding"


def test_kernel_second_weight_gradient(layers):
    found = [torch.ones(*shape, device=layers.x.device) for shape in ((32, 3, 3, 16), (32,))]
    pooled.second_weight_gradient(layers.x, layers.upstream, layers.winner2, *found)
    expected = pooled.weight_gradient_reference(layers.x.double(), layers.upstream.double(), layers.winner2, 3)
    assert all(error(one - 1, other) < layers.bound for one, other in zip(found, expected, strict=True))


def test_kernel_first_gradient(layers):
    found = [torch.ones(*shape, device=layers.x.device) for shape in (layers.first.shape, (16,))]
    pooled.first_gradient(layers.images, layers.winner1, layers.upstream, layers.winner2, layers.second, *found)
    below = pooled.data_gradient_reference(layers.upstream.double(), layers.winner2, layers.second.double())
    pixels = normalise(layers.images).permute(0, 2, 3, 1).double()
    expected = pooled.weight_gradient_reference(pixels, below, layers.winner1, 5)
    assert all(error(one - 1, other) < layers.bound for one, other in zip(found, expected, strict=True))


@pytest.mark.skipif(GPU or triton_or_not.INTERPRETED, reason="the kernels themselves run here")
def test_the_kernels_in_tritons_interpreter():
    """Without a GPU: the kernel tests again, in a process in which Triton interprets its kernels in Python."""
    pytest.importorskip("triton")
    said = interpreted.kernel_tests(__file__)
    assert "15 passed" in said, said


# What the references say


def test_muon_makes_all_singular_values_about_one():
    value, gradient, momentum = (torch.zeros(16, 40, dtype=torch.float64) for _ in range(3))
    gradient += torch.randn(16, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    new, _ = muon_reference(value, gradient, momentum, 1.0, 0.0)
    before, after = (torch.linalg.svdvals(one) for one in (gradient, new))
    assert before.max() > 3 * before.min()
    assert after.min() > 0.6 and after.max() < 1.3
    assert (new @ gradient.T).trace() < 0, "downhill"


def test_adam_is_pytorchs_adamw():
    torch.manual_seed(5)
    parameter = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    optimizer = torch.optim.AdamW([parameter], lr=0.02, betas=(0.7, 0.9), eps=adam.EPS, weight_decay=0.1)
    value, square, mean = parameter.detach().clone(), torch.zeros(50), torch.zeros(50)
    for number in range(4):
        parameter.grad = torch.randn(50, dtype=torch.float64)
        value, square, mean = adam_reference(value, parameter.grad, square, mean, number, 0.02, (0.7, 0.9), 0.1)
        optimizer.step()
    assert torch.allclose(value, parameter, rtol=1e-12)


@pytest.mark.skipif(triton_or_not.INTERPRETED, reason="FP64 is the references'")
def test_the_pooled_layers_references_are_autograds():
    torch.manual_seed(2)
    images = torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8)
    first, second = torch.randn(16, 5, 5, 1).double(), torch.randn(32, 3, 3, 16).double()
    leaves = [one.requires_grad_() for one in (first, torch.randn(16).double(), second, torch.randn(32).double())]
    x = normalise(images).double()
    for weight, bias in (leaves[:2], leaves[2:]):
        x = F.max_pool2d(F.relu(F.conv2d(x, weight.permute(0, 3, 1, 2), bias)), 2)
    upstream = torch.randn_like(x)
    expected = torch.autograd.grad(x, leaves, upstream)
    with torch.no_grad():
        hidden, winner1 = pooled.first_pooled(images, *leaves[:2])
        out, winner2 = pooled.second_pooled(hidden, *leaves[2:])
        assert torch.allclose(out.permute(0, 3, 1, 2), x)
        found = [torch.zeros_like(one) for one in leaves]
        upstream = upstream.permute(0, 2, 3, 1)
        pooled.second_weight_gradient(hidden, upstream, winner2, *found[2:])
        pooled.first_gradient(images, winner1, upstream, winner2, second, *found[:2])
    assert all(error(one, other) < 1e-6 for one, other in zip(found, expected, strict=True))


def test_a_shift_moves_a_digit_down_and_to_the_right():
    image = torch.arange(784).remainder(251).to(torch.uint8).view(1, 28, 28)
    moved = shifted_reference(image, torch.tensor([0]), torch.tensor([[2, -1]]))
    assert torch.equal(moved[0], F.pad(image, (0, 1, 2, 0))[0, :28, 1:])


def test_muon_steps_a_matrix_of_many_rows_in_blocks():
    weights = Weights(torch.nn.Linear(30, 200))
    gradient = torch.randn(200, 30)
    weights.gradients["weight"].copy_(gradient)
    before = weights.values["weight"].clone()
    Muon(weights, ("weight",), most=64).step(0, 0.05, 0.6)
    expected = [
        muon_reference(one, slope, torch.zeros_like(one), 0.05, 0.6)[0]
        for one, slope in zip(before.split(64), gradient.split(64), strict=True)
    ]
    assert error(weights.values["weight"], torch.cat(expected)) < 1e-6


def test_on_the_cpu_each_optimizer_steps_what_is_its_own():
    weights, names = Weights(Net()), ("conv2.weight", "fc1.weight")
    rest = set(weights.values) - set(names)
    for optimizer, own in ((Adam(weights, but=names), rest), (Muon(weights, names), set(names))):
        weights.flat_gradients.fill_(0.01)
        before = {name: value.clone() for name, value in weights.values.items()}
        optimizer.step(0, 0.01, (0.7, 0.9) if isinstance(optimizer, Adam) else 0.6)
        assert {name for name, value in weights.values.items() if not torch.equal(value, before[name])} == own
        assert all(weights.gradients[name].any() == (name not in own) for name in weights.values)
    assert muon.stretch(64, 16) == 2.0 and muon.stretch(64, 288) == 1.0
