"""The model of a CUDA graph: recorded and not run, on the memory it was recorded with, values of tensors unread."""

import pytest
import torch
from torch import nn

from labkit.pretend.graph import CaptureError, captured, refusal

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


def test_recorded_not_run_and_played_on_the_same_memory():
    weights, batch, rate = torch.ones(2), torch.tensor([1.0, 2.0]), 0.5

    def work():
        weights.sub_(rate * batch)

    launch = captured(work)
    assert weights.tolist() == [1, 1], "a capture does not run the work"
    launch()
    assert weights.tolist() == [0.5, 0]
    first, batch, rate = batch, torch.zeros(2), 0.0
    launch()
    assert weights.tolist() == [0, -1], "new names change nothing: the memory and the number are those of the capture"
    first.copy_(batch)
    launch()
    assert weights.tolist() == [0, -1], "new contents do"


def test_views_of_a_tensor_go_back_as_a_whole():
    weights = torch.zeros(4)
    launch = captured(lambda: weights[1:3].add_(1))
    assert not weights.any()
    launch()
    assert weights.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: 1 if x.sum() > 0 else 0,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.unique(x),
        lambda x: torch.masked_select(x, x > 0),
    ],
    ids=["item", "if", "mask", "nonzero", "unique", "select"],
)
def test_values_cannot_be_read_while_recording(work):
    x = torch.randn(4)
    before = x.clone()
    with pytest.raises(CaptureError, match="does not exist while the work is recorded"):
        captured(lambda: (x.add_(1), work(x)))
    assert torch.equal(x, before)
    assert "asks for a value" in refusal(lambda: work(x))


def test_work_that_reads_no_value_is_not_refused():
    x = torch.randn(4)
    assert refusal(lambda: x.clamp(max=x.mean())) is None


def test_training_by_launches_is_training():
    """Forward, backward and optimizer of a small network, recorded once, give the same weights as steps one by one."""
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    batch, target = torch.zeros(16, 4), torch.zeros(16, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=False)
        ((net(batch) - target) ** 2).mean().backward()
        optimizer.step()

    for net, optimizer in zip(nets, optimizers, strict=True):
        step(net, optimizer)  # an optimizer's first step makes its state: it goes before the capture
    launch = captured(lambda: step(nets[0], optimizers[0]))
    for _ in range(3):
        batch.normal_()
        target.normal_()
        launch()
        step(nets[1], optimizers[1])
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-7)
