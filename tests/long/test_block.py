"""The hot block as one operator: PyTorch's own checks of it, its gradients against FP64, its dropout, its net.

What needs a GPU is skipped without one; the Triton kernels then run in Triton's interpreter.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support import interpreted
from support.fp64 import assert_rate, error

from labkit.kernels import triton_or_not
from labkit.kernels.block import BlockNet, block, block_gradients
from labkit.training import steps
from labkit.training.data import normalise
from labkit.training.model import Net

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
HOT = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
# As in test_limit: rounding also moves which of a window's outputs is the largest. Two nets in BF16 differ by more than
# each of them from FP64, so that both are held against it, never against each other.
BOUND_BF16, BOUND_FP32 = 1e-1, 2e-3


def inputs(device: torch.device = DEVICE, count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of 40 images, and ``count`` places among them."""
    draw = torch.Generator().manual_seed(11)
    images = torch.randint(0, 256, (40, 28, 28), dtype=torch.uint8, generator=draw)
    return images.to(device), torch.randperm(40, generator=draw)[:count].to(device)


def net_of(kind: type[Net], device: torch.device = DEVICE) -> Net:
    torch.manual_seed(3)
    return kind().to(device)


def parameters_of(net: Net) -> list[torch.Tensor]:
    named = dict(net.named_parameters())
    return [named[name].detach().clone().requires_grad_() for name in HOT]


def by_pytorch(images, order, weight1, bias1, weight2, bias2, kept: torch.Tensor | None = None) -> torch.Tensor:
    """The block in FP64, by PyTorch's own layers on the CPU; ``kept`` is dropout's choice, channels last."""
    pixels = normalise(images[order].cpu()).double()
    hidden = F.relu(F.conv2d(pixels, weight1.cpu().double(), bias1.cpu().double()))
    wide = F.relu(F.conv2d(hidden, weight2.cpu().double(), bias2.cpu().double()))
    pooled = F.max_pool2d(wide, 2).permute(0, 2, 3, 1)
    return pooled if kept is None else pooled * kept.cpu() / 0.75


# What torch.library wants


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.filterwarnings("ignore")
def test_pytorchs_own_checks_of_an_operator(seed):
    """Schema, autograd, shapes without running, and the same under a compiler as without; on the CPU."""
    images, order = inputs(torch.device("cpu"))
    weights = parameters_of(net_of(Net, torch.device("cpu")).double())
    drop = None if seed is None else torch.tensor([seed])
    torch.library.opcheck(block, (images, order, *weights, drop))
    pooled, winner, hidden = block(images, order, *(weight.detach() for weight in weights), drop)
    upstream = torch.randn_like(pooled)
    torch.library.opcheck(block_gradients, (images, order, weights[2].detach(), winner, hidden, upstream, 0.75))


def test_the_compiler_keeps_it_whole_and_finds_its_way_back():
    """One graph without a break, and the same numbers with dropout as without a compiler."""
    images, order = inputs(torch.device("cpu"))
    net, found, seen = net_of(BlockNet, torch.device("cpu")), [], []

    def loss(order):
        return net(images, order)[:, 0].sum()

    def backend(graph, examples):
        seen.append([str(node.target) for node in graph.graph.nodes])
        return graph

    for how in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend=backend)):
        torch.manual_seed(5)
        net.zero_grad()
        value = how(order)
        value.backward()
        found.append([value.detach(), *(parameter.grad.clone() for parameter in net.parameters())])
    torch.compiler.reset()
    assert all(torch.equal(plain, compiled) for plain, compiled in zip(*found, strict=True))
    assert len(seen) == 1 and sum("labkit.block" in name for name in seen[0]) == 1


# Against FP64


def gradients(images, order, weights, upstream, seed=None) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """The block's values, the gradients of its parameters, and dropout's choice as far as ReLU lets it be seen."""
    pooled, winner, _ = block(images, order, *weights, seed)
    pooled.backward(upstream.to(pooled))
    return pooled, [weight.grad for weight in weights], winner < 4


@pytest.mark.parametrize("dropout", [False, True], ids=["without dropout", "with dropout"])
def test_the_way_back_is_autograds(dropout):
    """On the CPU in FP64, where nothing but the formula can differ."""
    images, order = inputs(torch.device("cpu"), 7)
    own, theirs = (parameters_of(net_of(Net, torch.device("cpu")).double()) for _ in range(2))
    upstream = torch.randn(7, 12, 12, 64, dtype=torch.float64)
    pooled, found, kept = gradients(images, order, own, upstream, torch.tensor([9]) if dropout else None)
    expected = by_pytorch(images, order, *theirs, kept if dropout else None)
    expected.backward(upstream)
    assert error(pooled, expected) < 1e-12
    assert all(error(one, other.grad) < 1e-12 for one, other in zip(found, theirs, strict=True))


@pytest.fixture
def kernel_device() -> torch.device:
    """Where Triton runs kernels: on a GPU, or in its interpreter."""
    if not (GPU or triton_or_not.INTERPRETED):
        pytest.skip("needs a GPU; without one, test_the_kernels_in_tritons_interpreter runs this")
    return torch.device("cpu") if triton_or_not.INTERPRETED else DEVICE


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
def test_kernel_block_agrees_with_fp64(kernel_device, layout):
    images, order = inputs(kernel_device, 2 if triton_or_not.INTERPRETED else 200)
    net = net_of(Net, kernel_device).to(memory_format=layout)
    own, theirs = parameters_of(net), parameters_of(net)
    upstream = torch.randn(len(order), 12, 12, 64, device=kernel_device)
    pooled, found, kept = gradients(images, order, own, upstream, torch.tensor([9], device=kernel_device))
    expected = by_pytorch(images, order, *theirs, kept)
    expected.backward(upstream.cpu().double())
    assert pooled.dtype == triton_or_not.NARROW
    bound = BOUND_FP32 if triton_or_not.INTERPRETED else BOUND_BF16
    errors = [error(pooled, expected), *(error(one, other.grad) for one, other in zip(found, theirs, strict=True))]
    assert all(one < bound for one in errors), errors


def test_kernel_block_drops_a_quarter_and_another_one_with_another_seed(kernel_device):
    images, order = inputs(kernel_device)
    weights = [weight.detach() for weight in parameters_of(net_of(Net, kernel_device))]
    alive = block(images, order, *weights, None)[1] < 4
    masks = [block(images, order, *weights, torch.tensor([s], device=kernel_device))[1] < 4 for s in (1, 2, 1)]
    for mask in masks:
        assert not (mask & ~alive).any()
        assert_rate((alive & ~mask).sum(), alive.sum(), 0.25)
    assert torch.equal(masks[0], masks[2])
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 2 * 0.25 * 0.75)


@pytest.mark.skipif(GPU or triton_or_not.INTERPRETED, reason="the kernels themselves run here")
def test_the_kernels_in_tritons_interpreter():
    """Without a GPU: the kernel tests again, in a process in which Triton interprets its kernels in Python."""
    pytest.importorskip("triton")
    said = interpreted.kernel_tests(__file__)
    assert "3 passed" in said, said


# The net


def test_the_block_net_is_the_net_to_whoever_saves_it():
    plain, own = net_of(Net), net_of(BlockNet)
    saved = plain.state_dict()
    assert list(saved) == list(own.state_dict())
    assert all(torch.equal(value, saved[name]) for name, value in own.state_dict().items()), "drawn alike"
    own.load_state_dict(saved)
    assert [name for name, _ in own.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in own.parameters())


def test_the_block_net_computes_what_the_net_does():
    """In FP64 on the CPU; of some digits by their places, and of all."""
    images, order = inputs(torch.device("cpu"), 7)
    plain, own = (net_of(kind, torch.device("cpu")).double().eval() for kind in (Net, BlockNet))
    expected = plain(normalise(images).double())
    assert error(own(images), expected) < 1e-12
    assert error(own(images, order), expected[order]) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_behind_the_block_autocast_says_the_type(dtype):
    images, order = inputs()
    net, seen = net_of(BlockNet), []
    net.fc2.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    with torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32):
        net(images, order).float().sum().backward()
    assert seen == [dtype]
    assert all(parameter.grad.dtype == torch.float32 for parameter in net.parameters())


def pooled_of(net: BlockNet, images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """What comes out of the block of a net: what its first product is given."""
    seen = []
    linear = F.linear

    def watched(x, weight, bias=None):
        seen.append(x)
        return linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", watched)
        net(images, order)
    return seen[0]


def test_training_drops_and_each_time_others():
    images, order = inputs(count=16)
    net = net_of(BlockNet)
    alive = pooled_of(net.eval(), images, order) > 0
    masks = [pooled_of(net.train(), images, order) > 0 for _ in range(2)]
    for mask in masks:
        assert not (mask & ~alive).any()
        assert_rate((alive & ~mask).sum(), alive.sum(), 0.25)
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 2 * 0.25 * 0.75)
    net.dropout1.p = 0.0
    assert torch.equal(pooled_of(net, images, order) > 0, alive)


@pytest.mark.skipif(not GPU, reason="needs a GPU: a CUDA graph is captured")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_dropout_changes_between_launches_of_a_graph(compiled):
    images, order = inputs(count=32)
    net = net_of(BlockNet)
    weights = [weight.detach() for weight in parameters_of(net)]
    alive = block(images, order, *weights, None)[1] < 4
    kept = torch.zeros_like(alive)

    def work():
        kept.copy_(block(images, order, *weights, torch.randint(2**62, (1,), device=DEVICE))[1] < 4)

    work = torch.compile(work, dynamic=False, disable=not compiled)
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
    torch.cuda.synchronize()
    launch = steps.Run.captured(SimpleNamespace(cuda=True), work)
    masks = []
    for _ in range(2):
        launch()
        masks.append(kept.clone())
    for mask in masks:
        assert_rate((alive & ~mask).sum(), alive.sum(), 0.25)
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 2 * 0.25 * 0.75)
