"""What lab 15 asks its reader to predict, and what the usual wrong guesses leave out."""

from __future__ import annotations

from labkit.labs.lab15.trainings import WORDS, accuracy, lost
from labkit.predictions import Guess


def _right(deep: dict, variant: str) -> float:
    return float(accuracy(deep).frame.set_index("variant")["median"][WORDS[variant]])


def _zero(gan: dict, layer: str, scale: int = 1) -> float:
    return float(lost(gan, 0).frame.set_index("layer").loc[layer, f"zero × {scale:,}"])


PREDICTIONS = {
    "right": Guess(
        "what the deep network gets right in FP16 without scaling", " %", lambda deep: _right(deep, "fp16"),
        wrong={
            "That's what it gets right in FP32. Too few gradients reach its first layers for that.": (
                lambda deep: _right(deep, "fp32")
            ),
            "Even a network that learns nothing is right about one digit in ten.": lambda deep: 0,
        },
    ),
    "lost": Guess(
        "gradients of the generator's first layer that FP16 loses", " %", lambda gan: _zero(gan, "g.fc"),
        wrong={
            "That's next to the loss. The loss is large enough; its gradients shrink on their way back.": (
                lambda gan: _zero(gan, "d.fc")
            ),
            "That's still near the loss. Each layer on the way back makes gradients smaller.": (
                lambda gan: _zero(gan, "d.conv2")
            ),
            "That's what it loses with the loss multiplied by 1,024.": lambda gan: _zero(gan, "g.fc", 1024),
        },
    ),
}  # fmt: skip
