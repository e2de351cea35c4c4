"""How far is a kernel from FP64, and does it drop what it should?"""

from __future__ import annotations

import math

import torch


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error, ‖found - expected‖ / ‖expected‖; NaN passes no bound."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm())


def assert_rate(dropped: torch.Tensor, of: torch.Tensor, rate: float) -> None:
    """A share within four standard deviations of its expectation."""
    dropped, of = int(dropped), int(of)
    assert abs(dropped / of - rate) < 4 * math.sqrt(rate * (1 - rate) / of)
