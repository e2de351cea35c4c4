"""The monitor tells a healthy loss scale from a sick one, on gradients that were made sick by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from labkit.subjects.loss_scale_monitor import LossScaleMonitor

SMALLEST_NORMAL = 2.0**-14


def watched(**more) -> tuple[nn.ParameterList, LossScaleMonitor, list[str]]:
    """Two parameters of four numbers, a monitor with windows of two steps, and what it says."""
    parameters = nn.ParameterList([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))])
    said: list[str] = []
    return parameters, LossScaleMonitor(parameters, say=said.append, **{"every": 2} | more), said


def give(parameters, first, second=(1.0, 1.0, 1.0, 1.0)) -> None:
    for parameter, numbers in zip(parameters, (first, second), strict=True):
        parameter.grad = torch.tensor(numbers)


def test_healthy_gradients_get_no_warning():
    parameters, monitor, said = watched()
    for _ in range(4):
        give(parameters, (1.0, -2.0, 0.0, 0.5))
        monitor.look()
    assert said == []
    assert monitor.skipped == []
    assert [(window.step, window.zero_share, window.subnormal_share) for window in monitor.windows] == [
        (2, 1 / 8, 0.0),
        (4, 1 / 8, 0.0),
    ]
    assert monitor.windows[-1].largest == 2.0
    assert monitor.windows[-1].headroom == pytest.approx(math.log2(65504 / 2))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_is_found_and_its_parameter_named(bad):
    parameters, monitor, said = watched()
    give(parameters, (1.0, 1.0, 1.0, 1.0))
    monitor.look()
    give(parameters, (1.0, 1.0, 1.0, 1.0), (1.0, bad, 1.0, bad))
    monitor.look()
    assert monitor.skipped == [2]
    assert monitor.bad_steps == {"0": 0, "1": 1}
    assert monitor.windows[0].not_finite == 2
    assert monitor.windows[0].largest == 1.0, "of the finite ones"
    assert said == ["loss scale, step 2: 1 of 2 steps had gradients that are not finite, most often in 1"]


def test_zeros_and_subnormals_are_counted_where_fp16_has_them():
    parameters, monitor, said = watched(every=1)
    just_normal, just_not = SMALLEST_NORMAL, SMALLEST_NORMAL * (1 - 2**-10)
    give(parameters, (0.0, -just_not, just_normal, 2.0**-24), (0.0, 0.0, 0.0, 0.0))
    monitor.look()
    assert (monitor.windows[0].zero_share, monitor.windows[0].subnormal_share) == (5 / 8, 2 / 8)
    assert said == ["loss scale, step 1: 62% of the gradients are zero and 25% subnormal: scale the loss"]


def test_zeros_alone_are_no_reason_for_a_warning():
    parameters, monitor, said = watched(every=1)
    give(parameters, (0.0, 0.0, 0.0, 2.0**-20), (0.0, 0.0, 1.0, 1.0))
    monitor.look()
    assert monitor.windows[0].small_share == pytest.approx(1 / 3)
    assert said == []


def test_a_warning_is_said_again_only_after_a_window_without_it():
    parameters, monitor, said = watched(every=1)
    for numbers in ((0.0,) * 4, (0.0,) * 4, (1.0,) * 4, (0.0,) * 4):
        give(parameters, numbers, numbers)
        monitor.look()
    assert [line.partition(":")[0] for line in said] == ["loss scale, step 1", "loss scale, step 4"]


def test_it_sees_the_scale_and_the_skipped_steps_of_a_grad_scaler():
    parameters = nn.ParameterList([nn.Parameter(torch.ones(4))])
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=3)
    said: list[str] = []
    monitor = LossScaleMonitor(parameters, scaler, every=5, say=said.append)
    for step in range(10):
        optimizer.zero_grad()
        loss = parameters[0].sum() * (math.inf if step == 1 else 1.0)
        scaler.scale(loss).backward()
        before = parameters[0].detach().clone()
        monitor.look()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, parameters[0]) == (step == 1), "the monitor leaves the step alone"
    assert monitor.scales == [16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0]
    assert monitor.skipped == [2]
    assert monitor.record()["scale_changes"] == [(1, 16.0), (3, 8.0), (6, 16.0), (9, 32.0)]
    assert said == [], "one skipped step at the beginning is the scaler's search"
    assert monitor.windows[-1].largest == 32.0, "the gradients are looked at while they are scaled"


def test_steps_that_go_on_being_skipped_are_told():
    parameters, monitor, said = watched(every=4)
    for bad in (1, 1, 0, 0, 1, 0, 0, 0):
        give(parameters, (math.inf if bad else 1.0, 1.0, 1.0, 1.0))
        monitor.look()
    assert said == ["loss scale, step 8: 1 of 4 steps had gradients that are not finite, most often in 0"]


def test_a_scale_below_one_is_told():
    parameters = nn.ParameterList([nn.Parameter(torch.ones(4))])
    scaler = torch.amp.GradScaler("cpu", init_scale=0.25)
    said: list[str] = []
    monitor = LossScaleMonitor(parameters, scaler, every=1, say=said.append)
    scaler.scale(parameters[0].sum()).backward()
    monitor.look()
    assert "the scale is 0.25" in said[0]


def test_half_windows_are_closed_at_the_end_and_the_summary_adds_up():
    parameters, monitor, _ = watched(every=100)
    assert monitor.summary() == "no step seen"
    for last in (1.0, math.inf):
        give(parameters, (last, 0.0, 2.0**-20, 1.0))
        monitor.look()
    give(parameters, (0.0, 0.0, 0.0, 0.0))  # as a step that unscales may leave them
    assert monitor.summary() == (
        "2 steps, no scale, 1 with gradients not finite; last gradients: 12.5% zero, 12.5% subnormal, "
        "16 doublings of room"
    )
    assert monitor.windows[0].steps == 2
    monitor.flush()
    assert len(monitor.windows) == 1, "nothing is open: nothing to close"


def test_a_summary_in_between_disturbs_nothing():
    parameters, monitor, _ = watched(every=3)
    for step in range(1, 8):
        give(parameters, (math.inf if step in (2, 5) else 1.0, 1.0, 1.0, 1.0))
        monitor.look()
        if step == 1:
            assert monitor.summary().startswith("1 steps")
    assert monitor.summary().startswith("7 steps")
    assert monitor.skipped == [2, 5]
    assert [(window.step, window.steps, window.skipped) for window in monitor.windows] == [
        (1, 1, 0),
        (4, 3, 1),
        (7, 3, 1),
    ]


def test_gradients_that_are_not_there_yet_do_not_count():
    parameters, monitor, said = watched(every=1)
    parameters[0].grad = torch.tensor([1.0, 1.0, 0.0, 1.0])
    monitor.look()
    assert monitor.windows[0].zero_share == 1 / 4
    for parameter in parameters:
        parameter.grad = None
    monitor.look()
    assert (monitor.windows[1].zero_share, monitor.windows[1].headroom) == (0.0, math.inf)
    assert said == []


def test_frozen_parameters_are_left_out_and_nothing_to_watch_is_an_error():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert list(LossScaleMonitor(layer).bad_steps) == ["weight"]
    layer.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to watch"):
        LossScaleMonitor(layer)
    with pytest.raises(ValueError, match="every=0"):
        LossScaleMonitor(nn.Linear(2, 2), every=0)


def test_it_waits_for_the_device_once_a_window(monkeypatch):
    """Reading a number on the CPU waits for a GPU; on the CPU the calls that would wait are counted."""
    waits = []
    for name in ("item", "tolist", "cpu"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *a, real=real, name=name, **k: (waits.append(name), real(self, *a, **k))[1]
        )
    parameters, monitor, _ = watched(every=5)
    for _ in range(4):
        give(parameters, (1.0, 1.0, 1.0, 1.0))
        monitor.look()
    assert waits == []
    monitor.look()
    assert waits
