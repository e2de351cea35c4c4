"""How large is the network? Its operations and parameters, counted from the layers' shapes; needs no PyTorch."""

from __future__ import annotations


def flops_per_sample() -> dict[str, int]:
    """Floating-point operations of one sample's forward pass, a layer each (a multiply and an add count as two)."""
    return {
        "conv1": 2 * 26 * 26 * 32 * 1 * 9,
        "conv2": 2 * 24 * 24 * 64 * 32 * 9,
        "fc1": 2 * 9216 * 128,
        "fc2": 2 * 128 * 10,
    }


def training_flops_per_sample() -> int:
    """Forward and backward of one sample.

    Backward costs a convolution or product twice (gradients of weights and of inputs), except in the first layer,
    whose input needs no gradient.
    """
    layers = flops_per_sample()
    return 3 * sum(layers.values()) - layers["conv1"]


def parameters() -> dict[str, int]:
    """How many numbers each layer learns: weights and biases."""
    return {
        "conv1": 32 * 1 * 9 + 32,
        "conv2": 64 * 32 * 9 + 64,
        "fc1": 9216 * 128 + 128,
        "fc2": 128 * 10 + 10,
    }
