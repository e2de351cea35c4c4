"""The steps from main_opt4 on compute what they should: against FP64, kernel by kernel, and over an epoch.

What needs a GPU is skipped without one; the Triton kernels then run in Triton's interpreter.
"""

import functools
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support import interpreted
from support.fp64 import assert_rate, error
from support.scripts import script

from labkit.kernels import conv1, conv2, fp32_out, triton_or_not
from labkit.kernels import weights as weights_module
from labkit.kernels.adadelta import adadelta, adadelta_reference
from labkit.kernels.block import BlockNet
from labkit.kernels.conv1 import conv1_relu
from labkit.kernels.conv2 import conv1_gradient, conv2_pool, conv2_weight_gradient
from labkit.kernels.fp32_out import product_in_fp32
from labkit.kernels.head import head, head_reference
from labkit.kernels.hopper import HOPPER, conv_backward
from labkit.kernels.weights import Weights
from labkit.paths import SOURCE_CODE
from labkit.training import data, steps
from labkit.training import run as training_run
from labkit.training.data import normalise
from labkit.training.model import LeanNet, Net

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization", "ignore:Detected call of .lr_scheduler")

GPU = torch.cuda.is_available()
gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU: a CUDA graph is captured")
DEVICE = torch.device("cuda" if GPU else "cpu")
OWN_KERNELS = ["main_opt7.py", "main_opt8.py"]  # forward and backward by hand, without autograd
STEPS = ["main_opt4.py", "main_opt5.py", "main_opt6.py", "main_opt6_block.py", *OWN_KERNELS]
NETS = {"main_opt6.py": LeanNet, "main_opt6_block.py": BlockNet}
OF_BYTES = ("main_opt6_block.py", *OWN_KERNELS)  # whose first kernel gathers and normalises

# Bounds on the relative error of gradients and changes, ‖found - expected‖ / ‖expected‖. Rounding also moves which of a
# window's outputs is the largest, and with it a gradient as a whole: errors are larger than those of the sums alone.
BOUND_BF16, BOUND_FP32 = 1e-1, 2e-3


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """200 real digits on the device: images and labels."""
    named = os.environ.get("LAB_DATA_DIR")
    found = data.read_mnist(Path(named)) if named else data.read_bundled()
    return found.train.data[:200].to(DEVICE), found.train.targets[:200].to(DEVICE)


# Gradients and one optimizer step, against FP64


def net_without_dropout(kind: type[Net]) -> Net:
    torch.manual_seed(3)
    net = kind()
    net.dropout1.p = net.dropout2.p = 0.0
    return net


def step_in_fp64(images: torch.Tensor, labels: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The gradient of each parameter and its change in the first step, by PyTorch in FP64 on the CPU."""
    net = net_without_dropout(Net).double()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    pixels = (images.cpu().double()[:, None] / 255 - 0.1307) / 0.3081
    F.nll_loss(net(pixels), labels.cpu()).backward()
    optimizer.step()
    return {name: (p.grad, p.detach() - before[name]) for name, p in net.named_parameters()}


@pytest.fixture(scope="module")
def expected(digits) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return step_in_fp64(*digits)


def step_of(name: str, images: torch.Tensor, labels: torch.Tensor, dtype: torch.dtype, monkeypatch):
    """The same from a step script's own training function, over one batch that holds all samples."""
    module = script(name)
    net = net_without_dropout(NETS.get(name, Net)).to(DEVICE)
    before = {key: parameter.detach().clone() for key, parameter in net.named_parameters()}
    run = SimpleNamespace(args=SimpleNamespace(batch_size=len(labels)), device=DEVICE, log_step=lambda *_: None)
    order, losses = torch.arange(len(labels), device=DEVICE), torch.zeros(1, device=DEVICE)
    lr = torch.tensor(1.0, device=DEVICE)
    if name in OWN_KERNELS:
        weights, gradients = Weights(net), {}

        def keep_gradients_and_step(weights, lr, *part):  # of two calls, the last has the gradients of all
            gradients.update({key: weights.gradient_of(key).clone() for key in weights.gradients})
            adadelta(weights, lr, *part)

        monkeypatch.setattr(module, "adadelta", keep_gradients_and_step)
        convolutions = (conv_backward,) if name == "main_opt8.py" else (conv2_weight_gradient, conv1_gradient)
        for backward in convolutions:
            monkeypatch.setattr(module, backward.__name__, functools.partial(backward, kept=1.0))
        module.train(run, weights, images, labels, order, None, lr, losses)
        weights.store(net)
        assert not weights.flat_gradients[weights.added].any(), "the optimizer empties what kernels add to"
    else:
        optimizer = torch.optim.Adadelta(net.parameters(), lr=lr, capturable=GPU)
        autocast = torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32)
        if name == "main_opt4.py":
            module.train(run, net, images, labels, optimizer, autocast, 1)
        else:

            def batch_loss(batch):
                with autocast:
                    given = (images, batch) if name in OF_BYTES else (normalise(images[batch]),)
                    output = net(*given).float()
                return F.nll_loss(output, labels[batch])

            compiled = torch.compile(batch_loss, dynamic=False, disable=not (GPU and name in NETS))
            module.train(run, net, compiled, order, optimizer, losses)
        gradients = {key: parameter.grad for key, parameter in net.named_parameters()}
    return {key: (gradients[key], p.detach() - before[key]) for key, p in net.named_parameters()}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gradients_and_a_step_agree_with_fp64(digits, expected, name, dtype, monkeypatch):
    narrow = dtype == torch.bfloat16
    if name in OWN_KERNELS and narrow != GPU:
        pytest.skip("the kernels work in BF16 on a GPU, their references in FP32 on the CPU")
    if name == "main_opt8.py" and GPU and torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("for Hopper alone")
    if name in NETS and GPU and not narrow:
        pytest.skip("compiled once, in BF16")
    steps.set_fp32_precision(False)
    found = step_of(name, *digits, dtype, monkeypatch)
    bound = BOUND_BF16 if narrow else BOUND_FP32
    errors = {key: (error(found[key][0], expected[key][0]), error(found[key][1], expected[key][1])) for key in expected}
    assert all(gradient < bound and change < bound for gradient, change in errors.values()), errors


def test_the_lean_net_is_the_net():
    """The same output and the same gradients of the same parameters, in FP64, without dropout."""
    images = torch.rand(7, 1, 28, 28, dtype=torch.float64)
    labels = torch.randint(0, 10, (7,))
    nets = [net_without_dropout(kind).double() for kind in (Net, LeanNet)]
    losses = [F.nll_loss(net(images), labels) for net in nets]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    for plain, lean in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert error(lean.grad, plain.grad) < 1e-12


@pytest.mark.parametrize("network", [Net, LeanNet])
def test_dropout_has_the_right_rates(network):
    net = network()
    seen = {}
    for name in ("dropout1", "dropout2"):
        getattr(net, name).register_forward_hook(lambda _, i, o, name=name: seen.update({name: (i[0], o)}))
    net(torch.randn(64, 1, 28, 28))
    for name, rate in (("dropout1", 0.25), ("dropout2", 0.5)):
        before, after = seen[name]
        alive = before > 0
        assert_rate((alive & (after == 0)).sum(), alive.sum(), rate)


# Each kernel, against its reference


@pytest.fixture
def kernel_device() -> torch.device:
    """Where Triton runs kernels: on a GPU, or in its interpreter."""
    if triton_or_not.INTERPRETED:
        return torch.device("cpu")
    if not GPU:
        pytest.skip("needs a GPU; without one, test_the_kernels_in_tritons_interpreter runs this")
    return DEVICE


class Case:
    """Random inputs of a step, ``count`` samples out of 40, on a device."""

    def __init__(self, device: torch.device, count: int = 5) -> None:
        torch.manual_seed(11)
        self.images = torch.randint(0, 256, (40, 28, 28), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, 10, (40,), device=device)
        self.order = torch.randperm(40, device=device)[:count]
        self.weights = Weights(Net().to(device))
        self.values, self.copies = self.weights.values, self.weights.copies
        self.narrow = self.weights.flat_copies.dtype
        self.hidden = torch.randn(count, 26, 26, 32, device=device).relu().to(self.narrow)
        self.upstream = torch.randn(count, 12, 12, 64, device=device).to(self.narrow)
        self.winner = torch.randint(0, 5, (count, 12, 12, 64), dtype=torch.uint8, device=device)
        self.linear = torch.randn(count, 128, device=device).to(self.narrow)
        self.seeds = torch.randint(2**62, (4,), device=device)
        self.bound = 1e-5 if self.narrow == torch.float32 else 1e-2


# The interpreter is slow. Three samples are work for every program more than once, and the last block is never full:
# 3 x 26 x 26, 3 x 12 x 12 and 3 x 13 x 13 are no multiples of any kernel's blocks.
@pytest.fixture(params=[3] if triton_or_not.INTERPRETED else [5, 16, 33])
def case(request, kernel_device) -> Case:
    return Case(kernel_device, request.param)


def doubles(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.double() for tensor in tensors]


def test_kernel_conv1(case):
    weight, bias = case.values["conv1.weight"], case.values["conv1.bias"]
    found = conv1_relu(case.images, case.order, weight, bias)
    expected = conv1.conv1_relu_reference(case.images, case.order, *doubles(weight, bias))
    assert error(found, expected) < case.bound


@pytest.fixture(params=[232_448, 101_376], ids=["much", "little"])
def tile(request, monkeypatch):
    """Both forms of the kernels: for a GPU with as much shared memory a program as Hopper's, and as GeForce's."""
    monkeypatch.setattr(conv2, "shared_memory", lambda tensor: request.param)


def test_kernel_conv2_pool(case, tile):
    arguments = case.hidden, case.copies["conv2.weight"], case.values["conv2.bias"]
    pooled, winner = conv2_pool(*arguments)
    expected, expected_winner = conv2.conv2_pool_reference(*doubles(*arguments))
    assert error(pooled, expected) < case.bound
    assert (winner != expected_winner).float().mean() < 1e-4, "but for ties within rounding"


def test_kernel_dropout(case, tile):
    arguments = case.hidden, case.copies["conv2.weight"], case.values["conv2.bias"]
    without, winner = conv2_pool(*arguments)
    masks = []
    for step in (0, 1, 0):
        pooled, dropped = conv2_pool(*arguments, case.seeds, step)
        kept = dropped < conv2.OUT
        assert torch.equal(dropped[kept], winner[kept]) and not pooled[~kept].any()
        assert error(pooled[kept], without[kept].double() / 0.75) < case.bound
        alive = winner < conv2.OUT
        assert_rate((alive & ~kept).sum(), alive.sum(), 0.25)
        masks.append(kept)
    assert torch.equal(masks[0], masks[2]), "the same seed, the same choice"
    assert_rate((masks[0] ^ masks[1]).sum(), (winner < conv2.OUT).sum(), 2 * 0.25 * 0.75)


def test_kernel_conv2_weight_gradient(case):
    arguments = case.hidden, case.upstream, case.winner
    found = torch.ones(64, 3, 3, 32, device=case.hidden.device), torch.ones(64, device=case.hidden.device)
    conv2_weight_gradient(*arguments, *found)
    expected = conv2.conv2_weight_gradient_reference(*doubles(case.hidden, case.upstream), case.winner)
    for one, other in zip(found, expected, strict=True):
        assert error(one - 1, other) < case.bound, "added to what was there"


def test_kernel_conv1_gradient(case, tile):
    weight = case.copies["conv2.weight"]
    found = torch.ones(32, 1, 3, 3, device=weight.device), torch.ones(32, device=weight.device)
    conv1_gradient(case.images, case.order, case.hidden, case.upstream, case.winner, weight, *found)
    expected = conv2.conv1_gradient_reference(
        case.images, case.order, *doubles(case.hidden, case.upstream), case.winner, weight.double()
    )
    for one, other in zip(found, expected, strict=True):
        assert error(one - 1, other) < case.bound


def test_kernel_head(case):
    losses = torch.zeros(4, device=case.linear.device)
    back = head(case.linear, case.labels, case.order, case.weights, losses, None, 2)
    names = ("fc1.bias", "fc2.weight", "fc2.bias")
    loss, *expected = head_reference(
        *doubles(case.linear, *(case.values[name] for name in names)), case.labels[case.order]
    )
    assert losses.tolist() == pytest.approx([0, 0, float(loss), 0], rel=1e-2)
    found = [back, *(case.weights.gradients[name] for name in names)]
    assert all(error(one, other) < case.bound for one, other in zip(found, expected, strict=True))


def test_kernel_head_dropout(case):
    losses = torch.zeros(4, device=case.linear.device)
    alive = case.linear.float() + case.values["fc1.bias"] > 0
    masks = [head(case.linear, case.labels, case.order, case.weights, losses, case.seeds, step) != 0 for step in (0, 1)]
    for mask in masks:
        assert not (mask & ~alive).any()
        assert_rate((alive & ~mask).sum(), alive.sum(), 0.5)
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 0.5)


def test_kernel_head_scales_what_dropout_keeps(case):
    """Its choice is read off the gradient; loss and gradients are then those of plain PyTorch with that choice."""
    losses = torch.zeros(1, device=case.linear.device)
    back = head(case.linear, case.labels, case.order, case.weights, losses, case.seeds)
    names = ("fc1.bias", "fc2.weight", "fc2.bias")
    loss, *expected = head_reference(
        *doubles(case.linear, *(case.values[name] for name in names)), case.labels[case.order], back != 0
    )
    assert float(losses) == pytest.approx(float(loss), rel=1e-2)
    found = [back, *(case.weights.gradients[name] for name in names)]
    assert all(error(one, other) < case.bound for one, other in zip(found, expected, strict=True))


def test_kernel_adadelta(case, monkeypatch):
    weights = case.weights
    if triton_or_not.INTERPRETED:  # 64 and 6,144 numbers: six blocks, and a last one that is not full
        monkeypatch.setattr(weights_module, "OVERWRITTEN", "weight")
        weights = Weights(torch.nn.Linear(100, 61))
    rate = torch.tensor(0.7, device=weights.flat_values.device)
    for parts in ([slice(None)], [weights.overwritten, weights.added], [weights.added, weights.overwritten]):
        weights.flat_gradients.normal_(0, 1e-2)
        state = weights.flat_values, weights.flat_gradients, weights.square_average, weights.delta_average
        expected, given = adadelta_reference(*doubles(*state), 0.7), weights.flat_gradients.clone()
        for part in parts:
            adadelta(weights, rate, part)
        found = weights.flat_values, weights.square_average, weights.delta_average
        assert all(error(one, other) < 1e-5 for one, other in zip(found, expected, strict=True))
        assert error(weights.flat_copies, weights.flat_values) < case.bound
        assert not weights.flat_gradients[weights.added].any()
        assert torch.equal(weights.flat_gradients[weights.overwritten], given[weights.overwritten])


@pytest.mark.skipif(GPU or triton_or_not.INTERPRETED, reason="the kernels themselves run here")
def test_the_kernels_in_tritons_interpreter():
    """Without a GPU: the kernel tests again, in a process in which Triton interprets its kernels in Python."""
    pytest.importorskip("triton")
    said = interpreted.kernel_tests(__file__)
    assert "12 passed" in said, said


@pytest.mark.skipif(triton_or_not.INTERPRETED, reason="nothing is compiled in the interpreter")
@pytest.mark.parametrize(("capability", "there"), [(80, 166_912), (89, 101_376), (120, 101_376)])
def test_the_convolutions_fit_into_shared_memory(capability, there, monkeypatch):
    """Compiled without such a GPU. NVIDIA, "CUDA C++ Programming Guide": shared memory a block, by capability."""
    triton = pytest.importorskip("triton")
    compiler, backends = pytest.importorskip("triton.compiler"), pytest.importorskip("triton.backends.compiler")
    monkeypatch.setattr(conv2, "shared_memory", lambda tensor: there)
    numbers = {"positions": "i32", "squares": "i32", "chunk": "i32", "step": "i32"}
    types = {"seeds": "*i64", "order": "*i64", "images": "*u8", "winner": "*u8", "bias": "*fp32"} | numbers
    types |= dict.fromkeys(["hidden", "weight", "upstream", "pooled"], "*bf16")
    values = {"DROPOUT": True, "SCALE": 4 / 3, "MEAN": 0.13, "STD": 0.31, "KEPT": 0.75}
    pool, gradient = conv2._pool_tile(torch.empty(0)), conv2._gradient_tile(torch.empty(0))
    kernels = (conv2._conv2_pool, 1, pool), (conv2._conv1_gradient, 1, gradient)
    for kernel, stages, tile in (*kernels, (conv2._conv2_weight_gradient, 2, {"BLOCK": 64})):
        names = kernel.arg_names
        constants = {name: value for name, value in (values | tile).items() if name in names}
        signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
        aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name][0] == "*"}
        source = compiler.ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned)
        options = {"num_stages": stages, "num_warps": tile.get("num_warps", 4)}
        made = triton.compile(source, target=backends.GPUTarget("cuda", capability, 32), options=options)
        assert made.metadata.shared <= there, kernel


def test_without_triton_the_step_runs_in_plain_pytorch():
    """As with PyTorch for macOS, for Windows, and in its builds for the CPU."""
    code = "import sys; sys.modules['triton'] = None; import main_opt7, main_opt8, main_opt6_block"
    code += "; import labkit.kernels.matmul"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_CODE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_largest_of_a_window_is_the_first_of_equals():
    """As max_pool2d chooses; it matters for BF16, in which equal values are common."""
    hidden = torch.ones(1, 26, 26, 32)
    _, winner = conv2.conv2_pool_reference(hidden, torch.ones(64, 3, 3, 32), torch.zeros(64))
    assert not winner.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_product_comes_out_in_fp32(dtype):
    """On a GPU in FP32's precision, too: nobody rounds the sums to BF16."""
    torch.manual_seed(2)
    a, b = torch.randn(300, 128, device=DEVICE).to(dtype), torch.randn(300, 96, device=DEVICE).to(dtype)
    out = torch.full((128, 96), math.nan, device=DEVICE)
    product_in_fp32(a.t(), b, out)
    written = dtype == torch.float32 or (GPU and fp32_out.WRITES_FP32)
    assert error(out, a.double().t() @ b.double()) < (1e-6 if written else 1e-2)


def test_weights_go_there_and_back():
    net, other = Net(), Net()
    weights = Weights(net)
    weights.store(other)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    x = torch.rand(2, 64, 12, 12)
    assert torch.allclose(
        x.permute(0, 2, 3, 1).flatten(1) @ weights.values["fc1.weight"].t(),
        x.flatten(1) @ net.fc1.weight.t(),
        atol=1e-5,
    )


# Dropout and data over an epoch


@pytest.fixture
def run_step(monkeypatch, tmp_path):
    """Runs a step script in this process over 50 digits that can be told apart; its module is given back."""
    images = torch.zeros(58, 28, 28, dtype=torch.uint8)
    images[:, 0, 0] = torch.arange(58, dtype=torch.uint8)  # a digit's number is its first pixel
    labels = torch.arange(58) % 10
    found = data.Digits(
        data.DigitSet(images[:50], labels[:50]), data.DigitSet(images[50:], labels[50:]), data.BUNDLED, None
    )
    monkeypatch.setattr(training_run, "load_digits", lambda folder, limit: found)

    def run(name: str, *flags: object, before=lambda module: None) -> None:
        words = [name, "--batch-size", 16, "--test-batch-size", 8, "--device", "cpu", *flags]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        module = script(name)
        before(module)
        module.main()

    return run


@pytest.mark.parametrize("name", STEPS)
def test_every_sample_is_seen_once_an_epoch(run_step, name, monkeypatch, capsys):
    seen: list[list[int]] = []

    def watched(images):
        seen.append(images[:, 0, 0].tolist())
        return normalise(images)

    def watch(module):
        monkeypatch.setattr(conv1 if name in OF_BYTES else module, "normalise", watched)

    run_step(name, "--epochs", 2, before=watch)
    training = [batch for batch in seen if max(batch) < 50 and batch]
    if name == "main_opt8.py":  # a batch's images are read again, backward
        assert training[::2] == training[1::2]
        training = training[::2]
    assert [len(batch) for batch in training] == [16, 16, 16, 2] * 2, "the short last batch too"
    epochs = [[number for batch in training[first : first + 4] for number in batch] for first in (0, 4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != sorted(epochs[1])
    assert sum(57 in batch for batch in seen) == 2, "and every test sample"


@pytest.mark.parametrize("name", OWN_KERNELS)
def test_own_kernels_on_the_cpu_equal_an_independent_loop(run_step, name, monkeypatch, capsys):
    """Autograd over the plain network, with the dropout masks that the script's seeds give."""
    run_step(name, "--epochs", 2, "--log-interval", 1)
    found = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if "Train Epoch" in line]

    digits = training_run.load_digits(None, None).train
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    expected = []
    for epoch in range(2):
        order, seeds = torch.randperm(50), torch.zeros(4, dtype=torch.int64).random_()
        for seed, batch in zip(seeds.tolist(), order.split(16), strict=True):
            draws = [torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)]
            keep1 = torch.rand(len(batch), 12, 12, 64, generator=draws[0]).permute(0, 3, 1, 2) < 0.75
            keep2 = torch.rand(len(batch), 128, generator=draws[1]) < 0.5
            x = F.relu(net.conv2(F.relu(net.conv1(normalise(digits.data[batch])))))
            x = F.max_pool2d(x, 2) * keep1 / 0.75
            x = F.relu(net.fc1(x.flatten(1))) * keep2 / 0.5
            loss = F.cross_entropy(net.fc2(x), digits.targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        optimizer.param_groups[0]["lr"] = 0.7 ** (epoch + 1)
    assert found == pytest.approx(expected, rel=1e-4)


@gpu_only
@pytest.mark.parametrize("kind", [Net, LeanNet])
def test_pytorchs_dropout_changes_between_launches_of_a_graph(kind):
    net = kind().to(DEVICE)
    run = SimpleNamespace(cuda=True)
    images = torch.randn(64, 1, 28, 28, device=DEVICE)
    kept = torch.zeros(64, 128, dtype=torch.bool, device=DEVICE)
    alive = torch.zeros_like(kept)

    def keep(_, inputs, output):
        alive.copy_(inputs[0] > 0)
        kept.copy_(output > 0)

    net.dropout2.register_forward_hook(keep)
    with torch.no_grad():
        net.dropout1.p = 0.0
        net(images)
        torch.cuda.synchronize()
        launch = steps.Run.captured(run, lambda: net(images))
        masks = []
        for _ in range(2):
            launch()
            masks.append(kept.clone())
    for mask in masks:
        assert_rate((alive & ~mask).sum(), alive.sum(), 0.5)
    assert_rate((masks[0] ^ masks[1]).sum(), alive.sum(), 0.5)


@gpu_only
def test_the_kernels_dropout_changes_between_launches_of_a_graph():
    case = Case(DEVICE, 32)
    arguments = case.hidden, case.copies["conv2.weight"], case.values["conv2.bias"]
    _, winner = conv2_pool(*arguments)
    conv2_pool(*arguments, case.seeds, 0)
    out = torch.zeros_like(winner)
    launch = steps.Run.captured(SimpleNamespace(cuda=True), lambda: out.copy_(conv2_pool(*arguments, case.seeds, 0)[1]))
    masks = []
    for _ in range(2):
        case.seeds.random_()
        launch()
        masks.append(out < conv2.OUT)
    assert_rate((masks[0] ^ masks[1]).sum(), (winner < conv2.OUT).sum(), 2 * 0.25 * 0.75)


# What the steps share


def test_a_rehearsal_leaves_no_trace():
    torch.manual_seed(0)
    net = Net().to(DEVICE)
    optimizer = torch.optim.Adadelta(net.parameters(), capturable=GPU)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    random = torch.get_rng_state()
    with steps.rehearsal(net, optimizer):
        net(torch.randn(4, 1, 28, 28, device=DEVICE)).sum().backward()
        optimizer.step()
        assert not torch.equal(before[0], net.conv1.weight)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert len(optimizer.state) == 8
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())
    assert torch.equal(random, torch.get_rng_state())


def test_on_the_cpu_a_graph_is_the_work_itself():
    def work() -> None:
        raise AssertionError("not now")

    assert steps.Run.captured(SimpleNamespace(cuda=False), work) is work


@pytest.mark.parametrize("name", STEPS[1:])
def test_warm_up_is_reported(run_step, name, tmp_path, capsys):
    import json

    run_step(name, "--epochs", 1, "--record", tmp_path / "run.json")
    record = json.loads((tmp_path / "run.json").read_text())
    assert 0 <= record["extras"]["warm_up_s"] < record["wall_s"]
    assert record["epochs"][0]["train_loss"] > 0
