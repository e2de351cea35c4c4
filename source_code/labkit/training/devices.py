"""Where does PyTorch compute, and in which FP32 arithmetic?"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from labkit.errors import LabError, one_sentence
from labkit.training import machine


def set_fp32_precision(tf32: bool) -> None:
    """True FP32 arithmetic, or TF32, for FP32 convolutions and matrix products.

    PyTorch's own default is mixed: TF32 for convolutions, FP32 for matrix products. A baseline that means FP32 has to
    say so. The setting is ``fp32_precision`` from torch 2.9 on and ``allow_tf32`` before.
    """
    if hasattr(torch.backends.cudnn, "conv") and hasattr(torch.backends.cudnn.conv, "fp32_precision"):
        precision = "tf32" if tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision
        torch.backends.cudnn.rnn.fp32_precision = precision
    else:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


def reduced_precision() -> str:
    """The 16-bit type for mixed precision: ``"bfloat16"``, or ``"float16"`` on a GPU that only emulates BF16."""
    return "float16" if machine.gpu_name() and not machine.has_bf16() else "bfloat16"


def number_type(*names: str) -> Callable[[str], torch.dtype]:
    """One of these number types of PyTorch by its name, for argparse: ``bfloat16`` becomes ``torch.bfloat16``."""

    def dtype(text: str) -> torch.dtype:
        if text not in names:
            raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(names)}")
        return getattr(torch, text)

    return dtype


def pick_device(wanted: str) -> torch.device:
    """The device for ``--device auto|cuda|cpu``; LabError where ``cuda`` is asked for and not there."""
    if wanted == "cuda" and machine.gpu_name() is None:
        raise LabError(f"no GPU that CUDA can use on this machine ({machine.gpu_problem() or 'none was found'}).")
    if wanted == "auto":
        wanted = "cuda" if machine.gpu_name() else "cpu"
    return torch.device(wanted)


def need_gpu() -> torch.device:
    """The GPU; ends the program with one sentence where there is none."""
    with one_sentence():
        return pick_device("cuda")
