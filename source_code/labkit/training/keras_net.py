"""What is trained, in Keras 3? The course's net, with the weights of the PyTorch one.

Keras is an optional part of the course (``pip install -e '.[keras]'``): it is imported when it is used, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # lab 16 prints this module where there is no PyTorch
    import torch

    from labkit.training.model import Net

HOW_TO_INSTALL = "pip install -e '.[keras]'"


def net():
    """``labkit.training.model.Net`` in Keras: input ``(N, 28, 28, 1)``, output ``(N, 10)`` log-probabilities.

    Each layer follows the dtype policy that is set when this is called, but for the last: in float16 a log-probability
    of -10 would be rounded to steps of 1/128.
    """
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", name="conv1"),
            layers.Conv2D(64, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool"),
            layers.Dropout(0.25, name="dropout1"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="fc1"),
            layers.Dropout(0.5, name="dropout2"),
            layers.Dense(10, name="fc2"),
            layers.Activation("log_softmax", dtype="float32", name="log_softmax"),
        ]
    )


def weights_of(model: Net) -> list[np.ndarray]:
    """The weights of a PyTorch ``Net`` in the order and layout of ``net()``, for ``set_weights``.

    Convolutions: (out, in, row, column) becomes (row, column, in, out). Linear layers are transposed, and fc1 is told
    that its 9,216 inputs come pixel by pixel instead of channel by channel.
    """
    fc1 = model.fc1.weight.view(128, 64, 12, 12).permute(2, 3, 1, 0).reshape(9216, 128)
    kernels = {
        model.conv1: model.conv1.weight.permute(2, 3, 1, 0),
        model.conv2: model.conv2.weight.permute(2, 3, 1, 0),
        model.fc1: fc1,
        model.fc2: model.fc2.weight.T,
    }
    pairs = [(kernel, layer.bias) for layer, kernel in kernels.items()]
    return [values.detach().cpu().contiguous().numpy() for pair in pairs for values in pair]


def images_of(images: torch.Tensor) -> np.ndarray:
    """Normalised float32 images for Keras, channels last: ``(N, 1, 28, 28)`` to ``(N, 28, 28, 1)``."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def dtypes(model) -> list[dict]:
    """A row a layer of a Keras model: its policy, and the dtypes of its weights, its arithmetic and its output."""
    rows = []
    for layer in model.layers:
        weights = {str(weight.dtype) for weight in layer.weights}
        rows.append(
            {
                "layer": layer.name,
                "policy": layer.dtype_policy.name,
                "weights": ", ".join(sorted(weights)),
                "computes in": layer.compute_dtype,
                "output": str(layer.output.dtype),
            }
        )
    return rows
